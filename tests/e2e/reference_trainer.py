"""Plain synchronous GRPO for search agents in one file: slow, literal, and written apart from the services.

A full forward for every sampled token, no cache, no batch; one rollout at a time; float32 throughout. Of the product it
takes only what defines a run: the rule for seeds, the rule for the order of the questions, and the retriever's answers.

    for step:  for b questions:  G rollouts  ->  rewards  ->  advantages
               l_ref = log p of every sampled token under the weights before the step
               for mini-batches in order:  PPO-clip on p / p_ref, mean per response, per group, over groups; clip; AdamW
"""

import json
import re
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from shared.prompts import order
from shared.seeds import derive

Search = Callable[[str], list[dict[str, str]]]  # a query to its documents, best first: {"title", "text"}
HINT = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the run was configured with."""

    seed: int
    steps: int
    batch: int
    mini_batch: int
    group_size: int
    temperature: float
    max_turns: int
    max_turn_tokens: int
    max_tokens: int
    lr: float
    betas: tuple[float, float]
    weight_decay: float
    grad_clip: float
    clip: float


@dataclass
class Rollout:
    """Tokens after the prompt, which of them the policy sampled, and its text."""

    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    text: str = ""


@dataclass
class Step:
    """What one step did, for comparison with the run's own record of it."""

    rewards: list[list[float]]
    tokens: int
    clipped: int  # tokens whose gradient the clip takes away
    weights: dict[str, Tensor]


def train(settings: Settings, policy: Path, questions: Path, search: Search) -> list[Step]:
    """Train from `policy` on `questions`; a Step per step, with the weights after it."""
    s = settings
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    end = GenerationConfig.from_pretrained(policy).eos_token_id
    ends = set(end) if isinstance(end, list) else {end}
    rows = [json.loads(line) for line in questions.read_text().splitlines()]
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    decayed = {"params": matrices, "weight_decay": s.weight_decay}
    adamw = torch.optim.AdamW([decayed, {"params": vectors, "weight_decay": 0.0}], lr=s.lr, betas=s.betas)

    trace = []
    for step in range(s.steps):
        groups, rewards = [], []
        for number in range(step * s.batch, (step + 1) * s.batch):
            row = rows[order(s.seed, len(rows), number)]
            prompt = encode_prompt(tokenizer, row["question"])
            task_seed = derive(s.seed, 0, number, 0)
            rollouts = [
                play(s, model, tokenizer, ends, prompt, search, task_seed=task_seed, index=i)
                for i in range(s.group_size)
            ]
            rewards.append([exact_match(r.text, row["golden_answers"]) for r in rollouts])
            groups.append((prompt, rollouts, advantages(rewards[-1])))

        with torch.no_grad():
            l_ref = [[logprobs(s, model, prompt, r) for r in rollouts] for prompt, rollouts, _ in groups]
        clipped = 0
        for start in range(0, len(groups), s.mini_batch):
            batch = range(start, start + s.mini_batch)
            for g in batch:
                prompt, rollouts, advantage = groups[g]
                for rollout, ref, a in zip(rollouts, l_ref[g], advantage, strict=True):
                    ratio = torch.exp(logprobs(s, model, prompt, rollout) - ref)
                    kept = torch.clamp(ratio, 1 - s.clip, 1 + s.clip)
                    loss = -torch.minimum(ratio * a, kept * a).mean() / len(rollouts) / len(batch)
                    loss.backward()
                    clipped += int((kept * a < ratio * a).sum())
            torch.nn.utils.clip_grad_norm_(model.parameters(), s.grad_clip)
            adamw.step()
            adamw.zero_grad()
        tokens = sum(sum(r.sampled) for _, rollouts, _ in groups for r in rollouts)
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        trace.append(Step(rewards, tokens, clipped, weights))
    return trace


def play(
    s: Settings,
    model: Any,
    tokenizer: Any,
    ends: set[int],
    prompt: list[int],
    search: Search,
    *,
    task_seed: int,
    index: int,
) -> Rollout:
    """One rollout: turns of the policy, answers of the environment in between."""
    r = Rollout()
    for turn in range(s.max_turns + 1):
        room = s.max_tokens - len(prompt) - len(r.ids)
        assert room > s.max_turn_tokens, "choose max_tokens so that only turns run out, never the rollout"
        draw = np.random.default_rng(derive(task_seed, index, turn))
        said: list[int] = []
        while True:
            token = sample(s, model, prompt + r.ids + said, draw.random())
            said.append(token)
            text = tokenizer.decode(said, skip_special_tokens=False)
            stopped = "</search>" in text or "</answer>" in text
            if token in ends or stopped or len(said) == s.max_turn_tokens:
                break
        r.ids += said
        r.sampled += [True] * len(said)
        r.text += text
        action = re.search(r"<(search|answer)>(.*?)</\1>", text, re.DOTALL)
        out_of_tokens = token not in ends and not stopped
        if out_of_tokens or (action and action[1] == "answer") or turn == s.max_turns:
            break
        answer = HINT
        if action and action[2].strip():
            found = search(action[2].strip())
            lines = [f"Doc {i}(Title: {d['title']}) {d['text']}\n" for i, d in enumerate(found, 1)]
            answer = "\n\n<information>" + "".join(lines) + "</information>\n\n"
        new = tokenizer.encode(answer, add_special_tokens=False)
        r.ids += new
        r.sampled += [False] * len(new)
    return r


@torch.no_grad()
def sample(s: Settings, model: Any, ids: list[int], uniform: float) -> int:
    """The next token by the inverse of the cumulative distribution, in float64."""
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double() / s.temperature
    cumulative = logits.softmax(0).cumsum(0)
    return int((cumulative <= uniform * cumulative[-1]).sum())


def logprobs(s: Settings, model: Any, prompt: list[int], r: Rollout) -> Tensor:
    """log p of the sampled tokens of a rollout, at the sampling temperature."""
    ids = torch.tensor([prompt + r.ids])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1] / s.temperature
    every = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    return every[len(prompt) - 1 :][torch.tensor(r.sampled)]


def advantages(rewards: list[float]) -> list[float]:
    """(r - mean) / standard deviation within the group; 0 where all are equal."""
    mean = sum(rewards) / len(rewards)
    std = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) ** 0.5
    return [(r - mean) / (std + 1e-6) if std > 1e-3 else 0.0 for r in rewards]


def exact_match(text: str, targets: list[str]) -> float:
    """1 where the last answer equals a target but for case, punctuation, articles and spaces."""
    answers = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return float(bool(answers) and any(plain(answers[-1]) == plain(t) for t in targets))


def plain(text: str) -> str:
    """The form in which answers are compared."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(word for word in bare.split() if word not in ("a", "an", "the"))


def encode_prompt(tokenizer: Any, question: str) -> list[int]:
    """The question as the policy is asked it."""
    chat = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(text, add_special_tokens=False)
