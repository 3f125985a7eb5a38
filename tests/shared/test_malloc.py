"""Memory of freed tensors goes back to the system."""

import ctypes
import random

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


def resident() -> int:
    """Bytes of this process in memory."""
    return psutil.Process().memory_info().rss
