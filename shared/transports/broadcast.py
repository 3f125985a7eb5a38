"""A version to all who want it at once: a round of torch.distributed, over NCCL between GPUs and over gloo elsewhere.

    headrace:{run}:wanted           list    Wanted, msgpack: an actor lacks a version; the learner takes what is there
    headrace:{run}:round:<actor>    list    its Round: where it meets, as which rank; empty: it is not to be had

    learner: Wanted -> a moment for the others -> Round to each -> rank 0 of the group      (services/learner)
    actor:   Wanted -> Round -> rank 1, 2 ... of the group -> digest of the whole           (services/actor)

A group lives for one round: whoever comes later is of the next, and so is everybody whose round was broken by one that
died. The collectives run in a process beside learner and actor, the carrier (carrier.py), since what hangs in NCCL can
only be killed.
"""

import socket
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from shared.errors import UserError
from shared.messages import UNREADABLE
from shared.streams import Keys
from shared.workers import NotAnswered, StartFailed, TooSlow, Worker

MODULE = "shared.transports.carrier"
START_S = 300.0  # of a carrier, which imports torch, on a busy machine
BUCKET = 2**24  # bytes of one broadcast
PATIENCE_S = 30.0  # of a member for the others, at any point of a round
SLOWEST = 20e6  # bytes a second: a round that goes on more slowly is given up
T = TypeVar("T")


class Wanted(msgspec.Struct, frozen=True):
    """An actor that lacks a version. `gpu`: the UUID of the one that its carrier sees, empty without."""

    actor: str
    location: str
    digest: str
    gpu: str


class Round(msgspec.Struct, frozen=True):
    """One member's view of a round. `files`: (name, bytes), in the order of the digest."""

    address: str
    port: int
    rank: int
    world: int
    backend: str
    location: str
    digest: str
    files: list[tuple[str, int]]
    bucket: int
    patience_s: float


class RoundBroken(Exception):
    """Somebody died or was too slow, or the files were not what was announced; the text says which."""


class Carrier(Worker):
    """The process that takes part in rounds. `gpu`: the UUID of its device, once it is up; empty without one."""

    gpu = ""

    def __init__(self, device: str) -> None:
        """device: `cpu`, or `cuda:0`, which is `cpu` where there is none. Its torch is imported meanwhile."""
        super().__init__(MODULE, device, stderr=None)

    def up(self) -> "Carrier":
        """Wait until it is. Raises RoundBroken where it cannot."""
        try:
            if not self._ready:
                self._wait_until_up(START_S)
        except (NotAnswered, StartFailed):
            raise RoundBroken("the process that carries weights did not start") from None
        return self

    def ask(self, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Its answer. Raises RoundBroken, and then it is good for nothing more."""
        try:
            answer = self.up().answer(question, timeout_s)
        except TooSlow:
            raise RoundBroken("the process that carries weights hung, or died") from None
        if "error" in answer:
            self.broken = True
            raise RoundBroken(answer["error"])
        return answer

    def take_part(self, round: Round, folder: str) -> dict[str, Any]:
        """Send the files in `folder`, or receive them into it; see carrier.py for the answer."""
        seconds = 3 * PATIENCE_S + sum(size for _, size in round.files) / SLOWEST
        return self.ask({"round": msgspec.to_builtins(round), "folder": folder}, seconds)

    def _started(self, answer: dict[str, Any]) -> None:
        self.gpu = answer["gpu"]


def backend_for(gpus: Sequence[str]) -> str:
    """NCCL where every member has a GPU to itself: it refuses two on one."""
    return "nccl" if all(gpus) and len(set(gpus)) == len(gpus) else "gloo"


def own_address(towards: str) -> str:
    """The address of this machine from which it reaches another, or itself; nothing is sent. Raises UserError."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return probe.getsockname()[0]
    except OSError as error:
        raise UserError(f"there is no way to '{towards}' ({error}): set weights.address.") from None


def listener(address: str) -> socket.socket:
    """A socket that listens there, at a port of the system's choice. UserError: it is no address of this machine."""
    try:
        family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address, 0), family=family, backlog=1024)
    except OSError as error:
        raise UserError(
            f"weights.address: the learner's machine cannot listen at '{address}' ({error}): "
            "name an address of it at which actors reach it."
        ) from None


def wanted_key(keys: Keys) -> str:
    """What actors lack."""
    return f"{keys.prefix}wanted"


def round_key(keys: Keys, actor: str) -> str:
    """Where an actor is told of its round."""
    return f"{keys.prefix}round:{actor}"


def decode(data: bytes, kind: type[T]) -> T:
    """UserError where it is none."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNREADABLE as error:
        raise UserError(f"a {kind.__name__} of a broadcast cannot be read ({error}).") from None
