"""The loop on a real Redis, entry by entry: what it trains, scans, publishes and refuses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import REGISTRY

from cli.status import read_state, sentence
from services.learner.engine_gap import OnceEach
from services.learner.loop import Loop
from services.learner.weights import checkpoint
from shared import events, streams, weights
from shared.config import Config
from shared.errors import UserError
from shared.messages import (
    Checkpointed,
    Hello,
    Scan,
    ScanResult,
    Trained,
    WeightsNotice,
    decode,
)
from shared.payload import encode_payload
from shared.streams import FIELD
from shared.versions import Version
from tests.learner.fed import KEYS, Feed, batch, pending, results, start, state_of, work_off


def test_it_announces_its_version_and_its_weights(config: Config, client: Any) -> None:
    start(config)
    assert results(client) == [Hello(version=Version(0, 0))]
    notice = decode(client.xrevrange(KEYS.weights)[0][1][FIELD], WeightsNotice)
    weights.verify(config.weights_dir / notice.location, notice.digest)
    assert len(notice.canary) == config.weights.canary_sequences


def test_a_batch_is_trained_published_and_kept_pending_until_the_checkpoint(
    config: Config, client: Any, feed: Feed
) -> None:
    loop = start(config)
    before = state_of(loop)
    feed(batch(0))
    work_off(loop)
    trained = results(client)[-1]
    assert (trained.step, trained.version, trained.rejected) == (0, Version(0, 1), [])
    assert [r.id for r in trained.records] == ["0a", "0b"]
    assert not all(torch.equal(a, b) for a, b in zip(before, state_of(loop), strict=True))
    notice = decode(client.xrevrange(KEYS.weights)[0][1][FIELD], WeightsNotice)
    assert notice.version == trained.version
    assert pending(client) == 1
    assert client.get(KEYS.reference("0a")) is not None

    feed(batch(1, replay=["0a"]))
    work_off(loop)
    assert isinstance(results(client)[-1], Checkpointed)
    assert results(client)[-1].step == 2
    assert pending(client) == 0
    assert checkpoint.steps(config.checkpoints_dir) == [2]


def test_the_metrics_of_a_step_are_complete_and_add_up(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    feed(batch(0))
    feed(Scan(scan="s", step=1, ids=["0a"]))
    feed(batch(1, replay=["0a"]))
    work_off(loop)
    m = results(client, Trained)[1].metrics
    learning = "loss kl ratio_mean clip_share grad_norm lr tokens_trained replay_kl entropy entropy_fresh padding_share"
    times = "wait_s scan_s fetch_s reference_s train_s publish_s checkpoint_s step_s"
    gaps = "engine_gap engine_gap_limit reference_gap drift_noise"
    counts = "updates_left_out payload_bytes_read payload_reads"
    assert set(m) == set(f"{learning} {gaps} {times} {counts}".split())
    assert all(isinstance(v, float) for v in m.values())
    assert m["payload_reads"] == 2  # the replayed group was in the cache since it was trained fresh
    assert 0 < sum(m[t] for t in times.split()[:-1]) <= m["step_s"]
    assert m["scan_s"] > 0
    assert m["replay_kl"] > 0
    assert m["drift_noise"] < 1e-9
    first = results(client, Trained)[0].metrics
    assert first["engine_gap"] < 1e-9 and "drift_noise" not in first, "nothing was scanned for it"


def test_a_scan_is_answered_under_the_current_version(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    feed(batch(0))
    feed(Scan(scan="right", step=1, ids=["0b", "gone", "0a"]))
    feed(Scan(scan="early", step=7, ids=["0a"]))
    work_off(loop)
    right, early = results(client, ScanResult)
    assert (right.scan, right.step, right.version) == ("right", 1, Version(0, 1))
    assert [r.id for r in right.records] == ["0b", "0a"]
    assert all(r.drift > 0 for r in right.records)  # one step away from its l_ref
    assert right.seconds > 0
    assert (early.scan, early.records) == ("early", [])
    assert pending(client) == 1  # the batch


def test_refused_groups_are_named_and_the_rest_is_trained(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    client.set(KEYS.payload("0b"), b"rubbish")
    feed(batch(0, replay=["never-stored-a-reference"]))
    work_off(loop)
    trained = results(client, Trained)[0]
    assert [r.id for r in trained.records] == ["0a"]
    assert trained.rejected == ["never-stored-a-reference", "0b"]
    assert client.xlen(KEYS.dead) == 2


def test_a_batch_of_refused_groups_only_is_still_a_step(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    before = state_of(loop)
    for id in ("0a", "0b"):
        client.set(KEYS.payload(id), b"rubbish")
    feed(batch(0))
    work_off(loop)
    trained = results(client, Trained)[0]
    assert (trained.version, trained.records) == (Version(0, 1), [])
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(loop), strict=True))


def test_a_batch_that_comes_twice_is_trained_once(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    for step in (0, 0, 1):
        feed(batch(step))
    work_off(loop)
    assert [t.step for t in results(client, Trained)] == [0, 1]
    assert pending(client) == 0


def test_what_makes_no_sense_is_buried_and_the_rest_goes_on(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    streams.add(client, KEYS.work, b"\xc1")
    feed(batch(0))
    work_off(loop)
    assert [t.step for t in results(client, Trained)] == [0]
    reasons = [f[b"reason"].decode() for _, f in client.xrange(KEYS.dead)]
    assert "not a valid message" in reasons[0]


def test_old_versions_are_deleted_as_new_ones_are_published(config: Config, client: Any, feed: Feed) -> None:
    loop = start(config)
    for step in range(4):
        feed(batch(step))
    work_off(loop)
    assert weights.published(config.weights_dir) == [Version(0, 3), Version(0, 4)]


def test_plain_grpo_writes_no_references(config: Config, client: Any, feed: Feed) -> None:
    plain = config.model_copy(update={"replay": config.replay.model_copy(update={"policy": "none"})})
    loop = start(plain)
    feed(batch(0))
    work_off(loop)
    assert client.keys(KEYS.reference("*")) == []


@pytest.mark.parametrize(("share", "warned"), [(0.9, False), (1.1, True)])
def test_an_engine_gap_above_a_tenth_of_tau_is_warned_of(
    config: Config, client: Any, feed: Feed, make_payload: Any, share: float, warned: bool
) -> None:
    loop = start(config)
    with_gap(client, make_payload, 0, share * config.replay.tau / 10)
    feed(batch(0))
    work_off(loop)
    assert results(client, Trained)[0].metrics["engine_gap"] == pytest.approx(share * config.replay.tau / 10, rel=0.01)
    told = [e["text"] for _, e in events.parse(client.xrange(KEYS.events)) if e["kind"] == "warning"]
    assert len(told) == warned
    assert all("the engine gap is 1.10e-03, and replay.tau / 10 is 1.00e-03" in text for text in told)


def with_gap(client: Any, make_payload: Any, step: int, gap: float) -> None:
    """The engine takes every token of the step's fresh groups to be this much less likely, squared."""
    for i, id in enumerate(batch(step).fresh):
        payload = make_payload(id, i, version=(0, step))
        client.set(KEYS.payload(id), encode_payload(replace(payload, l_gen=payload.l_gen - np.float32(gap**0.5))))


def gaps_told(client: Any) -> list[str]:
    texts = [e["text"] for _, e in events.parse(client.xrange(KEYS.events)) if e["kind"] == "warning"]
    return [text for text in texts if "engine gap" in text]


def test_an_engine_gap_that_stays_is_told_once_and_again_when_it_has_doubled() -> None:
    told = OnceEach()
    assert [told.is_news("a", figure) for figure in (1.0, 1.0, 1.9, 2.0, 3.0, 1.0)] == [
        True,
        *2 * [False],
        True,
        *2 * [False],
    ]
    assert told.is_news("b", 1.0), "another cause"


def test_a_gap_that_stays_is_warned_of_in_the_first_step_alone(
    config: Config, client: Any, feed: Feed, make_payload: Any
) -> None:
    still = config.model_copy(update={"learner": config.learner.model_copy(update={"lr": 1e-12})})
    loop = start(still)
    for step in range(3):
        with_gap(client, make_payload, step, config.replay.tau)
        feed(batch(step))
    work_off(loop)
    gaps = [trained.metrics["engine_gap"] for trained in results(client, Trained)]
    assert gaps == pytest.approx(3 * [config.replay.tau], rel=0.1)
    assert len(gaps_told(client)) == 1


@pytest.mark.parametrize("policy", ["none", "naive"])
def test_without_a_gate_no_gap_eats_into_it(
    config: Config, client: Any, feed: Feed, make_payload: Any, policy: str
) -> None:
    ungated = config.model_copy(update={"replay": config.replay.model_copy(update={"policy": policy})})
    loop = start(ungated)
    assert REGISTRY.get_sample_value("headrace_learner_engine_gap_limit") == 0
    with_gap(client, make_payload, 0, config.replay.tau)
    feed(batch(0))
    work_off(loop)
    told = results(client, Trained)[0].metrics
    assert told["engine_gap"] > config.replay.tau / 2 and told["engine_gap_limit"] == 0
    assert gaps_told(client) == []


def spoil(loop: Loop, monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """The gradients of these steps are not finite, as one that overflowed on its way back is not."""
    accumulate = loop.trainer.optimiser.accumulate

    def spoilt() -> None:
        accumulate()
        if loop.step in steps:
            for master in loop.trainer.optimiser.masters:
                assert master.grad is not None
                master.grad.mul_(torch.inf)

    monkeypatch.setattr(loop.trainer.optimiser, "accumulate", spoilt)


def test_a_step_with_a_gradient_that_is_not_finite_moves_nothing_says_so_and_the_run_goes_on(
    config: Config, client: Any, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start(config)
    spoil(loop, monkeypatch, {0})
    before = state_of(loop)
    feed(batch(0))
    work_off(loop)
    assert all(map(torch.equal, state_of(loop), before))
    feed(batch(1))
    work_off(loop)
    assert not all(map(torch.equal, state_of(loop), before))
    trained = results(client, Trained)
    assert [t.metrics["updates_left_out"] for t in trained] == [1.0, 0.0]
    assert [t.version.number for t in trained] == [1, 2]
    assert all(np.isfinite(list(t.metrics.values())).all() for t in trained)
    [warning] = read_state(client, "test")["warnings"]
    assert sentence(warning) == (
        "learner: step 0: 1 of 1 updates had a gradient that is not finite, and moved nothing; the run ends after more "
        "than 5 of them in a row (learner.max_bad_gradients)."
    )


def test_a_run_whose_gradients_stay_bad_ends_with_a_sentence(
    config: Config, client: Any, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = config.learner.model_copy(update={"max_bad_gradients": 1})
    loop = start(config.model_copy(update={"learner": learner}))
    spoil(loop, monkeypatch, {0, 1})
    feed(batch(0))
    feed(batch(1))
    with pytest.raises(UserError, match="2 updates in a row"):
        work_off(loop)
    assert len(results(client, Trained)) == 1
