"""What the rollouts need of a generation engine.

    vllm    services.actor.engines.vllm_engine     torch    services.actor.engines.torch_engine

Both take token ids and give token ids; both recompute what they hold of a running request under new weights, so the
log-probability of every token is that of a full forward under the version the token is labelled with.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from shared import weights
from shared.config import Config
from shared.cores import available, thread_shares
from shared.errors import UserError
from shared.messages import WeightsNotice
from shared.model_files import read_settings
from shared.versions import Version

Finish = Literal["stop", "eos", "length"]


@dataclass(frozen=True)
class Sampling:
    """One turn. top-p is 1, top-k off, and there are no penalties; temperature 0 is greedy, with log-probs at 1."""

    temperature: float
    max_tokens: int
    seed: int
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Generation:
    """The sampled ids, stop string or EOS token included, and each one's log-probability (the sampling temperature's).

    `version_runs` says under which weights they were sampled: (how many, version), in order.
    """

    ids: list[int]
    logprobs: list[float]
    version_runs: list[tuple[int, Version]]
    finish: Finish


class CanaryRefused(ValueError):
    """New weights that do not reproduce the learner's log-probabilities, or files that are not what was announced."""


class EngineFailed(RuntimeError):
    """The engine is broken and this process should be replaced."""


class Engine(Protocol):
    """A model that generates."""

    name: str

    @property
    def device(self) -> str:
        """`cpu` or `cuda`, once started."""
        ...

    @property
    def version(self) -> Version | None:
        """The weights in force; None until the first published ones are in."""
        ...

    @property
    def progress(self) -> int:
        """Grows whenever the engine gets something done; for the watchdog."""
        ...

    async def start(self) -> None:
        """Load the model."""
        ...

    async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
        """One turn after `ids`. Cancelling it stops the request."""
        ...

    async def verify(self, notice: WeightsNotice, directory: Path) -> None:
        """Read the files once, before `swap`, for as long as the disk takes. CanaryRefused: not what was announced."""
        ...

    async def swap(self, notice: WeightsNotice, directory: Path) -> float:
        """Change weights without losing a request, from verified files; returns the seconds in which nothing was
        generated.

        Raises CanaryRefused, and then the old weights are still in force.
        """
        ...

    async def score(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[list[float]]:
        """Log-probability at temperature 1 of each sequence's tokens from its start on."""
        ...

    async def close(self) -> None:
        """Stop; running requests are given up."""
        ...


def end_tokens(directory: Path) -> tuple[int, ...]:
    """Every id that ends a turn: those of generation_config.json, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        if (directory / name).is_file():
            ids = read_settings(directory / name).get("eos_token_id")
            if ids is not None:
                return tuple(ids) if isinstance(ids, list) else (ids,)
    return ()


def threads_of(config: Config) -> int:
    """CPU threads of one of `actor.count` actors that share this machine with a learner."""
    return thread_shares(config, len(available()))[1]


async def verify_files(notice: WeightsNotice, directory: Path) -> None:
    """Raise CanaryRefused when the directory does not hold what was announced. Reads the files in a thread."""
    try:
        await asyncio.to_thread(weights.verify, directory, notice.digest)
    except (UserError, OSError) as error:
        raise CanaryRefused(str(error)) from None


def add_run(runs: list[tuple[int, Version]], count: int, version: Version) -> None:
    """Append to a run-length coded list of versions."""
    if count and runs and runs[-1][1] == version:
        runs[-1] = (runs[-1][0] + count, version)
    elif count:
        runs.append((count, version))
