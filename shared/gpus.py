"""Which GPUs this process may use, by UUID: an index means another device in every container, a UUID never does.

CUDA_VISIBLE_DEVICES, where it is set already, narrows the choice. HEADRACE_GPUS names devices (`GPU-a,GPU-b`) instead
of asking nvidia-smi, for machines and tests without one.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

FAKE_VARIABLE = "HEADRACE_GPUS"
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
BUSY_SHARE = 0.1  # of a GPU's memory: more in use, and somebody works there, lease or not
ASK_S = 30.0
NO_DEVICE, NO_DRIVER = 6, 9  # what nvidia-smi ends with on a machine without a GPU

_QUERY = ["--query-gpu=uuid,memory.used,memory.total", "--format=csv,noheader,nounits"]


@dataclass(frozen=True)
class Gpu:
    """One device; `used` is the share of its `total` bytes that is taken. Both are 0 where the driver does not say."""

    uuid: str
    used: float = 0.0
    total: int = 0

    @property
    def busy(self) -> bool:
        """Whether some process already works on it."""
        return self.used > BUSY_SHARE


def visible_gpus(environ: Mapping[str, str] | None = None) -> list[Gpu] | None:
    """The devices, in the driver's order; none where there is no driver. None: nvidia-smi failed, so nobody knows."""
    environ = os.environ if environ is None else environ
    visible = environ.get(VISIBLE_VARIABLE)
    if visible in ("", "-1"):
        return []
    if named := environ.get(FAKE_VARIABLE):
        gpus = [Gpu(name.strip()) for name in named.split(",") if name.strip()]
    else:
        listing = _nvidia_smi()
        if listing is None:
            return None
        gpus = parse_listing(listing)
    return narrowed(gpus, visible)


def least_used(gpus: list[Gpu], count: int) -> list[Gpu]:
    """`count` of them for a process without a lease: any idle one before a busy one; of idle ones the last, since
    leases take the first.
    """
    by_use = sorted(enumerate(gpus), key=lambda at: (at[1].used if at[1].busy else 0.0, -at[0]))
    return [gpu for _, gpu in by_use[:count]]


def trains_in_float32(dtype: str, device: str) -> bool:
    """By model.dtype and learner.device, as the learner will choose: without asking torch, which is slow to import."""
    return dtype == "float32" or (dtype == "auto" and (device == "cpu" or not visible_gpus()))


def parse_listing(text: str) -> list[Gpu]:
    """nvidia-smi's lines `GPU-uuid, used MiB, total MiB`; `[N/A]` stands where a driver does not count memory."""
    gpus = []
    for line in text.splitlines():
        uuid, _, memory = (part.strip() for part in line.partition(","))
        if not uuid.startswith("GPU-"):
            continue
        used, _, total = (part.strip() for part in memory.partition(","))
        known = used.isdigit() and total.isdigit() and int(total) > 0
        gpus.append(Gpu(uuid, int(used) / int(total), int(total) * 2**20) if known else Gpu(uuid))
    return gpus


def narrowed(gpus: list[Gpu], visible: str | None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES leaves: indices, UUIDs or their beginnings; as CUDA does, up to the first it does
    not know. A slice of a GPU (MIG-...) is taken at its word.
    """
    if visible is None:
        return gpus
    chosen: list[Gpu] = []
    for name in (part.strip() for part in visible.split(",")):
        if name.isdigit():
            found = gpus[int(name) : int(name) + 1]
        elif name.startswith("MIG-"):
            found = [Gpu(name)]
        else:
            found = [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
        if len(found) != 1:
            break
        chosen += found
    return chosen


def _nvidia_smi() -> str | None:
    """What it lists; empty without a driver or a device, None when it fails: a busy driver may answer later."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    try:
        answer = subprocess.run([command, *_QUERY], capture_output=True, text=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode in (NO_DEVICE, NO_DRIVER):
        return ""
    return answer.stdout if answer.returncode == 0 else None
