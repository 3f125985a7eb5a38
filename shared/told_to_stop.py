"""SIGTERM and SIGINT, heard by a thread.

Python runs a handler between two steps of the main thread's Python alone: one that is in a call which does not return,
as of a kernel or of a disk that hangs, would never hear of it.
"""

import os
import signal
import threading
from collections.abc import Callable

NUMBERS = (signal.SIGTERM, signal.SIGINT)


def when_told_to_stop(then: Callable[[], None]) -> None:
    """Call `then` once, from a thread of its own, at the first of these signals; later ones are ignored.

    To be called in the main thread.
    """
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    for number in NUMBERS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # what a child is told is not for us
    threading.Thread(target=_listen, args=(heard, then), name="told-to-stop", daemon=True).start()


def _listen(heard: int, then: Callable[[], None]) -> None:
    while os.read(heard, 1)[0] not in NUMBERS:
        pass
    then()
