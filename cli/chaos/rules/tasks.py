"""Every admitted task ends as a stored group, a counted failure or a reissue; nothing else takes it out of the state.

issued (attempt a) --usable group filed--> stored
                   |--failure, or its entry gone--> issued again (attempt a + 1)
                   '--after the last attempt, or the prompt refused--> given up, counted in `lost`

A server that lost writes has replay go on from the learner's step. What became of the tasks by then stands in the
learner's word of it alone (the cursor of Hello): what rests on that is `forgiven`, in the transaction that takes it.
"""

from collections import Counter

from cli.chaos.log import Added, Counted, Dropped, Fact, Put, Removed
from shared.config import Config
from shared.messages import AGAIN, EVAL, TRAIN, Batch, GroupHeader, Hello, Task, Trained
from shared.versions import Version


class EveryTaskEnds:
    """See the module."""

    def __init__(self, config: Config) -> None:
        self.broken: list[str] = []
        self._attempts, self._max_lag = config.replay.max_attempts, config.replay.max_lag
        self._batch = config.learner.batch
        self._issued: dict[str, Task] = {}  # the last attempt of each task
        self._open: set[str] = set()  # replay:tasks
        self._fresh: set[str] = set()  # replay:fresh
        self._stored: set[str] = set()  # closed by a usable group
        self._again: set[str] = set()  # that may be issued anew, since the server has lost what became of them
        self._entries: dict[bytes, str] = {}  # of the stream, not acknowledged
        self._headers: dict[bytes, GroupHeader] = {}  # not filed yet, by entry
        self._results: dict[bytes, Hello | Trained] = {}  # not applied yet
        self._taken: dict[str, int] = {}  # group -> the step whose batch holds it
        self._step, self._version = 0, Version(-1, 0)
        self._lost = 0  # as replay has to count them
        self._astray = 0  # training tasks that are nowhere, and were told of
        self._asked: Counter[int] = Counter()  # questions that have ended, by round
        # of the transaction under way
        self._ends: dict[str, bool] = {}  # task -> whether a usable group ends it, or a failure
        self._ahead: Hello | None = None  # of a learner that is ahead of replay
        self.counts = {"tasks": 0, "attempts": 0, "groups": 0, "given_up": 0, "open": 0, "lost": 0, "forgiven": 0}

    def see(self, fact: Fact) -> None:
        """The next fact."""
        match fact:
            case Added("tasks", entry, Task() as task):
                self._issue(entry, task)
            case Added("groups", entry, GroupHeader() as header):
                self._headers[entry] = header
            case Added("results", entry, Hello() | Trained() as result):
                self._results[entry] = result
            case Added("work", _, Batch() as batch):
                self._taken |= dict.fromkeys(batch.fresh, batch.step)
            case Removed("tasks", entries):
                for entry in entries:
                    self._entries.pop(entry, None)
            case Removed("groups", entries):
                for header in [self._headers.pop(entry) for entry in entries if entry in self._headers]:
                    self._file(header)
            case Removed("results", entries):
                for result in [self._results.pop(entry) for entry in entries if entry in self._results]:
                    self._apply(result)
            case Put("tasks", id, _):
                if id in self._stored:
                    self.broken.append(f"task {id} was issued again although its group is stored.")
                self._open.add(id)
            case Put("fresh", id, _):
                self._fresh.add(id)
            case Dropped("tasks", id):
                self._drop(id)
            case Dropped("fresh", id):
                self._fresh.discard(id)
            case Added("events", _, {"kind": "eval", "round": int(round), "n": int(n), "failed": int(failed)}):
                if n + failed != self._asked[round]:
                    self.broken.append(
                        f"the evaluation of version {round} counts {n + failed} questions, and {self._asked[round]} "
                        "have ended."
                    )
            case Counted(counters):  # the last word of a transaction
                self._count(counters["issued"], counters["lost"], counters["refilled"])
                self._ends.clear()
                self._ahead = None

    def end(self, finished: bool) -> None:
        """What is open must be with an actor or on its way; in a finished run nothing is."""
        self.counts["open"] = len(self._open)
        somewhere = {*self._entries.values(), *(header.id for header in self._headers.values())}
        for id in sorted(self._open):
            task = self._issued.get(id)
            if task is None:
                self.broken.append(f"task {id} is open and was never put on the stream.")
            elif id not in somewhere:
                self.counts["lost"] += 1
                self.broken.append(
                    f"task {id}, attempt {task.attempt + 1}, is lost: neither on the stream, nor answered, nor issued "
                    "again."
                )
            elif finished and task.kind in (TRAIN, EVAL):
                self.broken.append(f"the run has finished, and task {id} is still open.")

    def _issue(self, entry: bytes, task: Task) -> None:
        before = self._issued.get(task.id)
        self.counts["tasks"] += before is None
        self.counts["attempts"] += 1
        anew = task.id in self._again and task.attempt == 0
        if before is not None and not anew and task.attempt != before.attempt + 1:
            self.broken.append(f"task {task.id} was issued as attempt {task.attempt + 1} behind {before.attempt + 1}.")
        self._again.discard(task.id)
        if task.attempt >= self._attempts:
            self.broken.append(f"task {task.id} was issued {task.attempt + 1} times, and {self._attempts} are allowed.")
        self._issued[task.id] = task
        self._entries[entry] = task.id

    def _file(self, header: GroupHeader) -> None:
        """The first that ends its task: what comes behind is a duplicate."""
        task = self._issued.get(header.id)
        if task is None or header.id not in self._open:
            return
        if header.usable and (task.kind == EVAL or header.version_min.number >= task.min_version):
            self._ends.setdefault(header.id, True)
        elif not header.usable and header.attempt == task.attempt and (header.refused or self._is_last(task)):
            self._ends.setdefault(header.id, False)

    def _is_last(self, task: Task) -> bool:
        return task.attempt + 1 >= self._attempts

    def _apply(self, result: Hello | Trained) -> None:
        """Where replay stands."""
        version = result.version
        if isinstance(result, Trained) and version.lineage >= self._version.lineage:
            self._version = max(self._version, version)
            self._step += result.step == self._step
        elif isinstance(result, Hello) and version >= self._version:
            self._version = version
            if version.number > self._step:
                self._step = version.number
                self._go_on_from(result)

    def _go_on_from(self, ahead: Hello) -> None:
        self._ahead = ahead
        if (cursor := ahead.cursor) is None:
            return
        self.counts["forgiven"] += abs(cursor.lost - self._lost)
        self._lost = cursor.lost
        numbers = {task.id: task.number for task in self._issued.values() if task.kind == TRAIN}
        to_come = {id for id, number in numbers.items() if number >= cursor.issued}
        self._stored -= to_come
        self._again = to_come | {id for id, number in numbers.items() if number in cursor.untrained}

    def _drop(self, id: str) -> None:
        self._open.discard(id)
        task = self._issued.get(id)
        if task is None:
            self._told(f"task {id} was dropped and never put on the stream.")
        elif self._ahead is not None and self._is_over(task, self._ahead):
            self.counts["forgiven"] += 1
        elif self._ends.get(id):
            self._stored.add(id)
            self.counts["groups"] += 1
            self._asked[task.round] += task.kind == EVAL
        elif id in self._ends or self._is_last(task):  # an entry that is gone leaves no group
            self._lost += task.kind == TRAIN
            self.counts["given_up"] += task.kind == TRAIN
            self._asked[task.round] += task.kind == EVAL
        elif task.kind in (TRAIN, EVAL):
            self._astray += task.kind == TRAIN
            self._told(f"task {id} was dropped without a group, a reissue or its last attempt.")

    def _is_over(self, task: Task, ahead: Hello) -> bool:
        """Whether a batch of the log, or the learner's word alone, has it trained or given up by now."""
        step, cursor = ahead.version.number, ahead.cursor
        if task.kind != TRAIN:
            return task.kind == AGAIN
        if self._taken.get(task.id, step) < step:
            return True
        return task.number not in cursor.untrained if cursor else task.min_version + self._max_lag < step

    def _count(self, issued: int, lost: int, refilled: int) -> None:
        """`lost` is exact; where nobody knows it any more, it is what the other numbers leave of the issued tasks."""
        if self._ahead is not None and self._ahead.cursor is None:
            self.counts["forgiven"] += abs(lost - self._lost)
        elif lost != self._lost:
            self.broken.append(f"replay counts {lost} lost tasks, and {self._lost} were given up.")
        self._lost = lost
        trained = self._step * self._batch
        running, here = [sum(self._kind(id) == TRAIN for id in ids) for ids in (self._open, self._fresh)]
        astray = issued - trained - lost - refilled - running - here
        if astray != self._astray:
            self.counts["lost"] += max(0, astray - self._astray)
            self.broken.append(
                f"of {issued} issued training tasks {trained} are trained, {lost} lost, {refilled} refilled, {running} "
                f"running and {here} here, which leaves {astray}."
            )
        self._astray = astray

    def _kind(self, id: str) -> str:
        return self._issued[id].kind if id in self._issued else ""

    def _told(self, sentence: str) -> None:
        self.counts["lost"] += 1
        self.broken.append(sentence)
