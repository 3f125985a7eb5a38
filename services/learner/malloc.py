"""Memory of freed tensors goes back to the system.

A step allocates and frees tensors of every size, as its rollouts are long. glibc keeps up to 32 MB of each in its heap,
in pieces that the next step's do not fit into, and the process grew by 3 to 7 MiB a step on the demo.
"""

import ctypes

EVERY = 10  # steps; the pages are made anew as they are needed, which takes about a tenth of a second


def give_back() -> None:
    """Without effect where the C library is another."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
