"""What is kept, in which order stored groups are considered, which of them may be used. One small file per policy.

A policy is the `POLICY` of a module of this folder; the module's name is the name in `replay.policy`. Nothing else
knows the list: `docs/adding-a-policy.md`. What several policies are made of is in `services/replay/rules.py`.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Buffer
from services.replay.kept import Kept
from services.replay.rules import Moment, everything, mixed, nothing, oldest, within_tau
from shared.errors import UserError
from shared.messages import GroupHeader, Record
from shared.nearest import hint

Order = Callable[[Buffer, int, Moment], NDArray[np.intp]]
Accepts = Callable[[Record, float], bool]
Evicts = Callable[[Buffer, int], list[str]]
OfHeader = Callable[[GroupHeader], bool]
Responses = Callable[[GroupHeader, NDArray[np.float32]], list[float]]
Rollouts = Callable[[Buffer, int, Moment], dict[str, list[int]]]


@dataclass(frozen=True, kw_only=True)
class Again:
    """Prompts that are asked again beside the fresh ones, in rounds.

    keeps(header): asked after each training group of a prompt, fresh or again: whether it may be asked (again).
    picks(kept, n, group_size, moment): which of them a round asks, at most n. `kept` is in the order of the data set.
    retires(header): whether a prompt is done with after this group: it is never asked again nor stored, and what is
        stored of it leaves.
    every: steps between rounds; 0: replay.ask_again_every.
    starts_at: no round before the share of right answers in a step's fresh groups has reached this once.
    joined: such a group is asked for one response less, and a stored one takes its place: of the groups that `order`
        gives (for the prompts in moment.asked) and the scan accepts, the usable response of the lowest current entropy,
        its reward being its number in buffer.responses.
    """

    keeps: OfHeader
    picks: Callable[[list[Kept], int, int, Moment], list[Kept]]
    retires: OfHeader = nothing
    every: int = 0
    starts_at: float = 0.0
    joined: bool = False


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A replay policy: pure functions, each but the order with the paper's answer as its default.

    order(buffer, n, moment): the slots of the n first groups to consider, best first; fewer when the policy wants no
        more. A larger n extends the same order.
    accepts(record, tau): whether a group that was scanned may be replayed. None: groups are used unscanned, and their
        cached scores stay as they are (unless replay.free_refresh).
    keeps(header): whether a fresh group enters the buffer once it is trained.
    evicts(buffer, capacity): the ids that leave when a step's groups have entered.
    replaces(header): fresh groups whose place in the batch a replayed group takes, so that no more are replayed than
        there are such groups; one that finds no replacement is trained. None: replayed groups come on top.
    trains(header): whether a fresh group is trained at all. One that is not takes its place in a step's count of
        fresh groups all the same, and the batch is smaller.
    refills: such a group is dropped when it arrives instead, and another task is issued in its place.
    rollouts(buffer, n, moment): for policies that replay single rollouts, in place of order and accepts: at most n of
        them, by group, the groups in the order of the batch.
    responses(header, advantages): a number for each response that the group's row keeps, in buffer.responses, for
        policies that choose among them; 0: it cannot be used.
    again: prompts that are asked another time. Their groups come on top of the b fresh ones, if `trains` lets them.
    """

    name: str
    order: Order
    accepts: Accepts | None = within_tau
    keeps: OfHeader = mixed
    evicts: Evicts = oldest
    replaces: OfHeader | None = None
    trains: OfHeader = everything
    refills: bool = False
    rollouts: Rollouts | None = None
    responses: Responses | None = None
    again: Again | None = None

    @property
    def gated(self) -> bool:
        """Whether Drift decides what is replayed; scores may be scanned without that."""
        return self.accepts is within_tau


def names() -> list[str]:
    """The policies there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get_policy(name: str) -> Policy:
    """The policy of this name. Raises UserError for one that is not there, with the nearest that is."""
    if name not in names():
        raise UserError(f"replay.policy = '{name}' is no policy; {hint(name, names())}")
    return importlib.import_module(f"{__name__}.{name}").POLICY
