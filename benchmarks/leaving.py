"""A child that Ctrl-C does not kill at once: it has folders to remove and processes of its own to end."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

LEAVES_S = 20.0


@contextmanager
def leaves_by_itself(child: subprocess.Popen[Any]) -> Iterator[None]:
    """Ctrl-C in here is passed on; the child is killed when it is there LEAVES_S seconds later, or at a second one.

    From a terminal the child has it already, so it must not mind a second SIGINT.
    """
    try:
        yield
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(LEAVES_S)
        child.kill()
        child.wait()
        raise
