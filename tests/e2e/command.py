"""`headrace` as a process of its own, and every process that comes of it, found by a mark in their environment.

Redis writes its title over its environment: it is known by where it works, a folder below the command's.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
ATLAS = REPOSITORY / "examples" / "atlas"
MARK = "END_TO_END_TEST"  # inherited by everything the command starts, whoever its parent is later
STOP_S = 10.0  # what is promised for Ctrl-C and for a command that is killed


class Command:
    """`headrace WORDS...`, run in `folder`, which gets its output."""

    def __init__(self, folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> None:
        self.mark, self.folder = secrets.token_hex(8), folder.resolve()
        self.stdout, self.stderr = folder / f"{self.mark}.out", folder / f"{self.mark}.err"
        # what a developer has set in this shell must not reach the run
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cli.main", *words],
                cwd=folder,
                env={**inherited, "PYTHONPATH": str(REPOSITORY), MARK: self.mark, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C in a test is sent to the command alone, as from its own terminal
            )

    @property
    def said(self) -> str:
        """Everything it wrote."""
        return self.stdout.read_text() + self.stderr.read_text()

    def processes(self) -> list[psutil.Process]:
        """Whatever is alive of it: the command, the services, Redis, and what those started.

        Of several commands in one folder each has every Redis below it.
        """
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if self._is_ours(process) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _is_ours(self, process: psutil.Process) -> bool:
        if mark := process.environ().get(MARK):
            return mark == self.mark
        return self.folder in Path(process.cwd()).parents

    def service(self, name: str) -> psutil.Process | None:
        """The process of `services.<name>`; of several the oldest."""
        for process in sorted(self.processes(), key=lambda p: p.pid):
            with suppress(psutil.Error):
                if f"services.{name}" in process.cmdline():
                    return process
        return None

    def wait(self, within_s: float) -> int:
        """The exit status."""
        try:
            return self.process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s:g} s:\n{self.said}") from None

    def wait_until(self, condition: Callable[[], bool], what: str, within_s: float) -> None:
        """Wait for something to become true while the command runs."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert self.process.poll() is None, f"it ended with {self.process.returncode} before {what}:\n{self.said}"
            assert time.monotonic() < deadline, f"no {what} within {within_s:g} s:\n{self.said}"
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command itself."""
        self.process.send_signal(number)

    def assert_gone(self, within_s: float = 0.0) -> None:
        """Nothing of it is left, at the latest after `within_s`."""
        deadline = time.monotonic() + within_s
        while left := self.processes():
            assert time.monotonic() < deadline, f"still there after {within_s:g} s: {[_words(p) for p in left]}"
            time.sleep(0.1)

    def kill(self) -> None:
        """End all of it, whatever state it is in."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        self.process.wait()


def _words(process: psutil.Process) -> str:
    """What it runs; it may end while it is asked."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline()[-2:])
    return f"process {process.pid}"


def overrides(**sections: Mapping[str, object]) -> list[str]:
    """`learner={"lr": 1e-3}` as `--learner.lr=0.001`; repr is what TOML reads back for numbers."""
    words = []
    for section, values in sections.items():
        for key, value in values.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words.append(f"--{section}.{key}={text}")
    return words
