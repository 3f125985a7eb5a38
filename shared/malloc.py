"""Memory of freed tensors goes back to the system.

Steps and rollouts allocate and free tensors of every size. glibc keeps up to 32 MB of each in its heap, in pieces that
the next ones do not fit into: on the demo a learner grew by 3 to 7 MiB a step, and a torch engine by a fifth of one.
"""

import ctypes

EVERY = 10  # the pages are made anew as they are needed, which takes a learner about a tenth of a second


def give_back(turn: int) -> None:
    """In one turn of EVERY. Without effect where the C library is another."""
    if turn % EVERY == 0 and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
