"""How many CPU threads a process takes by itself."""

import os


def share_of_cores(processes: int) -> int:
    """CPU threads of one of `processes` that share the cores this process may run on."""
    return max(1, len(os.sched_getaffinity(0)) // processes)
