"""Memory of freed tensors goes back to the system.

Steps and rollouts allocate and free tensors of every size. glibc keeps up to 32 MB of each in its heap, in pieces that
the next ones do not fit into: with micro-batches of 8,192 tokens the demo's learner holds 0.75 GiB between two steps
after thirty of them, and 0.37 where they are given back.
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h
EVERY = 10  # the pages are made anew as they are needed, which takes a learner about a tenth of a second


def give_back(turn: int) -> None:
    """In one turn of EVERY. Without effect where the C library is another."""
    if turn % EVERY == 0 and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def keep_freed() -> None:
    """Keep the pages of freed tensors for the next ones, until they are given back. For a process that trains.

    glibc returns what is larger than 32 MB at once, and the kernel fills it with zeros when a step asks for it again: a
    tenth of the time of a step on a CPU.
    """
    if tune := getattr(ctypes.CDLL(None), "mallopt", None):
        tune(M_MMAP_MAX, 0)
        tune(M_TRIM_THRESHOLD, 2**31 - 1)
