"""Memory of freed tensors goes back to the system."""

import ctypes
import random
import subprocess
import sys

import psutil
import pytest
import torch

from shared import malloc

MIB = 2**20


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library has no malloc_trim")
def test_what_freed_tensors_leave_between_those_in_use_is_given_back():
    rng, kept = random.Random(0), []
    for _ in range(20):
        freed = [torch.zeros(rng.randrange(10_000, 1_000_000)) for _ in range(40)]
        kept.append(torch.zeros(5_000))
        del freed
    before = resident()
    malloc.give_back(malloc.EVERY + 1)
    assert abs(before - resident()) < MIB
    malloc.give_back(malloc.EVERY)
    assert before - resident() > 20 * MIB


STEPS = """
import resource, torch
from shared import malloc
if {keep}: malloc.keep_freed()
for step in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(10_000_000 + 1_000_000 * i) for i in range(5)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_a_process_that_trains_asks_for_few_new_pages_once_it_has_made_some_steps():
    new = [
        int(subprocess.run([sys.executable, "-c", STEPS.format(keep=keep)], capture_output=True, check=True).stdout)
        for keep in (False, True)
    ]
    assert new[0] > 10 * new[1], new


def resident() -> int:
    """Bytes of this process in memory."""
    return psutil.Process().memory_info().rss
