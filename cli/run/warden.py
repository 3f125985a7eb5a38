"""A small process that outlives the command and ends the process groups it was told of, should the command be killed.

    headrace --"+PGID", "-PGID" on a pipe--> warden    the pipe closes: SIGTERM to every group still listed, SIGKILL
                                                       after a while; then the same for what comes last ("^PGID": Redis)

A normal end removes every group first, so the warden finds nothing to do. Only the standard library: it starts in
milliseconds and costs a few megabytes for the length of the run.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

LAST_GRACE_S = 2.0
LEAVE_S = 0.5


class Warden:
    """The command's end of the pipe."""

    def __init__(self, grace_s: float) -> None:
        """`grace_s`: between SIGTERM and SIGKILL."""
        command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(grace_s)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    @property
    def pid(self) -> int:
        """Of the warden itself."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether it was killed: processes of a command that is killed would then be left behind."""
        return self._process.poll() is not None

    def watch(self, group: int, last: bool = False) -> None:
        """End this process group if the command dies; `last`: only when the others are gone."""
        self._tell(f"{'^' if last else '+'}{group}")

    def forget(self, group: int) -> None:
        """This process group has ended; its number may be somebody else's soon."""
        self._tell(f"-{group}")

    def close(self) -> None:
        """Nothing is left to watch."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what a warden that was killed was told last
            self._process.stdin.close()
        try:
            self._process.wait(timeout=LEAVE_S)
        except subprocess.TimeoutExpired:  # stopped, perhaps; it has nothing to do any more
            self._process.kill()
            self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed, which the session says: the run goes on without it
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()


def alive(group: int) -> bool:
    """Whether any process of the group is there."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _end(groups: list[int], grace_s: float) -> None:
    for group in groups:
        _signal(group, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(map(alive, groups)):
        time.sleep(0.1)
    for group in groups:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def main() -> None:
    """Follow standard input until it closes, then end what is still listed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, bool] = {}
    for line in sys.stdin:
        kind, group = line[0], int(line[1:])
        if kind == "-":
            groups.pop(group, None)
        else:
            groups[group] = kind == "^"
    _end([group for group, last in groups.items() if not last], float(sys.argv[1]))
    _end([group for group, last in groups.items() if last], LAST_GRACE_S)


if __name__ == "__main__":
    main()
