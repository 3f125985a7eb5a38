"""Processes that answer questions which may never end: one caller at a time, killed when an answer is slow.

A process can be killed whatever it does; a thread cannot. A killed one is replaced at once, beside the next question
rather than in front of it: starting takes a second or two.

    starting --> idle --taken--> answering --answer--> idle
        '-----------------------------'-----too slow, or died--> killed; a fresh one starts meanwhile

A worker reads JSON lines and answers each with one, in one piece. The first line is empty ({}): by the answer to it
the slow imports are over.
"""

import json
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

START_S = 60.0
HANGS_S = 300.0  # a worker that has not started by then never will: a busy machine may take over a minute


class NotAnswered(Exception):
    """No worker was free, or had started, in time: nothing is known of the answer."""


class TooSlow(Exception):
    """The answer took too long, or the worker died of it."""


class StartFailed(Exception):
    """The worker died before it could be asked."""


class Worker:
    """One process of `python -m module`. `stderr` as subprocess takes it; None: this process's own."""

    def __init__(self, module: str, *words: str, stderr: int | None = subprocess.DEVNULL) -> None:
        """Start it and return; it answers when its imports are done."""
        root = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # a Ctrl-C of the run ends it through its pipe, not in the middle of an answer
        )
        self._ready, self._began = False, time.monotonic()
        self.broken = False
        with suppress(OSError):  # dead already: it is found out when it is asked
            self._send({})

    def ready(self) -> bool:
        """Whether it would answer at once."""
        return self._ready or bool(self._process.stdout and select.select([self._process.stdout], [], [], 0)[0])

    def answer(self, question: dict[str, Any], timeout_s: float, patience_s: float | None = None) -> dict[str, Any]:
        """Its answer. Raises TooSlow after `timeout_s`, or where it dies of the question: it is broken then.

        Raises NotAnswered where it has not started within `patience_s` (at most, and for None, START_S): it goes on
        starting, and is broken after HANGS_S. StartFailed where it died of that.
        """
        if not self._ready:
            self._wait_until_up(START_S if patience_s is None else min(max(patience_s, 0.0), START_S))
        try:
            self._send(question)
            return self._receive(timeout_s)
        except (TimeoutError, OSError, ValueError):
            self.broken = True
            raise TooSlow from None

    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self.broken and self._process.poll() is None

    def kill(self) -> None:
        """End it and what it has started, whatever they are doing."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with suppress(OSError):  # a question that it did not live to read is still to be written
                    pipe.close()

    def _wait_until_up(self, patience_s: float) -> None:
        try:
            answer = self._receive(patience_s)
        except TimeoutError:
            self.broken = time.monotonic() - self._began >= HANGS_S
            raise NotAnswered("no worker had started by the deadline") from None
        except (OSError, ValueError):
            self.broken = True
            raise StartFailed from None
        self._started(answer)
        self._ready = True

    def _started(self, answer: dict[str, Any]) -> None:
        """Look at the answer to the first line."""

    def _send(self, question: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        """One line. TimeoutError after `timeout_s`, OSError where the process is gone."""
        assert self._process.stdout
        # One question is under way at a time, so at most one line is in the pipe and none in the buffer.
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise TimeoutError
        line = self._process.stdout.readline()
        if not line:
            raise OSError("the worker ended")
        return json.loads(line)


W = TypeVar("W", bound=Worker)


class Pool(Generic[W]):
    """Up to `size` workers. The second is started only when the first is busy."""

    def __init__(self, make: Callable[[], W], size: int) -> None:
        self._make, self._size = make, size
        self._reset()

    @contextmanager
    def worker(self, patience_s: float | None) -> Iterator[W]:
        """A worker for this caller alone. NotAnswered when none is free within `patience_s`; None waits for ever."""
        if self._owner != os.getpid():  # a forked child must not share its parent's pipes
            self._reset()
        if not self._free.acquire(timeout=None if patience_s is None else max(patience_s, 0.0)):
            raise NotAnswered("every worker was busy until the deadline")
        try:
            worker = self._take()
            try:
                yield worker
            finally:
                self._give_back(worker)
        finally:
            self._free.release()

    def stop(self) -> None:
        """End the idle workers; called at exit, when nobody asks any more."""
        if self._owner != os.getpid():
            return
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(self._size)
        self._idle: list[W] = []

    def _take(self) -> W:
        while True:
            with self._lock:
                self._idle.sort(key=Worker.ready)  # one that is still starting is taken last
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return self._make()
            if worker.alive():
                return worker
            worker.kill()

    def _give_back(self, worker: W) -> None:
        if not worker.alive():
            worker.kill()
            worker = self._make()
        with self._lock:
            self._idle.append(worker)


def pipes() -> tuple["queue.SimpleQueue[str]", IO[str]]:
    """A worker's own ends: the lines that it is asked, and where its answers go.

    What else it prints goes to the log, its input is empty. When nobody can ask any more the process ends, whatever it
    is doing.
    """
    lines, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in lines:
            asked.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return asked, answers


def allow_seconds(seconds: float) -> None:
    """Let this process, a worker, compute for little more than `seconds` from now on.

    Whoever asks kills it when the time is up. Should that one have died in the meantime, the kernel does.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
