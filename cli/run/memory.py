"""How much memory the run takes: PSS of every process and of what they started in turn.

PSS counts a page shared by n processes as 1/n in each, so the sum over processes is what they take together. Where the
kernel shows no PSS the resident size stands in, which counts shared pages several times.
"""

from collections.abc import Iterable
from pathlib import Path

import psutil


def together(pids: Iterable[int]) -> tuple[int, str]:
    """(bytes of these processes and their descendants, "PSS", or "RSS" where any of them shows no PSS)."""
    total, kind = 0, "PSS"
    for pid in _with_descendants(pids):
        size = _pss(pid)
        if size is None:
            size, kind = _rss(pid), "RSS"
        total += size
    return total, kind


def _with_descendants(pids: Iterable[int]) -> set[int]:
    found: set[int] = set()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found |= {pid, *(child.pid for child in process.children(recursive=True))}
        except psutil.Error:
            continue
    return found


def _pss(pid: int) -> int | None:
    """Bytes; 0 for a process that has just ended, None where the kernel does not say."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0 if Path("/proc/self/smaps_rollup").exists() else None
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _rss(pid: int) -> int:
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0
