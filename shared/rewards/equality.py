"""Whether two mathematical answers are equal: numbers here, everything else by math-verify in a worker process.

math-verify stops a slow comparison with a signal, which works in a main thread only and not inside C code. So
it runs in a process of its own that is killed when the time is up; an expression made to be slow costs its time
limit and a restart.
"""

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

from shared.errors import UserError

NUMBER = re.compile(r"-?\$?(\d{1,3}(,\d{3})+|\d+)?(\.\d*)?([eE][+-]?\d{1,3})?")
START_S = 60.0


def equal(answer: str, target: str, timeout_s: float = 5.0) -> bool:
    """Whether `answer` is mathematically `target`; False where it cannot be read or compared in `timeout_s`.

    Safe to call from any thread; comparisons that need the worker take turns. UserError where math-verify is
    missing.
    """
    answer, target = _bare(answer), _bare(target)
    if answer == target:
        return bool(answer)
    left, right = number(answer), number(target)
    if left is not None and right is not None:
        both_whole = left == left.to_integral_value() and right == right.to_integral_value()
        # Fractions that differ may still be equal to math-verify's precision.
        if left == right or both_whole:
            return left == right
    return _WORKER.ask(answer, target, timeout_s)


def number(text: str) -> Decimal | None:
    """A plain decimal number; thousands commas, a dollar sign and an exponent are allowed; None for anything
    else.
    """
    match = NUMBER.fullmatch(text)
    if match is None or not (match.group(1) or len(match.group(3) or "") > 1):
        return None
    return Decimal(text.replace("$", "").replace(",", ""))


def _bare(text: str) -> str:
    return " ".join(text.strip().strip("$").replace("\\$", "").split())


class _Worker:
    """The comparing process: started when first needed, restarted after it was killed or died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, answer: str, target: str, timeout_s: float) -> bool:
        with self._lock:
            process = self._running()
            question = json.dumps({"answer": answer, "target": target}) + "\n"
            try:
                reply = _exchange(process, question.encode(), timeout_s)
            except (TimeoutError, OSError, ValueError):
                self.stop()
                return False
            return bool(reply["equal"])

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        # A forked child must not share its parent's pipes.
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            if self._owner == os.getpid():
                self.stop()
            if find_spec("math_verify") is None:
                raise UserError("reward.kind = math needs the package math-verify: pip install 'headrace[math]'.")
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
            self._owner = os.getpid()
            _exchange(self._process, b"{}\n", START_S)
        return self._process


def _exchange(process: subprocess.Popen[bytes], question: bytes, timeout_s: float) -> dict[str, bool]:
    """Send one line, read one. TimeoutError after `timeout_s`, OSError where the process is gone."""
    assert process.stdin and process.stdout
    process.stdin.write(question)
    process.stdin.flush()
    # One question is under way at a time, so at most one line is in the pipe and none in the buffer.
    if not select.select([process.stdout], [], [], timeout_s)[0]:
        raise TimeoutError
    line = process.stdout.readline()
    if not line:
        raise OSError("the comparing process ended")
    return json.loads(line)


_WORKER = _Worker()
atexit.register(_WORKER.stop)
