"""A search agent whose retrievals take 100 ms, trained here and by a plain synchronous loop on the same model.

    python -m benchmarks.multi_turn [--batch 16] [--latency_s 0.1] [--steps 12]

Ours is examples/atlas.toml with plain GRPO: two actors of 8 groups, a learner, a retriever, a step of lag. The plain
loop is one process in this file: transformers' `generate` takes a turn of all episodes at once, all of that turn's
queries share one wait, and after the last turn come rewards, advantages and one AdamW step on padded rows. It has two
threads, and retrieves in process without HTTP.
"""

import json
import re
import time

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2ForCausalLM

from benchmarks.apart import apart
from benchmarks.figure import Figure, run_alone, say
from benchmarks.running import EXAMPLES, WARM_UP, seconds_and_tokens, steps_of
from examples.atlas import grammar
from examples.atlas.rollout import (
    EPISODE_TOKENS,
    MAX_SEARCHES,
    TURN_TOKENS,
    Episode,
    Retriever,
    append,
    bm25_retriever,
    end_turn,
    prompt_ids,
)
from shared.advantages import group_advantages

ATLAS = EXAMPLES / "atlas"
GROUP_SIZE, LR = 8, 5e-4


def measure(*, batch: int = 16, latency_s: float = 0.1, steps: int = 12, repetitions: int = 3) -> list[Figure]:
    """Samples and tokens per second, side by side."""
    ours: list[tuple[float, float]] = []
    plain: list[tuple[float, float]] = []
    samples = steps * batch * GROUP_SIZE
    for i in range(repetitions):
        seconds, tokens = apart(plain_loop, batch, latency_s, steps, i)
        plain.append((samples / seconds, tokens / seconds))
        seconds, tokens = seconds_and_tokens(steps_of(
            "atlas", steps, learner__batch=batch, rollout__group_size=GROUP_SIZE, replay__policy="none",
            learner__reference="engine", env__latency=latency_s, actor__groups=batch // 2, run__seed=i,
        ))  # fmt: skip
        ours.append((samples / seconds, tokens / seconds))
        say(f"repetition {i + 1}: ours {ours[-1][0]:.0f} samples/s, the plain loop {plain[-1][0]:.0f}")
    return [
        Figure(name=f"multi-turn with retrieval: {unit}", unit=f"{unit}/s", ours=[o[k] for o in ours],
               peer=[p[k] for p in plain], against="a plain synchronous loop", at_least=3.0)
        for k, unit in enumerate(("samples", "tokens"))
    ]  # fmt: skip


def plain_loop(batch: int, latency_s: float, steps: int, seed: int, threads: int = 2) -> tuple[float, int]:
    """(seconds, sampled tokens) of the steps behind the warm-up."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    tokenizer, model = policy()
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    questions = [json.loads(text) for text in (ATLAS / "data" / "train.jsonl").read_text().splitlines()]
    search = slow_retriever(latency_s)
    began, tokens = 0.0, 0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            began, tokens = time.perf_counter(), 0
        asked = [q for q in questions[step * batch : (step + 1) * batch] for _ in range(GROUP_SIZE)]
        episodes = play(model, tokenizer, [q["question"] for q in asked], search)
        right = [
            float(normal(e.answer) in map(normal, q["golden_answers"])) for e, q in zip(episodes, asked, strict=True)
        ]
        update(model, optimiser, episodes, right)
        tokens += sum(sum(e.sampled) for e in episodes)
    return time.perf_counter() - began, tokens


def policy() -> tuple[PreTrainedTokenizerFast, Qwen2ForCausalLM]:
    """What both train."""
    tokenizer = AutoTokenizer.from_pretrained(ATLAS / "policy", trust_remote_code=False)
    return tokenizer, Qwen2ForCausalLM.from_pretrained(ATLAS / "policy", dtype=torch.float32, trust_remote_code=False)


def play(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: list[str], search: Retriever
) -> list[Episode]:
    """One episode for each question, a turn of all at a time."""
    rows = [Episode(ids, [False] * len(ids)) for ids in (prompt_ids(tokenizer, q) for q in questions)]
    for _ in range(MAX_SEARCHES + 1):
        under_way = [row for row in rows if not row.done and len(row.ids) < EPISODE_TOKENS]
        if not under_way:
            break
        searching: list[tuple[Episode, str]] = []
        for row, turn in zip(under_way, turns(model, tokenizer, under_way), strict=True):
            row.ids += turn
            row.sampled += [True] * len(turn)
            row.turn = turn
            end_turn(row, tokenizer, searching)
        for (row, _), document in zip(searching, search([query for _, query in searching]), strict=True):
            append(row, tokenizer, grammar.information([document]))
    return rows


@torch.no_grad()
def turns(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: list[Episode]) -> list[list[int]]:
    """What each row says next, up to the end of a tag."""
    close = tokenizer.encode(f"</search></answer>{tokenizer.eos_token}", add_special_tokens=False)
    padded = tokenizer.pad({"input_ids": [row.ids for row in rows]}, padding_side="left", return_tensors="pt")
    width = padded["input_ids"].shape[1]
    out = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
        **padded, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=TURN_TOKENS, eos_token_id=close
    )
    said = out[:, width:].tolist()
    return [turn[: next((i + 1 for i, token in enumerate(turn) if token in close), None)] for turn in said]


def slow_retriever(latency_s: float) -> Retriever:
    """The example's, answering all queries of a call after `latency_s`."""
    rows = [json.loads(text)["contents"] for text in (ATLAS / "data" / "corpus.jsonl").read_text().splitlines()]
    parts = [row.partition("\n") for row in rows]
    inner = bm25_retriever([title.strip('"') for title, _, _ in parts], [body for _, _, body in parts])

    def search(queries: list[str]) -> list[tuple[str, str]]:
        if queries:
            time.sleep(latency_s)
        return inner(queries)

    return search


def update(
    model: torch.nn.Module, optimiser: torch.optim.Optimizer, episodes: list[Episode], right: list[float]
) -> None:
    """One step of GRPO on policy, where the ratio is 1: mean over the tokens of a response, then over responses."""
    groups = range(0, len(episodes), GROUP_SIZE)
    advantages = [float(a) for at in groups for a in group_advantages(right[at : at + GROUP_SIZE], "std")]
    used = [(e, a) for e, a in zip(episodes, advantages, strict=True) if a != 0]
    if not used:
        return
    ids = pad_sequence([torch.tensor(e.ids) for e, _ in used], batch_first=True)
    mask = pad_sequence([torch.tensor(e.sampled, dtype=torch.float32) for e, _ in used], batch_first=True)[:, 1:]
    logp = torch.log_softmax(model(input_ids=ids).logits[:, :-1].float(), -1)
    logp = logp.gather(-1, ids[:, 1:, None])[..., 0]
    ratio = torch.exp(logp - logp.detach())
    per_response = (ratio * mask).sum(1) / mask.sum(1).clamp(min=1)
    loss = -(per_response * torch.tensor([a for _, a in used])).sum() / len(episodes)
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def normal(text: str) -> str:
    """As exact match compares it."""
    return " ".join(re.sub(r"\b(a|an|the)\b|[^\w\s]", " ", text.lower()).split())


if __name__ == "__main__":
    run_alone(measure)
