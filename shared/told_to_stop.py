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
    os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_leave_to_itself)
    threading.Thread(target=_listen, args=(heard, then), name="told-to-stop", daemon=True).start()


def _hold_back() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)


def _leave_to_itself() -> None:
    """What a child is told is not for us, from its first moment on."""
    signal.set_wakeup_fd(-1)
    _let_through()


def _listen(heard: int, then: Callable[[], None]) -> None:
    while os.read(heard, 1)[0] not in NUMBERS:
        pass
    then()
