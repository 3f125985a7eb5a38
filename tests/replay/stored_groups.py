"""A buffer full of groups as actors and replay leave it in Redis: payloads, l_ref, headers, rows, the steps so far."""

import time
from collections.abc import Sequence

import numpy as np
import redis.asyncio
from tokenizers import Tokenizer

from services.replay.buffer import StoredGroup
from services.replay.state import Store, Transaction
from shared import events
from shared.config import Config
from shared.messages import GroupHeader
from shared.payload import Payload, encode_payload
from shared.streams import Keys
from shared.versions import Version

STEP = 40  # trained so far
OPEN = "<information>"
PASSAGE = "\n\n<information>Doc 1(Title: Mount Vassar) A mountain in Orrin, which is north of Tell.\n</information>\n\n"
SAMPLED, RETRIEVED = True, False
Pieces = Sequence[tuple[bool, str]]

USUAL: Pieces = [
    (SAMPLED, "I do not know where it is. <search> Mount Vassar </search>"),
    (RETRIEVED, PASSAGE),
    (SAMPLED, "So it is there. <answer> Orrin </answer>"),
]


async def fill(
    client: redis.asyncio.Redis,
    config: Config,
    tokenizer: Tokenizer,
    groups: int,
    rollouts: int,
    first: Pieces = USUAL,
    prompt: str = "Where is Mount Vassar?",
) -> list[str]:
    """Store groups of this many rollouts each; `first` is what the first rollout of each says. Returns their ids."""
    keys, store = Keys(config.run.name), Store(client, Keys(config.run.name))
    await store.take_over()
    state = await store.load(time.time() - 600)
    rng = np.random.default_rng(3)
    said = [first, *[USUAL] * (rollouts - 1)]
    encoded = [_encode(tokenizer, first), *[_encode(tokenizer, USUAL)] * (rollouts - 1)]
    documents = [[["doc-7"] for sampled, text in pieces if not sampled and OPEN in text] for pieces in said]
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    async with store.transaction(state) as tx:
        c = state.counters
        c.step, c.version, c.issued, c.generated = STEP, Version(0, STEP), STEP * config.learner.batch, groups
        for number in range(groups):
            payload = _payload(config, f"s{number:08d}", ids, encoded, documents, rng, number)
            data, trained = encode_payload(payload), len(payload.l_gen)
            l_ref = (payload.l_gen + rng.normal(0, 0.05, trained)).clip(max=0).astype("<f4")
            tx.pipe.set(keys.payload(payload.id), data)
            tx.pipe.set(keys.reference(payload.id), l_ref.tobytes())
            _keep(tx, payload, number, len(data), groups, rng)
        for step in range(STEP):
            tx.event("step", **_step(step, config, rng))
        tx.event("eval", round=0, em=0.35, n=400)
        tx.event("eval", round=STEP // 2, em=0.71, n=400)
        tx.event("warning", service="replay", text="a warning that <b>holds</b> markup")
    beat = (
        b'{"state":"running","version":[0,40],"engine":"torch","groups_running":3,"tokens_per_s":812.5,"memory":9123}'
    )
    await client.sadd(keys.actors, "host-1-abc")
    await client.set(keys.actor("host-1-abc"), beat, ex=120)
    await events.emit(client, keys, "rollout", text="x" * 4000)
    return [f"s{number:08d}" for number in range(groups)]


def _encode(tokenizer: Tokenizer, pieces: Pieces) -> list[tuple[bool, list[int]]]:
    return [(sampled, tokenizer.encode(text, add_special_tokens=False).ids) for sampled, text in pieces]


def _payload(
    config: Config,
    id: str,
    prompt: list[int],
    encoded: list,
    documents: list[list[list[str]]],
    rng: np.random.Generator,
    number: int,
) -> Payload:
    mask = [sampled for pieces in encoded for sampled, ids in pieces for _ in ids]
    turns, lengths = [], []
    for rollout, pieces in enumerate(encoded):
        at = 0
        for sampled, ids in pieces:
            if sampled:
                turns.append((rollout, at, at + len(ids)))
            at += len(ids)
        lengths.append(at)
    trained, stored = sum(mask), _stored_at(number)
    half = trained // 2
    right = np.arange(len(encoded)) % 2 == 0
    return Payload(
        id=id,
        run=config.run.name,
        prompt=np.array(prompt, np.int32),
        lengths=np.array(lengths, np.int32),
        tokens=np.array([i for pieces in encoded for _, ids in pieces for i in ids], np.int32),
        mask=np.array(mask, bool),
        l_gen=-rng.exponential(0.4, trained).astype(np.float32),
        advantages=np.where(right, 0.9, -0.9).astype(np.float32),
        version_runs=np.array([(half, 0, max(stored - 1, 0)), (trained - half, 0, stored)], np.int32),
        turns=np.array(turns, np.int32).reshape(-1, 3),
        documents=documents,
    )


def _stored_at(number: int) -> int:
    return STEP - 1 - number % 9


def _keep(tx: Transaction, p: Payload, number: int, size: int, groups: int, rng: np.random.Generator) -> None:
    g, headroom = p.group_size, 1 - (number + 0.5) / groups
    right = [i % 2 == 0 for i in range(g)]
    trained = [int(p.rollout(i)[1].sum()) for i in range(g)]
    tx.keep_header(
        GroupHeader(
            id=p.id, kind="train", number=number, attempt=0, round=-1, actor="host-1-abc", data_source="made",
            rewards=[float(r) for r in right], correct=right, signs=[1 if r else -1 for r in right],
            statuses=["finished"] * (g - 1) + ["truncated"], prompt_tokens=len(p.prompt), sampled_tokens=trained,
            total_tokens=p.lengths.tolist(), searches=[1] * g, version_min=Version(0, max(_stored_at(number) - 1, 0)),
            version_max=Version(0, _stored_at(number)), headroom=headroom, payload_bytes=size, seconds=1.5,
            env_seconds=0.2, fingerprints={"tokenizer": "a"},
        )
    )  # fmt: skip
    measured = number % 7 != 6
    drift = float(10 ** rng.normal(-2.0, 0.6)) if measured else float("nan")
    tx.store(
        StoredGroup(
            id=p.id, sequence=number, step=_stored_at(number), headroom_ref=min(1.0, headroom + 0.02),
            headroom=headroom, drift=drift, uses=number % 4,
            tokens=sum(trained), bytes=size, prompt=0, right=sum(right), scored=g,
        )
    )  # fmt: skip


def _step(step: int, config: Config, rng: np.random.Generator) -> dict:
    scanned = int(rng.integers(8, 20))
    learner = {"wait_s": rng.random(), "step_s": 3.0, "replay_kl": 0.002 + 0.001 * rng.random(), "engine_gap": 2e-5}
    learner["engine_gap_limit"] = 1e-4
    return {
        "step": step, "steps": config.run.steps, "version": Version(0, step + 1), "seconds": 3.0, "scanned": scanned,
        "accepted": 8, "acceptance": 8 / scanned, "ages": [1, 2, 2, 5], "age_mean": 2.5, "lag_mean": 0.9, "lag_max": 1,
        "reward_mean": 0.3 + 0.01 * step, "headroom_mean": 0.8, "drift_mean": 0.008,
        "scan_exposed_s": 0.1, "scan_hidden_s": 0.4, "selection_ms": 0.4, "tokens_per_s": 812.0, "learner": learner,
    }  # fmt: skip
