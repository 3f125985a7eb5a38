"""The actor's half of the transports: an announced version as a local folder, to be verified and swapped in."""

from pathlib import Path
from typing import Protocol

from services.actor.wire import Wire
from shared.config import Config
from shared.messages import WeightsNotice
from shared.versions import Version


class Receiver(Protocol):
    """One file per transport."""

    async def fetch(self, notice: WeightsNotice, in_force: Version | None) -> tuple[Path, bool]:
        """(the version's folder, whether it is there); unverified. `in_force` stays readable.

        Raises UserError for what cannot be read or written.
        """
        ...

    def close(self) -> None:
        """End what was started for it."""
        ...


def make_receiver(config: Config, wire: Wire) -> Receiver:
    """The one that `weights.transport` names."""
    if config.weights.transport == "redis":
        from services.actor.transports.redis_chunks import RedisReceiver

        return RedisReceiver(wire, config.received_dir)
    if config.weights.transport == "broadcast":
        from services.actor.transports.broadcast import BroadcastReceiver

        return BroadcastReceiver(wire, config.received_dir)
    from services.actor.transports.folder import FolderReceiver

    return FolderReceiver(config.weights_dir)
