"""An engine that counts what passes through it."""

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from services.actor import metrics
from services.actor.engines.engine import Engine, Generation, Sampling
from shared.messages import WeightsNotice
from shared.versions import Version

_WINDOW_S = 10.0  # over which the rate is taken


class MeteredEngine:
    """Passes everything on; `requests` are running now."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name
        self.requests = 0
        self._swapping = False
        self.sampled_tokens = 0
        self._looks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    @property
    def device(self) -> str:
        """See Engine."""
        return self._engine.device

    @property
    def version(self) -> Version | None:
        """The weights in force."""
        return self._engine.version

    @property
    def progress(self) -> int:
        """See Engine."""
        return self._engine.progress

    @property
    def busy(self) -> bool:
        """Whether it should get something done. A swap keeps requests waiting, and has a limit of its own."""
        return self.requests > 0 and not self._swapping

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens per second over the last seconds, looked at by every heartbeat."""
        now = time.monotonic()
        self._looks.append((now, self.sampled_tokens))
        while len(self._looks) > 2 and now - self._looks[1][0] > _WINDOW_S:
            self._looks.popleft()
        then, before = self._looks[0]
        return round((self.sampled_tokens - before) / max(now - then, 1e-6), 1)

    async def start(self) -> None:
        """See Engine."""
        await self._engine.start()

    async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
        """See Engine."""
        self.requests += 1
        try:
            with metrics.GENERATION.time():
                generation = await self._engine.generate(ids, sampling)
        finally:
            self.requests -= 1
        self.sampled_tokens += len(generation.ids)
        metrics.TOKENS.inc(len(generation.ids))
        return generation

    async def verify(self, notice: WeightsNotice, directory: Path) -> None:
        """See Engine."""
        await self._engine.verify(notice, directory)

    async def swap(self, notice: WeightsNotice, directory: Path) -> float:
        """See Engine."""
        self._swapping = True
        try:
            return await self._engine.swap(notice, directory)
        finally:
            self._swapping = False

    async def score(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[list[float]]:
        """See Engine."""
        return await self._engine.score(sequences, starts)

    async def close(self) -> None:
        """See Engine."""
        await self._engine.close()
