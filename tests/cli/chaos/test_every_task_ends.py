"""Faults of tasks, planted in the log of real services, each named; and what a server that lost writes excuses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.chaos.checker import check
from cli.chaos.log import Added, Counted, Dropped, Fact, Put, Removed
from shared.messages import TRAIN, GroupHeader, Hello, Task, Trained
from shared.versions import Version
from tests.cli.chaos.logs import (
    Log,
    all_of,
    edited,
    first,
    made,
    made_by_a_server_that_lost_writes,
    message,
    planted,
    read,
    refused,
    settings,
)

pytestmark = pytest.mark.slow


ONE_TRY = settings(max_attempts=1)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """The log of a run whose tasks are given up where their one attempt fails, and that is evaluated."""
    return read(made(tmp_path_factory.mktemp("failing"), 0.3, questions=8, max_attempts=1))


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """The log of such a run on a server that lost writes."""
    return read(made_by_a_server_that_lost_writes(tmp_path_factory.mktemp("behind"), max_attempts=1))


def counted(log: Log, change: Callable[[Counted, Counted], dict[str, object]]) -> Log:
    """The log with other counters: `change` gets those before and these, and gives what is different."""
    before = Counted({"lost": 0})

    def other(fact: Fact) -> Fact:
        nonlocal before
        if not isinstance(fact, Counted):
            return fact
        last, before = before, fact
        return Counted(fact.counters | change(last, fact))

    return planted(log, other)


def test_tasks_that_were_given_up_and_counted_break_no_rule(failing: Log) -> None:
    verdict = check(ONE_TRY, failing)
    assert verdict.broken == [] and verdict.counts["lost"] == verdict.counts["forgiven"] == 0
    assert verdict.counts["given_up"] == last_counted(failing).counters["lost"] > 3
    events = [fact.message for t in failing for fact in t if isinstance(fact, Added) and fact.stream == "events"]
    assert sum(event["failed"] for event in events if event["kind"] == "eval") > 0


def last_counted(log: Log) -> Counted:
    """The counters as the run left them."""
    return [fact for t in log for fact in t if isinstance(fact, Counted)][-1]


def test_a_count_of_lost_tasks_that_comes_late_is_named(failing: Log) -> None:
    late = counted(failing, lambda before, now: {"lost": before.counters["lost"]})  # one transaction behind
    refused(late, "replay counts 0 lost tasks, and", "were given up", config=ONE_TRY)


def test_a_count_of_lost_tasks_that_never_comes_is_named(failing: Log) -> None:
    never = counted(failing, lambda before, now: {"lost": 0})
    refused(never, "replay counts 0 lost tasks, and", "were given up", config=ONE_TRY)
    last = last_counted(failing)
    few = planted(failing, lambda f: Counted(last.counters | {"lost": last.counters["lost"] - 1}) if f is last else f)
    refused(
        few, f"replay counts {last.counters['lost'] - 1} lost tasks, and {last.counters['lost']} were", config=ONE_TRY
    )


def test_a_group_that_was_answered_and_not_stored_is_named(clean: Log) -> None:
    stored = first(clean, lambda f: isinstance(f, Put) and f.table == "fresh")
    log = planted(clean, lambda f: None if f is stored else f)
    refused(log, "issued training tasks", "which leaves 1.")
    assert check(settings(), log).counts["lost"] == 1


def test_a_task_that_is_counted_and_was_never_issued_is_named(clean: Log) -> None:
    log = counted(clean, lambda before, now: {"issued": now.counters["issued"] + 1})
    refused(log, "issued training tasks", "which leaves 1.")


def test_a_question_that_no_evaluation_counts_is_named(failing: Log) -> None:
    def less(fact: Fact) -> Fact:
        if not (isinstance(fact, Added) and fact.stream == "events" and fact.message["kind"] == "eval"):
            return fact
        return replace(fact, message=fact.message | {"failed": 0})

    refused(planted(failing, less), "the evaluation of version", "and 8 have ended", config=ONE_TRY)


def test_a_late_group_of_an_attempt_that_was_replaced_ends_no_task(clean: Log, failing: Log) -> None:
    for log, config in ((clean, settings()), (failing, ONE_TRY)):
        tasks = {
            f.message.id: f.message for f in all_of(log, Task) if f.message.kind == TRAIN and f.message.min_version
        }
        usable = {f.message.id for f in all_of(log, GroupHeader) if f.message.usable} if config is ONE_TRY else set()
        at, id = next((i, id) for i, t in enumerate(log) for id in ended(t) if id in tasks and id not in usable)
        group = next(f for f in all_of(log, GroupHeader) if f.message.usable)
        late = edited(
            replace(group, id=b"8-8"), id=id, number=tasks[id].number, version_min=Version(0, 0), correct=[True] * 3
        )
        told: list[Fact] = [Removed("groups", (b"8-8",)), *log[at]]
        assert check(config, [*log[:at], [late], told, *log[at + 1 :]]).broken == []


def ended(transaction: list[Fact]) -> list[str]:
    """The tasks that ended in it."""
    return [f.field for f in transaction if isinstance(f, Dropped) and f.table == "tasks"]


def test_a_task_whose_prompt_was_refused_is_given_up_at_once(clean: Log) -> None:
    log, id = given_up_at_once(clean)
    verdict = check(settings(), log)
    assert verdict.counts["given_up"] == 1
    assert not [sentence for sentence in verdict.broken if f"task {id}" in sentence]


def given_up_at_once(log: Log, **fields: object) -> tuple[Log, str]:
    """The log in which the first answer is the refusal of its prompt, and the task."""
    drop = first(log, lambda f: isinstance(f, Dropped) and f.table == "tasks")
    refusal = {"failure": "too long", "rewards": []} | fields

    def refuse(fact: Fact) -> Fact | None:
        if isinstance(fact, Put) and (fact.table, fact.field) == ("fresh", drop.field):
            return None
        mine = getattr(message(fact, GroupHeader), "id", "") == drop.field
        return edited(fact, **refusal) if mine else fact

    return planted(log, refuse), drop.field


def test_a_task_that_was_given_up_before_its_last_attempt_is_named(clean: Log) -> None:
    log, id = given_up_at_once(clean, rewards=[None])  # a failure, and no refusal
    refused(log, f"task {id} was dropped without a group, a reissue or its last attempt")


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


def test_what_the_learner_knows_alone_is_forgiven_when_a_server_has_lost_writes(behind: Log) -> None:
    verdict = check(ONE_TRY, behind)
    assert verdict.broken == [] and verdict.passed
    assert verdict.counts["forgiven"] > 0 and verdict.counts["steps_untold"] >= 2
    assert verdict.counts["steps"] + verdict.counts["steps_untold"] == 14


def test_what_is_open_again_when_the_learner_resumes_behind_the_log_breaks_no_rule(tmp_path: Path) -> None:
    log = read(made_by_a_server_that_lost_writes(tmp_path, learner_too=True, max_attempts=1))
    verdict = check(ONE_TRY, log)
    assert verdict.broken == [] and verdict.passed
    assert verdict.counts["lineages"] == 2 and verdict.counts["steps_untold"] <= 1


def taken_in(log: Log) -> tuple[Any, int]:
    """The word of a learner that was ahead of replay, and the place of the transaction that goes on from there."""
    told = -1
    for fact in (fact for transaction in log for fact in transaction if isinstance(fact, Added)):
        if m := message(fact, Trained):
            told = m.step
        if (m := message(fact, Hello)) and m.version.number > told + 1:
            return fact, next(i for i, t in enumerate(log) for f in t if takes(f, fact.id))
    raise AssertionError("no learner was ahead")


def takes(fact: Fact, entry: bytes) -> bool:
    """Whether replay acknowledges this result."""
    return isinstance(fact, Removed) and fact.stream == "results" and entry in fact.ids


def test_a_count_that_the_learner_does_not_bear_out_is_named(behind: Log) -> None:
    word, _ = taken_in(behind)
    cursor = msgspec.structs.replace(word.message.cursor, lost=word.message.cursor.lost + 1)
    log = planted(behind, lambda f: edited(f, cursor=cursor) if f == word else f)
    refused(log, f"lost tasks, and {cursor.lost} were given up", config=ONE_TRY)


def test_a_task_that_is_still_to_be_trained_may_not_go_with_lost_writes(behind: Log) -> None:
    word, at = taken_in(behind)
    gone = next(f.field for f in behind[at] if isinstance(f, Dropped) and f.table == "tasks")
    cursor = word.message.cursor
    more = msgspec.structs.replace(cursor, untrained=sorted({*cursor.untrained, int(gone[1:])}))
    log = planted(behind, lambda f: edited(f, cursor=more) if f == word else f)
    refused(log, "lost tasks, and", "were given up", config=ONE_TRY)  # it can only have been given up
    refused(log, f"task {gone} was dropped", config=settings(max_attempts=2))


def test_a_count_that_nobody_knows_any_more_is_forgiven_once(behind: Log) -> None:
    word, at = taken_in(behind)
    log = planted(behind, lambda f: edited(f, cursor=None) if f == word else f)
    verdict, known = check(ONE_TRY, log), check(ONE_TRY, behind)
    assert verdict.counts["forgiven"] == known.counts["forgiven"]
    assert not [sentence for sentence in verdict.broken if "lost" in sentence]

    def one_more(place: int) -> Log:
        return [counted([t], lambda _, c: {"lost": c.counters["lost"] + 1})[0] if i == place else t
                for i, t in enumerate(log)]  # fmt: skip

    refused(one_more(at), "issued training tasks", "which leaves -1.", config=ONE_TRY)
    after = next(i for i, t in enumerate(log) if i > at and any(isinstance(f, Counted) for f in t))
    refused(one_more(after), "lost tasks, and", "were given up", config=ONE_TRY)


def test_a_stored_task_that_is_issued_again_is_named(clean: Log) -> None:
    drop = first(clean, lambda f: isinstance(f, Dropped) and f.table == "tasks")
    log = planted(clean, lambda f: [f, Put("tasks", drop.field, b"")] if f is drop else f)
    refused(log, drop.field, "issued again although its group is stored")


def test_a_task_that_is_issued_twice_is_named(clean: Log) -> None:
    task = first(clean, lambda f: message(f, Task) is not None)
    log = planted(clean, lambda f: [f, replace(task, id=b"9-9")] if f is task else f)
    refused(log, f"task {task.message.id} was issued as attempt 1 behind 1.")


def test_too_many_attempts_are_named(clean: Log) -> None:
    task = first(clean, lambda f: message(f, Task) is not None)
    refused(planted(clean, lambda f: edited(task, attempt=9) if f is task else f), task.message.id, "9 are allowed")


def test_an_open_task_that_was_never_put_on_the_stream_is_named(clean: Log) -> None:
    refused([*clean, [Put("tasks", "unsent", b"")]], "task unsent is open and was never put on the stream")


def test_a_lost_task_that_nobody_gave_up_is_named(clean: Log) -> None:
    counted = [f for t in clean for f in t if isinstance(f, Counted)][-1]
    log = planted(clean, lambda f: Counted(counted.counters | {"lost": 1}) if f is counted else f)
    refused(log, "counts 1 lost tasks, and 0 were given up")


def test_an_unfinished_run_may_have_open_tasks_and_a_finished_one_may_not(clean: Log) -> None:
    parts = (clean[:end] for end in range(len(clean) // 2, len(clean)))
    part = next(part for part in parts if check(settings(), part).counts["open"])
    assert check(settings(), part).broken == []
    end: list[Fact] = [Added("events", b"9-9", {"kind": "finished", "step": 14})]
    refused([*part, end], "the run has finished, and task", "is still open")
