"""The processes that hold one model between them: who this one is, and the few numbers and bytes they agree on.

A learner of one process is `ALONE` and talks to nobody. With more, `torchrun`'s environment says who is who; what is
said here goes over gloo between their processors, whatever the model's own traffic takes. Bytes are msgpack.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

# Rank 0 may wait for groups for a long time, and the others for its next order. In all the rest ranks come together
# as soon as the slowest has computed, fetched or written its part: one that does not come by then hangs. Who waits for
# it ends, and with it the job; a rank that dies is noticed at once by who started it.
ORDER_PATIENCE = timedelta(days=7)
PATIENCE = timedelta(minutes=30)


@dataclass(frozen=True)
class Ranks:
    """This process among `count`."""

    rank: int = 0
    count: int = 1
    group: Any = None  # gloo
    orders: Any = None  # the same, for what may be waited for long

    @property
    def leads(self) -> bool:
        """Whether this is the one that speaks to Redis' streams and names files."""
        return self.rank == 0

    def most(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        return int(self._reduced(float(number), dist.ReduceOp.MAX)) if self.count > 1 else number

    def share(self, mass: float) -> float:
        """What part of all ranks' sum this rank's number is."""
        total = self._reduced(mass, dist.ReduceOp.SUM) if self.count > 1 else mass
        return mass / total if total else 0.0

    def add_up(self, gradients: Iterable[Tensor | None]) -> None:
        """Make each the sum of all ranks'; what lies in shards is one already."""
        for gradient in gradients if self.count > 1 else ():
            if gradient is not None and not isinstance(gradient, DTensor):
                dist.all_reduce(gradient)

    def tell(self, message: bytes = b"") -> bytes:
        """Rank 0's message, on every rank."""
        size = torch.tensor([len(message)])
        dist.broadcast(size, 0, group=self.orders)
        if not int(size):
            return b""
        data = torch.frombuffer(bytearray(message or bytes(int(size))), dtype=torch.uint8)
        dist.broadcast(data, 0, group=self.orders)
        return data.numpy().tobytes()

    def all(self, message: bytes) -> list[bytes]:
        """Every rank's message, by rank, on every rank."""
        if self.count == 1:
            return [message]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(message)]), group=self.group)
        longest = max(1, *(int(n) for n in sizes))
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.count)]
        own = torch.frombuffer(bytearray(message.ljust(longest, b"\0")), dtype=torch.uint8)
        dist.all_gather(parts, own, group=self.group)
        return [p[: int(n)].numpy().tobytes() for p, n in zip(parts, sizes, strict=True)]

    def _reduced(self, number: float, how: Any) -> float:
        value = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(value, how, group=self.group)
        return value.item()


ALONE = Ranks()


def join(device: torch.device) -> Ranks:
    """The ranks of this process's environment (torchrun's: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT); else ALONE."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return ALONE
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    group, orders = [dist.new_group(backend="gloo", timeout=limit) for limit in (PATIENCE, ORDER_PATIENCE)]
    return Ranks(dist.get_rank(), count, group, orders)
