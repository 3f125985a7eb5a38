"""The checker on the log of real services: a clean one passes, and with each fault planted it names that fault."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.chaos.aof import AppendOnlyFile
from cli.chaos.checker import check
from cli.chaos.log import Added, Counted, Dropped, Fact, Noted, Put, Removed, facts
from cli.main import main
from cli.run import local_redis
from shared.cancellation import stop
from shared.config import Config, build
from shared.errors import UserError
from shared.messages import TRAIN, Batch, GroupHeader, Hello, Record, Scan, ScanResult, Task, Trained, WeightsNotice
from shared.redis_client import wait_until_up
from shared.versions import Version
from tests.replay.peers import PeerActor, PeerLearner
from tests.replay.test_service import new_replay

pytestmark = pytest.mark.slow

Log = list[list[Fact]]
CAPACITY, TAU = 10, 0.01


def settings(url: str = "", **replay: object) -> Config:
    """A run of 14 steps with replay, failures, and a group size that mixes outcomes."""
    tree: dict[str, Any] = {
        "run": {"name": "judged", "steps": 14},
        "redis": {"url": url},
        "learner": {"batch": 4},
        "replay": {"select": 2, "tau": TAU, "capacity": CAPACITY, "max_lag": 1, "scan_chunk": 3, "max_attempts": 9},
        "rollout": {"group_size": 3},
    }
    tree["replay"] |= replay
    return build(tree)


def made(folder: Path, fail_share: float = 0.1, **replay: object) -> Path:
    """Run replay with its peers, both crashing, on a server that keeps its history; the server's folder."""
    server = local_redis.prepare(folder, 0, keep_history=True)
    process = subprocess.Popen(server.command, stdout=subprocess.DEVNULL)
    try:
        wait_until_up(server.url, 20)
        asyncio.run(train(settings(server.url, **replay), fail_share))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return server.folder


async def train(config: Config, fail_share: float) -> None:
    """Replay with its peers to the end of the run; replay and learner die in turn when so many steps are trained."""
    learner, url = PeerLearner(config.redis.url, config), config.redis.url
    acting = [asyncio.create_task(PeerActor(url, config, seed, fail_share).run()) for seed in (1, 2)]
    serving, learning = asyncio.create_task(new_replay(config).run()), asyncio.create_task(learner.run())
    try:
        for trained in (2, 4, 7, 10, 12):
            async with asyncio.timeout(60):
                while len(learner.trained) < trained:
                    await asyncio.sleep(0.005)
            await stop(serving if trained % 3 == 1 else learning)
            if serving.done():
                serving = asyncio.create_task(new_replay(config).run())
            if learning.done():
                learning = asyncio.create_task(learner.run())
        await learner.until_finished(60)
    finally:
        await stop(serving, learning, *acting)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The server's folder behind such a run."""
    yield made(tmp_path_factory.mktemp("judged"))


@pytest.fixture(scope="module")
def clean(folder: Path) -> Log:
    """Its log."""
    return list(facts(AppendOnlyFile(folder).transactions(), "judged"))


def planted(log: Log, change: Callable[[Fact], Fact | list[Fact] | None]) -> Log:
    """The log with each fact put through `change`: another, several, or None for none."""
    out: Log = []
    for transaction in log:
        changed = [change(fact) for fact in transaction]
        out.append([f for c in changed for f in (c if isinstance(c, list) else [] if c is None else [c])])
    return out


def first(log: Log, wanted: Callable[[Fact], bool]) -> Any:
    """The first such fact."""
    return next(fact for transaction in log for fact in transaction if wanted(fact))


def message(fact: Fact, kind: type) -> Any:
    """Its message where it is an addition of this kind."""
    return fact.message if isinstance(fact, Added) and isinstance(fact.message, kind) else None


def all_of(log: Log, kind: type) -> list[Any]:
    """The additions of this kind."""
    return [fact for transaction in log for fact in transaction if message(fact, kind)]


def edited(fact: Any, **fields: object) -> Fact:
    """An addition with other fields in its message."""
    return replace(fact, message=msgspec.structs.replace(fact.message, **fields))


def refused(log: Log, *words: str) -> None:
    """The verdict has a sentence with all these words."""
    broken = check(settings(), log).broken
    assert any(all(word in sentence for word in words) for sentence in broken), broken[:5]


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("drift_only", "fail_rate", "variance", "uniform")]


@pytest.mark.parametrize("policy", ["headroom_only", "naive", "none", *SLOW])
def test_a_run_whose_services_crashed_keeps_every_rule(tmp_path: Path, policy: str) -> None:
    log = list(facts(AppendOnlyFile(made(tmp_path, policy=policy)).transactions(), "judged"))
    verdict = check(settings(policy=policy), log)
    assert verdict.broken == []
    assert (verdict.counts["steps"], verdict.counts["fresh"], verdict.counts["lost"]) == (14, 56, 0)
    assert verdict.counts["lineages"] == 3
    assert (verdict.counts["replayed"] > 10) == (policy != "none")
    if policy != "none":
        id = next(m.replay[0] for t in log for f in t if (m := message(f, Batch)) and m.replay)
        broken = check(settings(policy=policy), planted(log, lambda f: without(f, id))).broken
        assert any("and order and gate give" in text or "different stored groups are due" in text for text in broken)


def test_the_log_holds_what_the_run_did(clean: Log) -> None:
    verdict = check(settings(), clean)
    assert verdict.broken == []
    c = verdict.counts
    assert c["batches"] == 14 and c["attempts"] > c["tasks"] >= 56 and c["scanned"] >= c["replayed"] > 10
    assert c["open"] == c["given_up"] == c["counted_twice"] == c["rejected"] == 0


def test_tasks_that_were_given_up_and_counted_break_no_rule(tmp_path: Path) -> None:
    log = list(facts(AppendOnlyFile(made(tmp_path, 0.3, max_attempts=1)).transactions(), "judged"))
    verdict = check(settings(max_attempts=1), log)
    assert verdict.broken == [] and verdict.counts["lost"] == verdict.counts["forgiven"] == 0
    counted = [f for t in log for f in t if isinstance(f, Counted)][-1]
    assert verdict.counts["given_up"] == counted.counters["lost"] > 0
    few = planted(log, lambda f: Counted(counted.counters | {"lost": 1}) if f is counted else f)
    sentence = f"replay counts 1 lost tasks, and {verdict.counts['given_up']} were given up."
    assert check(settings(max_attempts=1), few).broken == [sentence]


def test_a_lost_task_is_named(clean: Log) -> None:
    header = first(clean, lambda f: bool((h := message(f, GroupHeader)) and h.usable)).message

    def lose(fact: Fact) -> Fact | None:
        mine = getattr(message(fact, GroupHeader), "id", "") == header.id
        return None if mine or fact == Dropped("tasks", header.id) else fact

    refused(planted(clean, lose), header.id, "is lost")
    assert check(settings(), planted(clean, lose)).counts["lost"] == 1


def test_a_task_dropped_without_a_group_is_named(clean: Log) -> None:
    header = first(clean, lambda f: bool((h := message(f, GroupHeader)) and h.usable)).message
    log = planted(clean, lambda f: None if getattr(message(f, GroupHeader), "id", "") == header.id else f)
    refused(log, header.id, "dropped without a group")


def test_what_a_server_that_lost_writes_excuses_ends_with_the_next_batch(clean: Log) -> None:
    headers = [h for t in clean for f in t if (h := message(f, GroupHeader)) and h.usable and h.kind == TRAIN]
    early, late = headers[4].id, headers[-1].id
    log = planted(clean, lambda f: None if getattr(message(f, GroupHeader), "id", "") in (early, late) else f)
    at = next(i for i, facts in enumerate(log) if Dropped("tasks", early) in facts)
    ahead = Hello(version=Version(0, 13))
    log[at] = [Removed("results", (b"9-9",)), *log[at]]
    log.insert(at, [Added("results", b"9-9", ahead)])
    verdict = check(settings(), log)
    dropped = [sentence for sentence in verdict.broken if "dropped without a group" in sentence]
    assert len(dropped) == 1 and late in dropped[0]
    assert (verdict.counts["lost"], verdict.counts["forgiven"]) == (1, 1)
    counted = [f for t in log for f in t if isinstance(f, Counted)][-1]
    refused(
        planted(log, lambda f: Counted(counted.counters | {"lost": 3}) if f is counted else f), "counts 3 lost tasks"
    )


def test_a_stored_task_that_is_issued_again_is_named(clean: Log) -> None:
    drop = first(clean, lambda f: isinstance(f, Dropped) and f.table == "tasks")
    log = planted(clean, lambda f: [f, Put("tasks", drop.field, b"")] if f is drop else f)
    refused(log, drop.field, "issued again although its group is stored")


def test_too_many_attempts_are_named(clean: Log) -> None:
    task = first(clean, lambda f: message(f, Task) is not None)
    refused(planted(clean, lambda f: edited(task, attempt=9) if f is task else f), task.message.id, "9 are allowed")


def test_an_open_task_that_was_never_put_on_the_stream_is_named(clean: Log) -> None:
    refused([*clean, [Put("tasks", "unsent", b"")]], "task unsent is open and was never put on the stream")


def test_a_lost_task_that_nobody_gave_up_is_named(clean: Log) -> None:
    counted = [f for t in clean for f in t if isinstance(f, Counted)][-1]
    log = planted(clean, lambda f: Counted(counted.counters | {"lost": 1}) if f is counted else f)
    refused(log, "counts 1 lost tasks, and 0 were given up")


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
    steps = [fact.message.step for fact in all_of(clean, Trained)]
    gone = next(step for step in sorted(steps)[len(steps) // 2 :] if steps.count(step) == 1)
    assert gone < max(steps), "after the last nothing is missing"

    def skip(fact: Fact) -> Fact | None:
        m = message(fact, Trained)
        return None if m and m.step == gone else fact

    refused(planted(clean, skip), f"step {gone} was trained by no lineage")


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
    batch = first(clean, lambda f: message(f, Batch) is not None)
    other = edited(batch, fresh=batch.message.fresh[::-1])
    refused(planted(clean, lambda f: [f, other] if f is batch else f), "step 0 was given two different batches")


def test_a_ledger_that_goes_back_is_named(clean: Log) -> None:
    lines = [f for t in clean for f in t if isinstance(f, Noted)]
    refused(planted(clean, lambda f: [f, lines[0]] if f is lines[3] else f), "counts step 0 behind step 3")


def test_a_ledger_that_differs_from_the_batch_is_named(clean: Log) -> None:
    line = first(clean, lambda f: isinstance(f, Noted) and f.record["step"] == 3)
    other = Noted(line.record | {"fresh": line.record["fresh"][::-1]})
    log = planted(clean, lambda f: other if f is line else f)
    refused(log, "the ledger's fresh groups of step 3 are not those of its batch")


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


def test_an_unfinished_run_may_have_open_tasks_and_a_finished_one_may_not(clean: Log) -> None:
    part = clean[: len(clean) // 2]
    verdict = check(settings(), part)
    assert verdict.broken == [] and verdict.counts["open"] > 0
    end: list[Fact] = [Added("events", b"9-9", {"kind": "finished", "step": 14})]
    refused([*part, end], "the run has finished, and task", "is still open")


def test_what_took_effect_together_is_whole_where_a_crash_cut_the_file_off(folder: Path, tmp_path: Path) -> None:
    whole = whole_log(folder)
    cut_off = set()
    for size in range(len(whole) // 2, len(whole) // 2 + 400, 29):
        log = AppendOnlyFile(holding(tmp_path, whole[:size]))
        verdict = check(settings(), facts(log.transactions(), "judged"))
        assert verdict.broken == [] and verdict.short > 0 and not verdict.passed
        cut_off.add(log.cut_off)
    assert len(cut_off) > 5 and min(cut_off) >= 0 and max(cut_off) < 5000


def whole_log(folder: Path) -> bytes:
    """The log as the server left it."""
    return next((folder / "appendonlydir").glob("*.incr.aof")).read_bytes()


def holding(folder: Path, log: bytes) -> Path:
    """A server's folder whose log is this."""
    (folder / "appendonlydir").mkdir(exist_ok=True)
    (folder / "appendonlydir" / "a.manifest").write_text("file a.incr.aof seq 1 type i\n")
    (folder / "appendonlydir" / "a.incr.aof").write_bytes(log)
    return folder


def run_folder(tmp_path: Path, log: bytes) -> Path:
    """The folder of a run of 14 steps with this log."""
    run_dir = tmp_path / "judged"
    (run_dir / "redis").mkdir(parents=True)
    (run_dir / "config.toml").write_text(settings().to_toml())
    holding(run_dir / "redis", log)
    return run_dir


def test_a_whole_log_passes_and_one_that_ends_early_does_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = whole_log(folder)
    run_dir = run_folder(tmp_path, whole)
    assert main(["chaos", "--check", str(run_dir)]) == 0
    assert "The durable log keeps every rule.\n" in capsys.readouterr().out
    holding(run_dir / "redis", whole[: len(whole) // 2])
    assert main(["chaos", "--check", str(run_dir)]) == 1
    said = capsys.readouterr().out
    assert "A kill has cut off the last" in said and "the run is not at its end: the log holds" in said
    assert main(["chaos", "--check", str(run_dir), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["finished"], found["broken"]) == (False, False, [])
    assert found["log"]["bytes_cut_off"] > 0


@pytest.mark.parametrize("damage", ["empty", "garbage", "hole", "digits", "zeros", "transaction"])
def test_a_log_that_is_damaged_is_refused(
    damage: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = whole_log(folder)
    middle = len(whole) // 2
    inside = whole.index(b"$", middle) + 1
    commit = whole.index(b"*1\r\n$4\r\nEXEC\r\n", middle)
    log, sentence = {
        "empty": (b"", "says nothing of run 'judged'"),
        "garbage": (bytes(range(256)) * 40, "is damaged at byte 0 of 10240"),
        "hole": (whole[:middle] + whole[middle + 333 :], "is damaged at byte"),
        "digits": (whole[:inside] + b"9999999" + whole[inside:], "is damaged at byte"),  # a word beyond the end
        "zeros": (whole + bytes(64), f"is damaged at byte {len(whole)}"),
        "transaction": (whole[:commit] + whole[commit + 14 :], "a transaction there is not whole"),
    }[damage]
    assert main(["chaos", "--check", str(run_folder(tmp_path, log))]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_a_history_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    log = AppendOnlyFile(tmp_path)
    with pytest.raises(UserError, match="holds no manifest"):
        list(log.transactions())
    holding(tmp_path, b"REDIS0011")
    with pytest.raises(UserError, match="has rewritten its log"):
        list(log.transactions())
    (tmp_path / "appendonlydir" / "a.manifest").write_text("file a.gone.aof seq 1 type i\n")
    with pytest.raises(UserError, match="is not whole without it"):
        list(log.transactions())


def test_removals_are_read_with_all_their_ids(clean: Log) -> None:
    assert any(isinstance(f, Removed) and len(f.ids) > 1 for t in clean for f in t)
