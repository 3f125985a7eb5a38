"""Settings that are each valid and cannot work together: one sentence each, with the arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shared.addresses import host_and_port
from shared.errors import UserError
from shared.latency import parse_latency
from shared.rewards.own import REFERENCE

if TYPE_CHECKING:
    from shared.config import Config


KEEP_NOTHING = ("none", "dapo")  # policies that store no group
UNGATED = (  # policies that do not ask for Drift
    *KEEP_NOTHING,
    *("bapo", "exgrpo", "headroom_only", "naive", "rollout_advantage", "trl_buffer", "uniform"),
)


def contradictions(c: Config) -> Iterator[str]:
    """What is wrong with `c`; nothing when it can run."""
    b, m, r, unit = c.learner.batch, c.learner.mini_batch, c.replay_groups, c.replay.unit
    prompt, turn, whole = c.rollout.max_prompt_tokens, c.rollout.max_turn_tokens, c.rollout.max_tokens
    if m and b % m:
        yield (
            f"learner.batch = {b} is not a multiple of learner.mini_batch = {m} ({b} = {b // m} x {m} + {b % m}): "
            f"set learner.batch to {b - b % m or m} or {(b // m + 1) * m}."
        )
    replays = c.replay.policy not in KEEP_NOTHING
    if replays and r == 0:
        yield f"replay.policy = '{c.replay.policy}' with learner.batch = {b} replays nothing: set replay.select."
    if replays and r % unit:
        yield (
            f"replay.select = {r} is not a multiple of replay.unit = {unit}: "
            f"the groups beyond {r - r % unit} could never be used."
        )
    if replays and c.replay.capacity < r:
        yield (
            f"replay.capacity = {c.replay.capacity} cannot hold the replay.select = {r} groups of a step: "
            f"2 to 4 times learner.batch ({2 * b} to {4 * b}) is the useful range."
        )
    if c.replay.adaptive_tau > 0 and c.replay.tau == 0:
        yield "replay.adaptive_tau moves the gate by factors, and replay.tau = 0 stays 0: set replay.tau above 0."
    if prompt + turn > whole:
        yield (
            f"rollout.max_prompt_tokens + rollout.max_turn_tokens = {prompt} + {turn} = {prompt + turn} exceeds "
            f"rollout.max_tokens = {whole}: a full prompt would leave no room for one turn."
        )
    if c.rollout.top_p != 1.0 or c.rollout.top_k not in (0, -1):
        yield (
            f"rollout.top_p = {c.rollout.top_p} and rollout.top_k = {c.rollout.top_k}: training needs top_p = 1 and "
            "top_k = 0, because a cut distribution makes the policy ratio biased."
        )
    yield from _loss_contradictions(c)
    if c.actor.tensor_parallel > 1 and c.actor.engine == "torch":
        yield (
            f"actor.tensor_parallel = {c.actor.tensor_parallel} is of the vLLM engine, and actor.engine = 'torch' has "
            "one device: set it to 1, or the engine to 'vllm'."
        )
    if c.actor.exact and c.actor.engine != "torch":
        yield f"actor.exact is of the torch engine, and actor.engine = '{c.actor.engine}': set it to 'torch'."
    if c.learner.kl > 0 and not c.model.kl_reference and not c.learner.lora_rank:
        yield "learner.kl > 0 needs model.kl_reference, the frozen model it measures to."
    if c.learner.optimizer == "adamw8bit" and c.learner.ranks > 1 and not c.learner.lora_rank:
        yield (
            f"learner.optimizer = 'adamw8bit' is of one process, and learner.ranks = {c.learner.ranks} share the "
            f"moments already ({8 / c.learner.ranks:g} bytes a parameter each): set it to 'adamw'."
        )
    if c.weights.delta and c.weights.transport != "redis":
        yield f"weights.delta is of weights.transport = 'redis', and it is '{c.weights.transport}': set one of the two."
    if c.weights.address and c.weights.transport != "broadcast":
        yield f"weights.address is of weights.transport = 'broadcast', and it is '{c.weights.transport}': leave it out."
    if c.weights.transport != "folder" and c.received_dir == c.weights_dir:
        yield f"weights.received = '{c.received_dir}' is weights.dir, which is the learner's alone: name another."
    if c.weights.dtype != "model" and (c.learner.ranks > 1 or c.learner.lora_rank):
        yield (
            f"weights.dtype = '{c.weights.dtype}' is of a model that one process holds and trains whole: leave it at "
            "'model' with learner.ranks > 1 (files are in model.dtype) or learner.lora_rank (adapters are float32)."
        )
    canary = c.weights.canary_tokens
    if c.weights.canary_sequences and canary >= whole and c.actor.engine != "torch":
        yield (
            f"weights.canary_tokens = {canary} and the token that vLLM samples behind them exceed rollout.max_tokens = "
            f"{whole}: set weights.canary_tokens to {whole - 1} or less."
        )
    yield from _environment_contradictions(c)
    for name, topk in (("search.topk", c.search.topk), ("env.topk", c.env.topk)):
        if topk > c.search.max_topk:
            yield f"{name} = {topk} exceeds search.max_topk = {c.search.max_topk}."


def _environment_contradictions(c: Config) -> Iterator[str]:
    if c.env.kind == "search":
        try:
            host_and_port(c.env.url)
        except ValueError:
            shown = c.env.url.rpartition("@")[2]  # a password stands before it
            yield f"env.url = '{shown}' is no address of a retriever: write http://HOST:PORT."
    try:
        latency = parse_latency(c.env.latency)
    except UserError as error:
        yield str(error)
        return
    if latency is None:
        return
    if c.env.kind != "search":
        yield f"env.latency = '{c.env.latency}' is added to retrieval calls, and env.kind = '{c.env.kind}' makes none."
    whole = latency.mean * c.env.max_turns
    if whole >= c.rollout.deadline_s:
        yield (
            f"env.latency = '{c.env.latency}' is {latency.mean:g} s a call on average, so env.max_turns = "
            f"{c.env.max_turns} calls take {whole:g} s and every such rollout would run into rollout.deadline_s = "
            f"{c.rollout.deadline_s:g}: raise it, or lower the latency."
        )


def _loss_contradictions(c: Config) -> Iterator[str]:
    s, reward = c.learner, c.reward
    if 0 < s.dual_clip <= 1:
        yield f"learner.dual_clip = {s.dual_clip:g} would cut ratios that have not moved: it must be above 1; 0 is off."
    if s.dual_clip and s.loss == "cispo":
        yield "learner.dual_clip does nothing under learner.loss = 'cispo', whose weight is bounded by clip_high."
    if s.clip_low == 1 and s.loss != "cispo":
        yield f"learner.clip_low = 1 leaves learner.loss = '{s.loss}' without a clip below: only 'cispo' is made so."
    if s.denominator_tokens and s.loss != "dr_grpo":
        yield (
            f"learner.denominator_tokens is the constant of 'dr_grpo'; learner.loss = '{s.loss}' divides by the tokens "
            "there are: leave it at 0."
        )
    if s.replay_shaping and s.proximal_cap:
        yield (
            "learner.replay_shaping and learner.proximal_cap both change how far a replayed rollout may have moved: "
            "set one of them to 0."
        )
    if reward.function and not REFERENCE.fullmatch(reward.function):
        yield f"reward.function = '{reward.function}' names no function: write FILE.py:NAME."
    if reward.function and reward.format_score:
        yield (
            "reward.format_score is added by reward.kind, and reward.function decides the whole reward: "
            "leave one of the two out."
        )
    turn = c.rollout.max_turn_tokens
    if reward.overlong_tokens >= turn:
        yield (
            f"reward.overlong_tokens = {reward.overlong_tokens} is not below rollout.max_turn_tokens = {turn}: "
            "every response would be penalised."
        )
