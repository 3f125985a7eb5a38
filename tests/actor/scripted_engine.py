"""An engine that says what a test tells it to."""

from collections.abc import Callable, Sequence
from pathlib import Path

from services.actor.engines.engine import Finish, Generation, Sampling
from shared.messages import WeightsNotice
from shared.versions import Version


class ScriptedEngine:
    """`say(ids, sampling)` returns (ids, finish) for each turn; log-probabilities count down from -0.01."""

    name = "scripted"
    device = "cpu"

    def __init__(self, say: Callable[[list[int], Sampling], tuple[list[int], Finish]]) -> None:
        self.say = say
        self.version: Version | None = Version(0, 0)
        self.progress = 0
        self.asked: list[tuple[list[int], Sampling]] = []

    async def start(self) -> None: ...

    async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
        self.asked.append((ids, sampling))
        said, finish = self.say(ids, sampling)
        self.progress += 1
        assert self.version is not None
        logprobs = [-0.01 * (i + 1) for i in range(len(said))]
        return Generation(said, logprobs, [(len(said), self.version)] if said else [], finish)

    async def verify(self, notice: WeightsNotice, directory: Path) -> None: ...

    async def swap(self, notice: WeightsNotice, directory: Path) -> float:
        self.version = notice.version
        return 0.0

    async def score(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[list[float]]:
        raise NotImplementedError

    async def close(self) -> None: ...
