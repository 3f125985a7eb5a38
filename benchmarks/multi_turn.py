"""A search agent whose retrievals take 100 ms, trained here and by a plain synchronous loop on the same model.

    python -m benchmarks.multi_turn [--batch 16] [--latency_s 0.1] [--steps 12]

Ours is examples/atlas.toml with plain GRPO: two actors of 8 groups, a learner, a retriever, a step of lag. The plain
loop is one process in this file: a batch of episodes with one cache (`examples/atlas/rollout.py`), which waits whenever
some of them search, then rewards, advantages and one AdamW step on padded rows. It has two threads, and retrieves in
process without HTTP. Queries of one position share a request, and so one wait.
"""

import json
import re
import time
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, Qwen2ForCausalLM

from benchmarks.apart import apart
from benchmarks.figure import Figure, run_alone, say
from benchmarks.running import EXAMPLES, WARM_UP, seconds_and_tokens, steps_of
from examples.atlas.rollout import Episode, Retriever, bm25_retriever, play
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
    generator = torch.Generator().manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(ATLAS / "policy", trust_remote_code=False)
    model = Qwen2ForCausalLM.from_pretrained(ATLAS / "policy", dtype=torch.float32, trust_remote_code=False)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    questions = [json.loads(text) for text in (ATLAS / "data" / "train.jsonl").read_text().splitlines()]
    search = slow_retriever(latency_s)
    began, tokens = 0.0, 0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            began, tokens = time.perf_counter(), 0
        asked = [q for q in questions[step * batch : (step + 1) * batch] for _ in range(GROUP_SIZE)]
        episodes = play(model, tokenizer, [q["question"] for q in asked], search, greedy=False, generator=generator)
        right = [
            float(normal(e.answer) in map(normal, q["golden_answers"])) for e, q in zip(episodes, asked, strict=True)
        ]
        update(model, optimiser, episodes, right)
        tokens += sum(sum(e.sampled) for e in episodes)
    return time.perf_counter() - began, tokens


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


def is_right(episode: Episode, question: dict[str, Any]) -> float:
    """Exact match."""
    return float(normal(episode.answer) in map(normal, question["golden_answers"]))


def normal(text: str) -> str:
    """As exact match compares it."""
    return " ".join(re.sub(r"\b(a|an|the)\b|[^\w\s]", " ", text.lower()).split())


if __name__ == "__main__":
    run_alone(measure)
