"""A learner's loop that is fed by hand, entry by entry: what goes in, and what is seen of it."""

from collections.abc import Callable
from typing import Any

import torch

from services.learner.loop import Loop
from services.learner.stop import Stop
from shared.config import Config
from shared.messages import (
    Batch,
    Cursor,
    Result,
    decode,
)
from shared.streams import FIELD, Keys

KEYS = Keys("test")
CURSOR = Cursor(issued=9, lost=1, refilled=0, untrained=[6, 7])
Feed = Callable[..., None]


def batch(step: int, replay: list[str] | None = None) -> Batch:
    return Batch(step=step, replay=replay or [], fresh=[f"{step}a", f"{step}b"], cursor=CURSOR)


def start(config: Config) -> Loop:
    """A process's start: announce and take up what an earlier one left."""
    loop = Loop(config, Stop())
    loop._announce()
    loop._take_up()
    return loop


def work_off(loop: Loop) -> None:
    while entries := loop.inbox.read(1, block_ms=1):
        loop.handle(entries[0])


def results(client: Any, kind: type | None = None) -> list[Any]:
    every = [decode(fields[FIELD], Result) for _, fields in client.xrange(KEYS.results)]
    return [r for r in every if kind is None or isinstance(r, kind)]


def pending(client: Any) -> int:
    return client.xlen(KEYS.work)


def state_of(loop: Loop) -> list[torch.Tensor]:
    return [p.detach().clone() for p in loop.trainer.model.parameters()]


def of_steps(config: Config, steps: int) -> Config:
    return config.model_copy(update={"run": config.run.model_copy(update={"steps": steps})})
