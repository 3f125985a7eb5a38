"""Batched search episodes with a key-value cache, for measuring the policy inside the warm-start script.

All rows walk through the same positions: a row either is fed a token it must take (prompt, retrieved text) or samples
one. So no row is ever padded on the left and one cache serves all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import bm25s
import torch
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen2ForCausalLM

from examples.atlas import grammar

Retriever = Callable[[list[str]], list[tuple[str, str]]]
MAX_SEARCHES, TURN_TOKENS, EPISODE_TOKENS = 3, 32, 224


@dataclass
class Episode:
    """One row. `sampled[i]` tells whether the policy chose `ids[i]`; `answer` stays empty when it gave none."""

    ids: list[int]
    sampled: list[bool]
    turn: list[int] = field(default_factory=list)
    searches: int = 0
    turns: int = 0
    answer: str = ""
    done: bool = False


def bm25_retriever(titles: Sequence[str], bodies: Sequence[str]) -> Retriever:
    """The best passage (title, body) for each query: BM25 over lower-cased words, k1 0.9, b 0.4."""
    index = bm25s.BM25(k1=0.9, b=0.4)
    texts = [f'"{title}"\n{body}' for title, body in zip(titles, bodies, strict=True)]
    index.index(bm25s.tokenize(texts, stopwords=[], show_progress=False), show_progress=False)
    known: dict[str, tuple[str, str]] = {}
    passages = list(zip(titles, bodies, strict=True))

    def search(queries: list[str]) -> list[tuple[str, str]]:
        new = [q for q in dict.fromkeys(queries) if q not in known]
        if new:
            tokens = bm25s.tokenize([q or "?" for q in new], stopwords=[], return_ids=False, show_progress=False)
            rows, _ = index.retrieve(tokens, k=1, show_progress=False)
            known.update((q, passages[row[0]]) for q, row in zip(new, rows.tolist(), strict=True))
        return [known[q] for q in queries]

    return search


def prompt_ids(tokenizer: PreTrainedTokenizerFast, question: str) -> list[int]:
    """The prompt exactly as the actor builds it."""
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(str(text), add_special_tokens=False)


@torch.no_grad()
def play(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    search: Retriever,
    *,
    greedy: bool,
    generator: torch.Generator | None = None,
) -> list[Episode]:
    """Play one episode for each question, by arg-max or at temperature 1."""
    rows = [Episode(ids, [False] * len(ids)) for ids in (prompt_ids(tokenizer, p) for p in prompts)]
    cache = DynamicCache(config=model.config)
    close = set(tokenizer.encode(f"</search></answer>{tokenizer.eos_token}", add_special_tokens=False))
    for position in range(EPISODE_TOKENS - 1):
        fed = torch.tensor([[r.ids[position] if position < len(r.ids) else tokenizer.pad_token_id] for r in rows])
        logits = model(input_ids=fed, past_key_values=cache, use_cache=True).logits[:, -1].float()
        picks = logits.argmax(-1) if greedy else torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        searching: list[tuple[Episode, str]] = []
        for row, token in zip(rows, picks.tolist(), strict=True):
            if row.done or position + 1 < len(row.ids):
                continue
            row.ids.append(token)
            row.sampled.append(True)
            row.turn.append(token)
            if token in close or len(row.turn) == TURN_TOKENS:
                end_turn(row, tokenizer, searching)
        for (row, _), document in zip(searching, search([q for _, q in searching]), strict=True):
            append(row, tokenizer, grammar.information([document]))
        if all(r.done for r in rows):
            break
    return rows


def end_turn(row: Episode, tokenizer: PreTrainedTokenizerFast, searching: list[tuple[Episode, str]]) -> None:
    """Take up what a row has said in `turn`; who asks for a search goes to `searching` with the query."""
    kind, content = grammar.action(str(tokenizer.decode(row.turn)))
    row.turn, row.turns = [], row.turns + 1
    if kind == "answer":
        row.answer, row.done = content, True
    elif row.turns > MAX_SEARCHES:
        row.done = True
    elif kind == "search":
        row.searches += 1
        searching.append((row, content))
    else:
        append(row, tokenizer, grammar.HINT)


def append(row: Episode, tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    """Text that the policy did not choose."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    row.ids += ids
    row.sampled += [False] * len(ids)
