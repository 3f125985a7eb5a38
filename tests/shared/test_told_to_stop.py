"""A process that is told to stop ends, also where a call of it never returns."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.slow

HANGS = """
import asyncio, ctypes, os, signal, time
from services.learner.stop import Stop
from shared import service

libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(128)
libc.pthread_mutex_init(lock, None)
libc.pthread_mutex_lock(lock)
service.LEAVE_S = 1.0

def hang():
    print("hangs ", flush=True)
    libc.pthread_mutex_lock(lock)  # as a kernel or a dead disk does: no signal interrupts it

async def in_the_loop(config):
    hang()

async def in_a_thread(config):
    await asyncio.to_thread(hang)
"""
STATES = {
    "a call of the learner": "Stop(grace_s=2.0).on_signals(); hang()",
    "a call in a service's loop": "service.run_service('x', in_the_loop)",
    "a thread of a service": "service.run_service('x', in_a_thread)",
}


@pytest.mark.parametrize(
    ("state", "number"), [(state, signal.SIGTERM) for state in STATES] + [("a thread of a service", signal.SIGINT)]
)
def test_a_call_that_never_returns_keeps_no_process(state: str, number: signal.Signals) -> None:
    with started(STATES[state]) as process:
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(10) == 0
        assert time.monotonic() - began > 0.9, "it had its second to leave by itself"


def test_a_signal_to_a_forked_child_is_not_taken_for_ones_own() -> None:
    work = """
Stop(grace_s=1.1).on_signals()
if not (child := os.fork()):
    time.sleep(2)
    os._exit(0)
print("hangs", child, flush=True)
time.sleep(1.5)
os._exit(7)
"""
    with started(work) as process:
        assert process.stdout
        os.kill(int(process.stdout.readline()), signal.SIGTERM)
        assert process.wait(10) == 7


@contextmanager
def started(work: str) -> Iterator[subprocess.Popen[str]]:
    """A process that does this, once it is in the midst of it."""
    process = subprocess.Popen([sys.executable, "-c", HANGS + work], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.read(6) == "hangs "
        yield process
    finally:
        process.kill()
        process.communicate()
