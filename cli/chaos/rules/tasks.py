"""Every admitted task ends as a stored group, a counted failure or a reissue; nothing else takes it out of the state.

issued (attempt a) --usable group filed--> stored
                   |--failure, or its entry gone--> issued again (attempt a + 1)
                   '--after the last attempt--> given up, counted in `lost`
"""

from cli.chaos.log import Added, Counted, Dropped, Fact, Put, Removed
from shared.config import Config
from shared.messages import EVAL, TRAIN, Batch, GroupHeader, Hello, Task, Trained


class EveryTaskEnds:
    """See the module."""

    def __init__(self, config: Config) -> None:
        self.broken: list[str] = []
        self._attempts = config.replay.max_attempts
        self._issued: dict[str, Task] = {}  # the last attempt of each task
        self._open: set[str] = set()  # replay:tasks
        self._usable: set[str] = set()
        self._stored: set[str] = set()  # closed by a usable group
        self._entries: dict[bytes, tuple[str, int]] = {}  # of the stream, not acknowledged
        self._unread: dict[bytes, str] = {}  # headers that replay has not filed, by entry
        self._given_up = 0
        self._results: dict[bytes, Hello | Trained] = {}  # not applied yet
        self._step, self._lost = 0, 0
        # the server lost writes, and replay goes on at the learner's step, and cursor: forgiven until its next batch
        self._went_back, self._sent = False, False
        self._unknown = 0  # lost tasks of which the writes that are left say nothing
        self.counts = {"tasks": 0, "attempts": 0, "groups": 0, "given_up": 0, "open": 0, "lost": 0, "forgiven": 0}

    def see(self, fact: Fact) -> None:
        """The next fact."""
        match fact:
            case Added("tasks", id, Task() as task):
                self._issue(id, task)
            case Added("groups", id, GroupHeader() as header):
                self._unread[id] = header.id
                task = self._issued.get(header.id)
                is_old = task is not None and header.version_min.number < task.min_version  # and is dropped
                if header.usable and not is_old:
                    self.counts["groups"] += header.id not in self._usable
                    self._usable.add(header.id)
            case Added("results", id, Hello() | Trained() as result):
                self._results[id] = result
            case Removed("tasks", ids):
                for id in ids:
                    self._entries.pop(id, None)
            case Removed("groups", ids):
                for id in ids:
                    self._unread.pop(id, None)
            case Removed("results", ids):
                for result in [self._results.pop(id) for id in ids if id in self._results]:
                    self._apply(result)
            case Put("tasks", id, _):
                if id in self._stored:
                    self.broken.append(f"task {id} was issued again although its group is stored.")
                self._open.add(id)
            case Dropped("tasks", id):
                self._drop(id)
            case Added("work", _, Batch()):
                self._sent = True
            case Counted(counters):  # the last word of a transaction
                self._count(counters["lost"])

    def end(self, finished: bool) -> None:
        """What is open must be with an actor or on its way; in a finished run nothing is."""
        self.counts["given_up"], self.counts["open"] = self._given_up, len(self._open)
        somewhere = {id for id, _ in self._entries.values()} | set(self._unread.values())
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

    def _apply(self, result: Hello | Trained) -> None:
        if isinstance(result, Trained):
            self._step += result.step == self._step
        elif result.version.number > self._step:
            self._went_back, self._sent, self._step = True, False, result.version.number

    def _issue(self, entry: bytes, task: Task) -> None:
        before = self._issued.get(task.id)
        self.counts["tasks"] += before is None
        self.counts["attempts"] += 1
        if task.attempt >= self._attempts:
            self.broken.append(f"task {task.id} was issued {task.attempt + 1} times, and {self._attempts} are allowed.")
        self._issued[task.id] = task
        self._entries[entry] = (task.id, task.attempt)

    def _drop(self, id: str) -> None:
        self._open.discard(id)
        if id in self._usable:
            self._stored.add(id)
            return
        task = self._issued.get(id)
        if task is not None and task.attempt + 1 >= self._attempts:
            self._given_up += task.kind == TRAIN
        elif self._went_back:
            self.counts["forgiven"] += 1
        elif task is None or task.kind in (TRAIN, EVAL):
            self.counts["lost"] += 1
            self.broken.append(f"task {id} was dropped without a group, a reissue or its last attempt.")

    def _count(self, lost: int) -> None:
        before, self._lost = self._lost, lost
        expected = self._given_up + self._unknown
        if self._went_back:
            self.counts["forgiven"] += abs(lost - expected)
            self._unknown = lost - self._given_up
            self._went_back = not self._sent
        elif lost not in (before, expected):
            self.broken.append(f"replay counts {lost} lost tasks, and {expected} were given up.")
