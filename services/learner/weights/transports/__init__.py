"""The learner's half of the transports: a version that lies whole in the weights folder is sent to the actors."""

from pathlib import Path
from typing import Protocol

from services.learner.stop import Stop
from services.learner.talk.outbox import Outbox
from shared.config import Config
from shared.messages import WeightsNotice


class Sender(Protocol):
    """One file per transport."""

    def send(self, notice: WeightsNotice, folder: Path) -> None:
        """Make the version in `folder` available; its notice follows. Bears being repeated. Raises Stopped."""
        ...

    def has(self, notice: WeightsNotice) -> bool:
        """Whether what was sent is still there."""
        ...


def make_sender(config: Config, outbox: Outbox, stop: Stop) -> Sender:
    """The one that `weights.transport` names."""
    if config.weights.transport == "redis":
        from services.learner.weights.transports.redis_chunks import RedisSender

        return RedisSender(outbox, stop, delta=config.weights.delta)
    if config.weights.transport == "broadcast":
        from services.learner.weights.transports.broadcast import BroadcastSender

        return BroadcastSender(config, outbox.client)
    from services.learner.weights.transports.folder import FolderSender

    return FolderSender()
