"""The weights folder itself, shared with the learner."""

import asyncio
from pathlib import Path

from shared.messages import WeightsNotice
from shared.versions import Version


class FolderReceiver:
    """See `services.actor.transports.Receiver`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def fetch(self, notice: WeightsNotice, in_force: Version | None) -> tuple[Path, bool]:
        """A network folder may show a version a little after it is announced."""
        directory = self._root / notice.location
        for _ in range(20):
            if await asyncio.to_thread(directory.is_dir):
                return directory, True
            await asyncio.sleep(0.1)
        return directory, False

    def close(self) -> None:
        """Nothing was."""
