"""A request of the torch engine. Free of torch, so that the process is up before torch is imported."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from services.actor.engines.engine import Finish, Generation, Sampling
from shared.versions import Version


@dataclass(eq=False)
class Request:
    """A request. `ids` grows; all but its last token are in the cache while the row runs."""

    ids: list[int]
    sampling: Sampling
    deliver: Callable[["Request"], None]
    cancelled: bool = False
    prompt: int = 0
    logprobs: list[float] = field(default_factory=list)
    version_runs: list[tuple[int, Version]] = field(default_factory=list)
    finish: Finish | None = None

    def __post_init__(self) -> None:
        self.prompt = len(self.ids)
        self.uniform = np.random.default_rng(self.sampling.seed)

    def generation(self) -> Generation:
        """What came out."""
        assert self.finish is not None
        return Generation(self.ids[self.prompt :], self.logprobs, self.version_runs, self.finish)
