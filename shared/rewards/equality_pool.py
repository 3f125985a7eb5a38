"""The processes that compare: started when needed, used by one caller at a time, killed when a comparison is slow.

math-verify stops a slow comparison with a signal, which works in a main thread only and not inside C code. A process
of its own can be killed whatever it does. A killed one is replaced at once, beside the next comparison rather than in
front of it: starting takes a second or two.

    idle --taken--> comparing --answer--> idle
                        '-----too slow, or died--> killed; a fresh one starts meanwhile
"""

import atexit
import enum
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from shared.errors import UserError

WORKERS = 2  # compare at once; a worker holds about 80 MB
START_S = 60.0


class NotCompared(Exception):
    """No worker was free, or had started, in time: it is not known whether the answer is right."""


class Verdict(enum.Enum):
    """What came of a comparison."""

    EQUAL = enum.auto()
    DIFFERENT = enum.auto()
    GIVEN_UP = enum.auto()  # it took too long, or the process died of it


class Worker:
    """One comparing process."""

    def __init__(self) -> None:
        """Start it and return; it answers when its imports are done."""
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shared.rewards.equality_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # a Ctrl-C of the run ends it through its pipe, not in the middle of an answer
        )
        self._ready = False
        self.broken = False
        with suppress(OSError):  # dead already: it is found out when it is asked
            self._send({})  # the answer to it says that the imports are done

    def ready(self) -> bool:
        """Whether it would answer at once."""
        return self._ready or bool(self._process.stdout and select.select([self._process.stdout], [], [], 0)[0])

    def ask(self, answer: str, target: str, timeout_s: float, patience_s: float | None = None) -> Verdict:
        """Compare; GIVEN_UP, and the worker is broken, when that takes longer than `timeout_s` or kills it.

        Raises NotCompared where the process has not started within `patience_s` (at most, and for None, START_S): it
        goes on starting. UserError where it died of that. Neither says anything about any answer.
        """
        if not self._ready:
            self._wait_until_up(START_S if patience_s is None else min(max(patience_s, 0.0), START_S))
        try:
            self._send({"answer": answer, "target": target, "timeout_s": timeout_s})
            return Verdict.EQUAL if self._receive(timeout_s)["equal"] else Verdict.DIFFERENT
        except (TimeoutError, OSError, ValueError):
            self.broken = True
            return Verdict.GIVEN_UP

    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self.broken and self._process.poll() is None

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()

    def _wait_until_up(self, patience_s: float) -> None:
        try:
            self._receive(patience_s)
        except TimeoutError:
            raise NotCompared("no worker had started by the deadline") from None
        except (OSError, ValueError):
            self.broken = True
            raise UserError(
                "math-verify does not start, so no mathematical answer can be scored: "
                "`python -c 'import math_verify'` says why."
            ) from None
        self._ready = True

    def _send(self, question: dict[str, object]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self, timeout_s: float) -> dict[str, bool]:
        """One line. TimeoutError after `timeout_s`, OSError where the process is gone."""
        assert self._process.stdout
        # One question is under way at a time, so at most one line is in the pipe and none in the buffer.
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise TimeoutError
        line = self._process.stdout.readline()
        if not line:
            raise OSError("the comparing process ended")
        return json.loads(line)


class Pool:
    """Up to WORKERS workers. The second is started only when the first is busy."""

    def __init__(self) -> None:
        self._reset()

    @contextmanager
    def worker(self, patience_s: float | None) -> Iterator[Worker]:
        """A worker for this caller alone. NotCompared when none is free within `patience_s`; None waits for ever."""
        if self._owner != os.getpid():  # a forked child must not share its parent's pipes
            self._reset()
        if find_spec("math_verify") is None:
            raise UserError("reward.kind = math needs the package math-verify: pip install 'headrace[math]'.")
        if not self._free.acquire(timeout=None if patience_s is None else max(patience_s, 0.0)):
            raise NotCompared("every worker was busy until the deadline")
        try:
            worker = self._take()
            try:
                yield worker
            finally:
                self._give_back(worker)
        finally:
            self._free.release()

    def stop(self) -> None:
        """End the idle workers; called at exit, when nobody compares any more."""
        if self._owner != os.getpid():
            return
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(WORKERS)
        self._idle: list[Worker] = []

    def _take(self) -> Worker:
        while True:
            with self._lock:
                self._idle.sort(key=Worker.ready)  # one that is still starting is taken last
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return Worker()
            if worker.alive():
                return worker
            worker.kill()

    def _give_back(self, worker: Worker) -> None:
        if not worker.alive():
            worker.kill()
            worker = Worker()
        with self._lock:
            self._idle.append(worker)


POOL = Pool()
atexit.register(POOL.stop)
