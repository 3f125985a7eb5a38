"""Which fault strikes whom, when and for how long: a pure function of the seed.

Every pair of a kind and a target comes once, in random order, before any comes again; the moments are random,
faults may overlap.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

KILL, STOP, RESTART, CUT, DELAY, DISK, DAMAGE = KINDS = ("kill", "stop", "restart", "cut", "delay", "disk", "damage")
LASTING = (STOP, CUT, DELAY, DISK)
REDIS, SEARCH, ACTOR, LEARNER = "redis", "env_search", "actor", "learner"
WEIGHTS = "weights"


@dataclass(frozen=True)
class Fault:
    """`at`: seconds after the run has come up. `target`: a process (`actor`: one of them), or "FROM-TO" for a link.

    `seconds`: how long it lasts; 0 for what takes a moment.
    """

    at: float
    kind: str
    target: str
    seconds: float


def pairs(search: bool) -> list[tuple[str, str]]:
    """Every kind with everything it can strike; `search`: whether the run has a retriever of its own."""
    services = ["replay", LEARNER, ACTOR, *([SEARCH] if search else [])]
    links = [f"{service}-{REDIS}" for service in services if service != SEARCH]
    links += [f"{ACTOR}-{SEARCH}"] if search else []
    found = [(kind, target) for kind in (KILL, STOP, RESTART) for target in [*services, REDIS]]
    found += [(kind, link) for kind in (CUT, DELAY) for link in links]
    return [*found, (DISK, REDIS), (DISK, LEARNER), (DAMAGE, WEIGHTS)]


def plan(seed: int, minutes: float, every_s: float, longest_s: float, search: bool) -> list[Fault]:
    """The faults of so many minutes, one about every `every_s` seconds, none longer than `longest_s`."""
    rng = random.Random(seed)
    rounds = _rounds(rng, pairs(search))
    faults: list[Fault] = []
    at = every_s * rng.uniform(0.5, 1.5)
    while at < 60 * minutes:
        kind, target = next(rounds)
        seconds = longest_s * rng.uniform(0.1, 1.0) if kind in LASTING else 0.0
        faults.append(Fault(round(at, 2), kind, target, round(seconds, 2)))
        at += every_s * rng.uniform(0.5, 1.5)
    return faults


def _rounds(rng: random.Random, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    while True:
        yield from rng.sample(pairs, len(pairs))
