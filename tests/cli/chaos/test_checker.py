"""The checker on the log of real services: a clean one passes, and with each fault planted it names that fault."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.chaos.aof import AppendOnlyFile
from cli.chaos.checker import check
from cli.chaos.log import Added, Counted, Dropped, Fact, Noted, Put, Removed, facts
from shared.messages import Batch, GroupHeader, Hello, Record, Scan, ScanResult, Task, Trained, WeightsNotice, encode
from shared.versions import Version
from tests.cli.chaos.logs import TAU, Log, all_of, edited, first, made, message, planted, read, refused, settings

pytestmark = pytest.mark.slow


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("drift_only", "fail_rate", "variance", "uniform")]


@pytest.mark.parametrize("policy", ["headroom_only", "naive", "none", *SLOW])
def test_a_run_whose_services_crashed_keeps_every_rule(tmp_path: Path, policy: str) -> None:
    log = read(made(tmp_path, policy=policy))
    verdict = check(settings(policy=policy), log)
    assert verdict.broken == []
    assert (verdict.counts["steps"], verdict.counts["fresh"], verdict.counts["lost"]) == (14, 56, 0)
    assert verdict.counts["lineages"] == 3
    assert (verdict.counts["replayed"] > 10) == (policy != "none")
    if policy != "none":
        id = next(m.replay[0] for t in log for f in t if (m := message(f, Batch)) and m.replay)
        broken = check(settings(policy=policy), planted(log, lambda f: without(f, id))).broken
        assert any("and order and gate give" in text or "different stored groups are due" in text for text in broken)


@pytest.mark.parametrize("policy", ["dapo", "bapo", "exgrpo", "rollout_advantage", "trl_buffer"])
def test_a_policy_whose_choice_is_not_judged_is_held_to_the_rest(tmp_path: Path, policy: str) -> None:
    chosen: dict[str, Any] = {"policy": policy} | ({"select": 0} if policy == "exgrpo" else {})
    log, config = read(made(tmp_path, **chosen)), settings(**chosen)
    assert check(config, log).broken == []
    early, late = [fact for fact in all_of(log, Batch) if fact.message.fresh][:2]
    again = edited(late, fresh=[early.message.fresh[0], *late.message.fresh[1:]])
    refused(planted(log, lambda f: again if f is late else f), early.message.fresh[0], "and again in", config=config)


def test_the_log_holds_what_the_run_did(clean: Log) -> None:
    verdict = check(settings(), clean)
    assert verdict.broken == []
    c = verdict.counts
    assert c["batches"] == 14 and c["attempts"] > c["tasks"] >= 56 and c["scanned"] >= c["replayed"] > 10
    assert c["open"] == c["given_up"] == c["counted_twice"] == c["rejected"] == 0


def test_a_step_trained_twice_in_a_lineage_is_named(clean: Log) -> None:
    trained = first(clean, lambda f: message(f, Trained) is not None)
    again = edited(trained, metrics={"loss": 1.0})
    lineage = trained.message.version.lineage
    log = planted(clean, lambda f: [f, again] if f is trained else f)
    refused(log, f"step 0 was trained twice in lineage {lineage}")
    told = check(settings(), planted(clean, lambda f: [f, replace(f, id=b"1-1")] if f is trained else f))
    assert told.broken == []  # told again in the same words


def test_a_step_trained_without_a_batch_is_named(clean: Log) -> None:
    def unsent(fact: Fact) -> Fact | None:
        m = message(fact, Batch)
        return None if m and m.step == 3 else fact

    refused(planted(clean, unsent), "step 3 was trained, and no batch was sent for it")


def test_a_step_trained_again_by_a_learner_that_did_not_say_so_is_named(clean: Log) -> None:
    trained = first(clean, lambda f: message(f, Trained) is not None)
    again = edited(trained, version=Version(9, 1))
    refused([*clean, [again]], "step 0 was trained again in lineage 9, behind step 13")


def test_a_step_that_is_missing_from_the_weights_is_named(clean: Log) -> None:
    told = [m for t in clean for f in t if (m := message(f, Trained) or message(f, Hello))]
    steps = [m.step for m in told if isinstance(m, Trained)]
    # no learner says between the two that it is beyond the first
    pairs = [(m.step, n.step) for m, n in pairwise(told) if isinstance(m, Trained) and isinstance(n, Trained)]
    gone = next(step for step, after in pairs if after == step + 1 and steps.count(step) == steps.count(after) == 1)

    def skip(fact: Fact) -> Fact | None:
        m = message(fact, Trained)
        return None if m and m.step == gone else fact

    def forget(fact: Fact) -> Fact | None:
        return None if isinstance(fact, Noted) and fact.record["step"] == gone else fact

    log = planted(clean, skip)
    for each in (log, planted(log, forget)):
        refused(each, f"step {gone} was trained by no lineage")


def test_a_group_that_is_fresh_twice_is_named(clean: Log) -> None:
    batches = all_of(clean, Batch)
    early = batches[0].message
    late = next(f.message.step for f in batches if f.message.step > early.step)
    twice = early.fresh[0]

    def take_again(fact: Fact) -> Fact:
        m = message(fact, Batch)
        return edited(fact, fresh=[twice, *m.fresh[1:]]) if m and m.step == late else fact

    refused(planted(clean, take_again), f"group {twice} is fresh in step {early.step} and again in step {late}")


def test_a_step_with_two_batches_is_named(clean: Log) -> None:
    batch = first(clean, lambda f: bool(m := message(f, Batch)) and bool(m.replay))
    for other in (edited(batch, fresh=batch.message.fresh[::-1]), edited(batch, replay=[])):
        log = planted(clean, lambda f, other=other: [f, other] if f is batch else f)
        refused(log, f"step {batch.message.step} was given two different batches")


def test_what_a_service_cannot_read_is_a_dead_letter_of_the_log(tmp_path: Path) -> None:
    verdict = check(settings(), read(made(tmp_path, unreadable=("groups", "results"))))
    assert (verdict.broken, verdict.counts["dead_letters"]) == ([], 2)


def test_a_group_of_a_task_that_is_not_in_the_log_breaks_no_rule(clean: Log) -> None:
    group = first(clean, lambda f: bool((h := message(f, GroupHeader)) and h.usable))
    stranger = edited(replace(group, id=b"8-8"), id="stranger")
    assert check(settings(), [*clean[:20], [stranger], [Removed("groups", (b"8-8",))], *clean[20:]]).broken == []


def test_what_cannot_be_read_and_had_an_effect_is_missed(folder: Path, clean: Log) -> None:
    header = first(clean, lambda f: bool((h := message(f, GroupHeader)) and h.usable and not h.attempt)).message
    task = first(clean, lambda f: bool((m := message(f, Task)) and m.id == header.id)).message
    trained = all_of(clean, Trained)[-1].message
    batch = first(clean, lambda f: message(f, Batch) is not None).message
    for sent, words in (
        (task, [f"task {task.id} was dropped and never put on the stream"]),
        (header, [header.id, "dropped without a group"]),
        (trained, ["issued training tasks", f"{4 * trained.step} are trained"]),
        (batch, [f"step {batch.step} was trained, and no batch was sent"]),
    ):
        data = encode(sent)
        history = AppendOnlyFile(folder).transactions()
        cut = ([[word[:-1] if word == data else word for word in words] for words in commands] for commands in history)
        log = list(facts(cut, "judged"))
        assert any(isinstance(f, Added) and f.message is None for t in log for f in t)
        refused(log, *words)


def test_a_ledger_that_goes_back_is_named(clean: Log) -> None:
    lines = [f for t in clean for f in t if isinstance(f, Noted)]
    refused(planted(clean, lambda f: [f, lines[0]] if f is lines[3] else f), "counts step 0 behind step 3")


def test_a_ledger_that_differs_from_the_batch_is_named(clean: Log) -> None:
    line = first(clean, lambda f: isinstance(f, Noted) and len(f.record["replay"]) > 1)
    for field, kind in (("fresh", "fresh"), ("replay", "replayed")):
        other = Noted(line.record | {field: line.record[field][:-1]})
        log = planted(clean, lambda f, other=other: other if f is line else f)
        refused(log, f"the ledger's {kind} groups of step {line.record['step']} are not those of its batch")


def test_a_group_that_a_batch_holds_twice_is_named(clean: Log) -> None:
    batch = first(clean, lambda f: bool(m := message(f, Batch)) and bool(m.replay))
    for field in ("fresh", "replay"):
        ids = getattr(batch.message, field)
        twice = edited(batch, **{field: [*ids[:-1], ids[0], ids[0]]})
        log = planted(clean, lambda f, twice=twice: twice if f is batch else f)
        refused(log, f"the batch of step {batch.message.step} holds {ids[0]} twice")


def test_groups_that_replay_counts_twice_are_named(clean: Log) -> None:
    counted = [f for t in clean for f in t if isinstance(f, Counted)][-1]
    log = planted(clean, lambda f: Counted(counted.counters | {"trained_twice": 2}) if f is counted else f)
    refused(log, "counts 2 groups that were trained twice")
    assert check(settings(), log).counts["counted_twice"] == 2


def test_versions_that_shrink_are_named(clean: Log) -> None:
    notices = all_of(clean, WeightsNotice)
    refused(planted(clean, lambda f: [f, notices[0]] if f is notices[2] else f), "version 0.0 was published behind")
    other = edited(notices[2], digest="another")
    refused(planted(clean, lambda f: [f, other] if f is notices[2] else f), "two different contents")
    gone = [f for f in notices if f.message.version == Version(0, 1)]
    refused(planted(clean, lambda f: None if f in gone else f), "version 0.2", "one is missing")


def test_replay_that_goes_back_is_named(clean: Log) -> None:
    counts = [f for t in clean for f in t if isinstance(f, Counted)]
    early = next(f for f in counts if f.counters["step"] == 1)
    last = counts[-1]
    refused(planted(clean, lambda f: [f, early] if f is last else f), "went back from step 14 to step 1")


def test_replay_whose_version_goes_back_is_named(clean: Log) -> None:
    counted = [f for t in clean for f in t if isinstance(f, Counted)][-1]
    early = Counted(counted.counters | {"version": [0, 3]})
    newest = Version(*counted.counters["version"])
    refused(
        planted(clean, lambda f: [f, early] if f is counted else f), f"went back from version {newest} to version 0.3"
    )


def test_an_actor_that_goes_back_is_named(clean: Log) -> None:
    swaps: list[Fact] = [
        Added("events", b"1-1", {"kind": "swap", "actor": "a-1", "version": version}) for version in ("1.4", "0.9")
    ]
    refused([*clean, swaps], "a-1 went from version 1.4 to version 0.9")


def test_a_lineage_without_a_checkpoint_is_named(clean: Log) -> None:
    refused([*clean, [Added("results", b"1-1", Hello(version=Version(9, 7)))]], "lineage 9 begins at step 7")


def test_a_group_above_the_gate_is_named(clean: Log) -> None:
    id = next(m.replay[0] for t in clean for f in t if (m := message(f, Batch)) and m.replay)

    def drift_away(fact: Fact) -> Fact:
        m = message(fact, ScanResult)
        if not m:
            return fact
        return edited(fact, records=[drifted(r) if r.id == id else r for r in m.records])

    def drifted(record: Record) -> Record:
        return msgspec.structs.replace(record, sum_d2=2 * TAU * record.tokens)

    refused(planted(clean, drift_away), f"replays {id} at a Drift of 0.02, above tau 0.01")


def test_a_group_that_is_passed_over_is_named(clean: Log) -> None:
    id = next(m.replay[0] for t in clean for f in t if (m := message(f, Batch)) and m.replay)
    refused(planted(clean, lambda f: without(f, id)), "order and gate give", id)


def without(fact: Fact, id: str) -> Fact:
    """A batch that leaves this group out where it is replayed."""
    m = message(fact, Batch)
    return edited(fact, replay=[other for other in m.replay if other != id]) if m else fact


def test_a_group_that_is_passed_over_unscanned_is_named(clean: Log) -> None:
    batch = next(m for t in clean for f in t if (m := message(f, Batch)) and m.replay)

    def unscanned(fact: Fact) -> Fact:
        if (m := message(fact, ScanResult)) and m.step == batch.step:
            return edited(fact, records=[r for r in m.records if r.id != batch.replay[0]])
        if m := message(fact, Scan):
            return edited(fact, ids=[id for id in m.ids if id != batch.replay[0]])
        return fact

    refused(planted(clean, unscanned), f"passes over {batch.replay[0]}", "unscanned")


def test_a_batch_that_is_sent_at_the_wrong_step_is_named(clean: Log) -> None:
    def ahead(fact: Fact) -> Fact:
        m = message(fact, Batch)
        return edited(fact, step=14) if m and m.step == 13 else fact

    refused(planted(clean, ahead), "the batch of step 14 was sent when step 13 was the next")


def test_a_replayed_group_of_the_same_step_is_named(clean: Log) -> None:
    batch = first(clean, lambda f: message(f, Batch) is not None)
    mine = batch.message.fresh[0]
    refused(
        planted(clean, lambda f: edited(batch, replay=[mine]) if f is batch else f), "in the step that it is fresh in"
    )


def test_fresh_groups_out_of_order_are_named(clean: Log) -> None:
    batch = first(clean, lambda f: message(f, Batch) is not None)
    log = planted(clean, lambda f: edited(batch, fresh=batch.message.fresh[::-1]) if f is batch else f)
    refused(log, "step 0", "first in, first out")


def test_a_short_batch_and_a_group_that_has_not_come_are_named(clean: Log) -> None:
    batch = first(clean, lambda f: message(f, Batch) is not None)
    refused(
        planted(clean, lambda f: edited(batch, fresh=batch.message.fresh[:3]) if f is batch else f),
        "3 fresh groups of 4",
    )
    log = planted(clean, lambda f: edited(batch, fresh=["x", *batch.message.fresh[1:]]) if f is batch else f)
    refused(log, "takes x as fresh, which has not arrived")


def test_a_group_behind_the_lag_bound_is_named(clean: Log) -> None:
    id = [m for t in clean for f in t if (m := message(f, Batch))][-1].fresh[0]

    def old(fact: Fact) -> Fact:
        if (m := message(fact, Task)) and m.id == id:
            return edited(fact, min_version=3)  # else replay would have dropped the group
        m = message(fact, GroupHeader)
        if not (m and m.id == id and m.usable):
            return fact
        return edited(fact, version_min=Version(0, 3), version_max=Version(0, 13))

    refused(planted(clean, old), id, "more than 1 behind")


def test_a_buffer_that_is_not_first_in_first_out_is_named(clean: Log) -> None:
    evicted = first(clean, lambda f: isinstance(f, Dropped) and f.table == "buffer")
    refused(planted(clean, lambda f: None if f is evicted else f), "never appended or is evicted", evicted.field)
    stored = first(clean, lambda f: isinstance(f, Put) and f.table == "buffer")
    log = planted(clean, lambda f: None if isinstance(f, Put) and f.field == stored.field else f)
    refused(log, "rests on a buffer without")
