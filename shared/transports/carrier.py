"""The process that takes part in rounds: `carrier DEVICE`, asked and answered in JSON lines; broadcast.py has the rest.

    {}                                  -> {"gpu": UUID or ""}                torch is imported
    {"meet": address}                   -> {"port": p}                        of rank 0: the round will meet there
    {"round": Round, "folder": path}    -> {"whole": how many have received it, "right": this one has, "disk": why not}
                                        -> {"error": text}                    whichever it was: the process ends

A broadcast that has lost a member raises, hangs, or ends its process, as the backend likes. In here that costs a second
for the next process, and nobody's weights.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
from blake3 import blake3

from shared.transports.broadcast import PATIENCE_S, Round, listener, own_address
from shared.transports.chunks import is_inside
from shared.weights import MANIFEST
from shared.workers import pipes

if TYPE_CHECKING:  # it takes seconds, and whoever looks at this module need not have it
    import torch


class Member:
    """What is kept between two questions: the device, and the store at which a round meets."""

    def __init__(self, device: str) -> None:
        import torch

        there = device != "cpu" and torch.cuda.is_available()
        self.device = torch.device(device if there else "cpu")
        self.gpu = str(torch.cuda.get_device_properties(self.device).uuid) if there else ""
        self.store: Any = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """See above."""
        if "meet" in question:
            return {"port": self.meet(question["meet"])}
        return self.take_part(msgspec.convert(question["round"], Round), Path(question["folder"]))

    def meet(self, address: str) -> int:
        """Open the store; it listens on this address alone."""
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]  it is documented

        with listener(address) as server:
            port = server.getsockname()[1]
            self.store = TCPStore(
                address,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=PATIENCE_S),
                master_listen_fd=server.detach(),
            )
        return port

    def take_part(self, round: Round, folder: Path) -> dict[str, Any]:
        """Form the group, send or receive, and count who has it."""
        import torch
        import torch.distributed as dist
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]  it is documented

        patience = timedelta(seconds=round.patience_s)
        device = self.device if round.backend == "nccl" else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if name := _interface(own_address(round.address)):
            os.environ.setdefault(f"{round.backend.upper()}_SOCKET_IFNAME", name)
        if round.rank:
            self.store = TCPStore(round.address, round.port, is_master=False, timeout=patience)
        dist.init_process_group(
            round.backend, store=self.store, rank=round.rank, world_size=round.world, timeout=patience
        )
        taken = _send(round, folder, device) if round.rank == 0 else _receive(round, folder, device)
        right = taken is not None and taken.is_right(round.digest)
        whole = torch.tensor([int(right)], device=device)
        dist.all_reduce(whole)
        count = int(whole)  # waits for a GPU, which may be at it still, before the group is gone
        dist.destroy_process_group()
        return {"whole": count, "right": right, "disk": taken.disk if taken else ""}


class Taken:
    """The files that have come so far, in `folder`. `disk`: why they are not there; the others' round goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._hasher, self.disk = folder, blake3(), ""

    def put(self, name: str, size: int, start: int, data: memoryview) -> None:
        """The next piece."""
        if name != MANIFEST:
            self._hasher.update(b"" if start else f"{name}\0{size}\0".encode())
            self._hasher.update(data)
        if self.disk:
            return
        try:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab" if start else "wb") as file:
                file.write(data)
        except OSError as error:
            self.disk = f"{error}"

    def is_right(self, digest: str) -> bool:
        """Whether the files are there, and are those that were announced."""
        return not self.disk and self._hasher.hexdigest() == digest


def _send(round: Round, folder: Path, device: "torch.device") -> None:
    import torch.distributed as dist

    pieces = [(folder / name, start, length) for name, _, start, length in _pieces(round) if length]  # a manifest's too
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read, *pieces[0])
        for following in [*pieces[1:], None]:
            data = reading.result()
            if following:
                reading = pool.submit(_read, *following)
            dist.broadcast(data.to(device), 0)


def _receive(round: Round, folder: Path, device: "torch.device") -> Taken:
    import torch
    import torch.distributed as dist

    taken = Taken(folder)
    with ThreadPoolExecutor(1) as pool:
        writing: Future[None] | None = None
        for name, size, start, length in _pieces(round):
            data = torch.empty(length, dtype=torch.uint8, device=device)
            if length:
                dist.broadcast(data, 0)
            piece = data.cpu().numpy().data
            if writing:
                writing.result()
            writing = pool.submit(taken.put, name, size, start, piece)
    return taken


def _pieces(round: Round) -> Iterator[tuple[str, int, int, int]]:
    """(file, its bytes, start, bytes of this piece), at least one of each file."""
    for name, size in round.files:
        if not is_inside(name):
            raise ValueError(f"a file '{name}' cannot be in a version")
        for start in range(0, max(size, 1), round.bucket):
            yield name, size, start, min(round.bucket, size - start)


def _read(path: Path, start: int, length: int) -> "torch.Tensor":
    import torch

    data = torch.empty(length, dtype=torch.uint8)
    with path.open("rb", buffering=0) as stream:
        stream.seek(start)
        if stream.readinto(data.numpy().data) != length:
            raise OSError(f"{path} is shorter than it was")
    return data


def _interface(address: str) -> str:
    """The name of the network interface that has it; the backends would go by the host's name, which may be wrong."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, has in interfaces if any(a.address == address for a in has)), "")


def main(words: Sequence[str]) -> None:
    """Answer until the input ends."""
    asked, answers = pipes()

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    asked.get()
    member = Member(words[0])
    say({"gpu": member.gpu})
    while True:
        question = json.loads(asked.get())
        try:
            answer = member.answer(question)
        except Exception as error:  # noqa: BLE001  whatever a backend raises: nobody knows what state it is in
            say({"error": " ".join(f"{type(error).__name__}: {error}".split()).partition(". ")[0][:300]})
            os._exit(1)  # its group may still be waiting for somebody
        say(answer)


if __name__ == "__main__":
    main(sys.argv[1:])
