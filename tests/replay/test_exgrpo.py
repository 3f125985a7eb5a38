"""`exgrpo` on what real actors made: against a slow literal version, its bound, its draw, and as a service."""

import math
from collections import Counter

import msgspec
import numpy as np
import pytest
import redis

from services.replay.again import clear_retired
from services.replay.buffer import Buffer, StoredGroup
from services.replay.kept import Kept
from services.replay.policies import Moment
from services.replay.policies.exgrpo import by_difficulty
from services.replay.records import Counters
from services.replay.service import Replay
from services.replay.state import State, Transaction
from shared.advantages import group_advantages
from shared.config import build
from shared.errors import UserError
from shared.messages import AGAIN, TRAIN, GroupHeader, Record
from shared.prompts import order as data_order
from shared.seeds import derive
from shared.streams import Keys
from shared.versions import Version
from tests.replay.answered import QUESTIONS, Answered
from tests.replay.peers import Questions, client_of
from tests.replay.recording import Recording
from tests.replay.test_service import run_to_the_end

STEPS = 200


def entropy(id: str, place: int, step: int, ties: bool) -> float:
    value = np.random.default_rng([step, place, *id.encode()]).random()
    return round(value, 1) if ties else float(value)


def measured(ties: bool, group_size: int):
    def measure(id: str, step: int) -> Record:
        record = Record(
            id=id, tokens=8, tokens_positive=4, tokens_negative=4, mean_p_positive=0.5, mean_p_negative=0.5,
            headroom=0.5, sum_d=0.0, sum_d2=99.0, max_abs_d=1.0, k3=0.0, dead_share=0.0,
        )  # fmt: skip
        return msgspec.structs.replace(record, entropies={i: entropy(id, i, step, ties) for i in range(group_size)})

    return measure


def right_of(header: GroupHeader) -> int:
    return sum(c for c, r in zip(header.correct, header.rewards, strict=True) if r is not None)


def literal_round(open_prompts: dict[int, tuple[int, int]], n: int, G: int, seed: int) -> list[int]:
    """Who is asked: question -> (right, scored); one clock after the other, in the order of the data set."""
    bucket = {q: round(right * G / scored) for q, (right, scored) in open_prompts.items()}
    rng = np.random.default_rng(seed)
    clocks = {}
    for q in sorted(open_prompts):
        share = sum(1 for other in bucket.values() if other == bucket[q])
        clocks[q] = math.log(rng.exponential()) - (-0.5 * (bucket[q] - G / 2) ** 2 - math.log(share))
    asked = []
    while clocks and len(asked) < n:
        first = min(clocks, key=lambda q: clocks[q])
        asked.append(first)
        del clocks[first]
    return asked


@pytest.mark.parametrize(
    ("replay", "ties"),
    [({}, False), pytest.param({"select": 5, "capacity": 40}, True, marks=pytest.mark.slow)],
    ids=str,
)
def test_200_steps_equal_a_literal_version_and_keep_the_bound(replay: dict, ties: bool):
    recording = Recording()
    b, G = recording.batch, recording.group_size
    config = build(
        {
            "run": {"steps": STEPS},
            "learner": {"batch": b},
            "rollout": {"group_size": G},
            "replay": {"policy": "exgrpo", "capacity": 64, "tau": 0.001, "scan_chunk": 3} | replay,
        }
    )
    n, capacity = config.replay.select or b, config.replay.capacity
    run = Answered(config, recording, seed=4, measure=measured(ties, G))
    stored: list[tuple[int, str]] = []  # question, id
    open_prompts: dict[int, tuple[int, int]] = {}
    heard_at: dict[int, int] = {}
    retired: set[int] = set()
    number = joined = 0
    success = 0.0
    for seen in run.play(STEPS):
        s, headers = seen.step, run.headers
        begun = s > 0 and success >= 0.35
        asked = literal_round(open_prompts, n, G, derive(config.run.seed, 4, s)) if begun else []
        tasks = [(t.kind, t.number, t.group_size) for t in seen.asked]
        assert tasks == [(AGAIN, q, G - 1) for q in asked] + [(TRAIN, i, G) for i in range(number, number + b)]
        fresh = [f"t{i:08d}" for i in range(number, number + b)] + [f"a{s:08d}-{q:08d}" for q in sorted(asked)]
        number += b
        assert seen.batch.fresh == fresh and not seen.batch.left_out
        assert seen.scanned == [id for q, id in stored if q in asked]

        replay_ids, parts = [], {}
        for id in fresh[b:]:
            header = headers[id]
            candidates = [
                (entropy(other, place, s, ties), age, place, other)
                for age, (q, other) in enumerate(stored)
                for place, right in enumerate(headers[other].correct)
                if q == header.number and right and headers[other].rewards[place]
            ]
            if right_of(header) == len(header.scored) or not candidates:
                continue
            _, _, place, other = min(candidates)
            a = group_advantages([*header.rewards, headers[other].rewards[place]]).tolist()
            replay_ids.append(other)
            parts[other] = ([place], a[-1:], id)
            parts[id] = ([i for i, t in enumerate(header.sampled_tokens) if t], a[:-1], "")
            joined += 1
        assert seen.batch.replay == replay_ids
        assert {id: (p.rollouts, p.advantages, p.joins) for id, p in seen.batch.parts.items()} == parts
        assert seen.batch.stats["replay_rollouts"] == len(replay_ids), "one response of each"
        for id in replay_ids:
            assert 0 < right_of(headers[id]) < len(headers[id].scored)
            assert all(headers[id].correct[place] for place in seen.batch.parts[id].rollouts)

        heard = [id for id in fresh if headers[id].kind == AGAIN] + [id for id in fresh if headers[id].kind == TRAIN]
        done = {headers[id].number for id in fresh[b:] if right_of(headers[id]) == len(headers[id].scored)}
        retired |= done
        for id in fresh:
            header = headers[id]
            q = header.number if header.kind == AGAIN else data_order(config.run.seed, QUESTIONS, header.number)
            if 0 < right_of(header) < len(header.scored) and q not in retired:
                stored.append((q, id))
        for id in heard:
            header = headers[id]
            q = header.number if header.kind == AGAIN else data_order(config.run.seed, QUESTIONS, header.number)
            if right_of(header) == len(header.scored):
                retired.add(q)
            open_prompts.pop(q, None)
            if q not in retired and right_of(header):
                open_prompts[q], heard_at[q] = (right_of(header), len(header.scored)), s
        stored = [(q, id) for q, id in stored if q not in retired][-capacity:]
        assert seen.after == [id for _, id in stored]
        outcomes = [
            c for id in fresh for c, r in zip(headers[id].correct, headers[id].rewards, strict=True) if r is not None
        ]
        success = max(success, sum(outcomes) / len(outcomes))
        kept = run.state.kept.values()
        assert {k.question for k in kept if k.retired} == retired
        assert {k.question: (k.right, k.scored) for k in kept if not k.retired} == open_prompts
    assert joined > 50 and retired, "the recording must give the policy something to choose from"
    c = run.state.counters
    assert c.generated == c.trained == STEPS * b + c.regenerated


def kept(question: int, right: int, scored: int = 8) -> Kept:
    return Kept(question=question, step=0, right=right, scored=scored)


def test_buckets_are_drawn_by_the_normal_weight_and_prompts_within_them_alike():
    prompts = [kept(0, 4), kept(1, 5), kept(2, 5), kept(3, 7)]
    first: Counter[int] = Counter()
    draws = 20_000
    for seed in range(draws):
        first[by_difficulty(prompts, 1, 8, Moment(1, seed))[0].question] += 1
    weight = {0: 1.0, 1: math.exp(-0.5) / 2, 2: math.exp(-0.5) / 2, 3: math.exp(-4.5)}
    for question, w in weight.items():
        p = w / sum(weight.values())
        assert first[question] / draws == pytest.approx(p, abs=4 * (p * (1 - p) / draws) ** 0.5)


def test_of_a_large_buffer_only_what_a_retired_prompt_has_stored_is_read(monkeypatch: pytest.MonkeyPatch):
    state = State(Counters(started=0.0, version=Version(0, 0), fingerprints={}))
    for i in range(500):
        state.buffer.insert(stored(f"g{i}", i, prompt=7 * i % 50))
    state.kept = {str(q): msgspec.structs.replace(kept(q, 4), retired=q in (3, 31, 99)) for q in (2, 31, 3, 99)}
    due = [row.id for row in state.buffer if row.prompt in (3, 31)]
    read: list[str] = []
    row_of = Buffer.row
    monkeypatch.setattr(Buffer, "row", lambda buffer, id: (read.append(id), row_of(buffer, id))[1])
    clear_retired(state, Transaction(state, Keys("r"), redis.Redis().pipeline()))
    assert read == due and list(state.retired) == due, "the oldest first"
    assert len(state.buffer) == 480 and state.counters.evicted == 20


def stored(id: str, sequence: int, prompt: int) -> StoredGroup:
    return StoredGroup(
        id=id, sequence=sequence, step=0, headroom_ref=0.5, headroom=0.5, drift=0.0, uses=0, tokens=8, bytes=8,
        prompt=prompt,
    )  # fmt: skip


def test_far_buckets_and_no_prompts_are_no_trouble():
    assert by_difficulty([], 3, 8, Moment(1, 0)) == []
    far = [kept(0, 1, 256), kept(1, 255, 256)]
    assert len(by_difficulty(far, 3, 256, Moment(1, 0))) == 2
    assert [k.question for k in by_difficulty([kept(0, 6, 7), kept(1, 3, 7)], 1, 8, Moment(1, 5))] == [1]


@pytest.mark.parametrize(
    ("max_lag", "crashes", "learner_crashes"),
    [(2, 0, 0), *(pytest.param(*c, marks=pytest.mark.slow) for c in ((0, 6, 0), (1, 6, 3)))],
)
async def test_a_run_with_crashes_joins_the_same_responses_again(make_config, max_lag, crashes, learner_crashes):
    config = make_config(
        run={"steps": 20}, replay={"policy": "exgrpo", "max_lag": max_lag, "select": 3, "capacity": 40}
    )
    state, learner, records = await run_to_the_end(
        config, crashes=crashes, learner_crashes=learner_crashes, fail_share=0.05, seed=max_lag
    )
    steps = [r for r in records if r["kind"] == "step"]
    assert [r["step"] for r in steps] == list(range(20)) and all(r["lag_max"] <= max_lag for r in steps)
    last = {batch.step: batch for _, batch in learner.trained}
    for _, batch in learner.trained:
        assert last[batch.step] == batch, "a step trained again has the same batch"
    joins = [(part.joins, id, part) for batch in last.values() for id, part in batch.parts.items() if part.joins]
    assert joins
    for batch in last.values():
        hosts = [part.joins for part in batch.parts.values() if part.joins]
        assert len(set(hosts)) == len(hosts) == len(batch.replay) and set(hosts) <= set(batch.fresh)
        for id in batch.replay:
            [place] = batch.parts[id].rollouts
            assert learner.headers[id].correct[place]
            host = learner.headers[batch.parts[id].joins]
            assert host.kind == AGAIN and len(host.rewards) == config.rollout.group_size - 1
    c = state.counters
    assert c.generated == c.trained == 20 * config.learner.batch + c.regenerated and c.trained_twice == 0


async def test_a_group_size_that_leaves_one_answer_is_refused(make_config):
    config = make_config(replay={"policy": "exgrpo"}, rollout={"group_size": 2})
    with pytest.raises(UserError, match=r"rollout\.group_size = 2"):
        Replay(config, client_of(config.redis.url), Questions(5), None)
