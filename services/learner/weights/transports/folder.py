"""Actors read the weights folder itself."""

from pathlib import Path

from shared.messages import WeightsNotice


class FolderSender:
    """See `services.learner.weights.transports.Sender`."""

    def send(self, notice: WeightsNotice, folder: Path) -> None:
        """It is where it is read."""

    def has(self, notice: WeightsNotice) -> bool:
        """The folder is looked at by who wrote it."""
        return True
