"""Groups an actor makes a second when its room is counted in running rollouts, over counted in groups.

    python -m benchmarks.seats [--groups 8] [--group_size 8] [--tasks 150] [--repetitions 3]

The real actor over a real Redis, with an engine that waits: a rollout of mean length takes `mean_s`, lengths are
lognormal and cut at 6 means. The peer's rollouts end with the longest of their group, so that all its seats are held
until then.
"""

import asyncio
import math
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.figure import Figure, run_alone, say
from benchmarks.scratch import scratch_redis
from services.actor.engines.engine import Generation, Sampling
from services.actor.service import serve
from shared import streams
from shared.cancellation import stop
from shared.config import build
from shared.messages import Task, WeightsNotice, encode
from shared.redis_client import connect_async
from shared.seeds import derive
from shared.streams import Keys
from shared.versions import Version

POLICY = Path(__file__).parents[1] / "examples" / "atlas" / "policy"
SIGMA, LONGEST = 0.8, 6.0


def measure(
    *, groups: int = 8, group_size: int = 8, tasks: int = 150, mean_s: float = 0.2, repetitions: int = 3
) -> list[Figure]:
    """Groups per second of both, and how many rollouts ran at once on average."""
    ours, peer, busy, peer_busy = [], [], [], []
    for seed in range(repetitions):
        for rates, at_once, by_group in ((ours, busy, False), (peer, peer_busy, True)):
            engine = Waiting(seed, mean_s)
            if by_group:
                engine.hold_together([derive(task, i, 0) for i in range(group_size)] for task in range(tasks))
            seconds = asyncio.run(_play(engine, groups, group_size, tasks))
            rates.append(tasks / seconds)
            at_once.append(engine.waited_s / seconds)
            say(f"seats by {'group' if by_group else 'rollout'}: {rates[-1]:.2f} groups/s, {at_once[-1]:.1f} at once")
    return [
        Figure(
            name="seats by running rollouts", unit="groups/s", ours=ours, peer=peer, against="seats by group",
            at_least=1.2,
            note=f"of {groups * group_size} rollouts that may run, {min(busy):.0f} to {max(busy):.0f} did "
            f"on average, by group {min(peer_busy):.0f} to {max(peer_busy):.0f}",
        )
    ]  # fmt: skip


class Waiting:
    """An engine whose rollouts take their time; see `services.actor.engines.engine.Engine`."""

    name, device = "waiting", "none"

    def __init__(self, seed: int, mean_s: float) -> None:
        self.version: Version | None = Version(0, 0)
        self.progress, self.waited_s = 0, 0.0
        self._seed, self._mean_s = seed, mean_s
        self._held: dict[int, float] = {}  # by a rollout's seed; the seconds of the longest of its group

    def hold_together(self, groups: Iterable[list[int]]) -> None:
        """From now on the rollouts of a group, known by their seeds, end with its longest."""
        for seeds in groups:
            self._held |= dict.fromkeys(seeds, max(map(self._seconds, seeds)))

    async def start(self) -> None:
        """Nothing to start."""

    async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
        """The length is the seed's, so that both arms play the same rollouts."""
        seconds = self._seconds(sampling.seed)
        await asyncio.sleep(self._held[sampling.seed] if self._held else seconds)
        self.waited_s += seconds
        self.progress += 1
        return Generation([5], [-0.5], [(1, Version(0, 0))], "eos")

    def _seconds(self, seed: int) -> float:
        normal = random.Random(self._seed * 1_000_003 + seed).gauss(0, 1)
        return self._mean_s * min(math.exp(SIGMA * normal - SIGMA**2 / 2), LONGEST)

    async def verify(self, notice: WeightsNotice, directory: Path) -> None:
        """No weights come."""

    async def swap(self, notice: WeightsNotice, directory: Path) -> float:
        """No weights come."""
        return 0.0

    async def score(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[list[float]]:
        """No weights come."""
        return []

    async def close(self) -> None:
        """Nothing to stop."""


async def _play(engine: Waiting, groups: int, group_size: int, tasks: int) -> float:
    with scratch_redis() as url:
        config = build({
            "run": {"name": "bench"}, "redis": {"url": url}, "model": {"path": str(POLICY)}, "env": {"kind": "single"},
            "rollout": {"group_size": group_size}, "actor": {"groups": groups},
        })  # fmt: skip
        keys, client = Keys("bench"), connect_async(url)
        for number in range(tasks):
            await streams.add(client, keys.tasks, encode(_task(number, group_size)))
        actor = asyncio.ensure_future(serve(config, engine))
        while not await client.xlen(keys.groups):  # noqa: ASYNC110  it is looked at in Redis
            await asyncio.sleep(0.005)
        began = time.monotonic()
        while await client.xlen(keys.groups) < tasks:  # noqa: ASYNC110  here too
            await asyncio.sleep(0.01)
        seconds = time.monotonic() - began
        await stop(actor)
        await client.aclose()
        return seconds


def _task(number: int, group_size: int) -> Task:
    return Task(
        id=f"t{number}", kind="train", number=number, attempt=0, seed=number, group_size=group_size, temperature=1.0,
        min_version=0, data_source="made", messages=[{"role": "user", "content": "what"}], ground_truth=["a"],
    )  # fmt: skip


if __name__ == "__main__":
    run_alone(measure)
