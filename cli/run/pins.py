"""How the cores of this machine are shared between the processes of a run, and which are kept to theirs.

cores 0 1 2 3 | 4 5 | 6 7 | 8      learner | actor-0 | actor-1 | replay and Redis; the retriever on all but the last
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shared.config import Config
from shared.cores import thread_shares

LIGHT = ("replay", "redis")


@dataclass(frozen=True)
class Sharing:
    """Threads of each rank of the learner and of each actor; `kept`: cores by process, others may run anywhere."""

    learner: int
    actor: int
    kept: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.kept:
            return "no process is kept to cores of its own"
        return "kept to cores: " + ", ".join(f"{name} {_numbers(cores)}" for name, cores in self.kept.items())


def share(config: Config, cores: Sequence[int]) -> Sharing:
    """Of these cores, by number. With run.pin_cores learner and actors are kept to as many as they have threads.

    One core is left for the light processes where there are more than learner and actors. Nobody is kept anywhere where
    the threads, as configured, are more than the cores.
    """
    anywhere = Sharing(*thread_shares(config, len(cores)))
    if config.run.pin_cores == "off":
        return anywhere
    heavy = cores[:-1] if len(cores) > 1 + config.actor.count else cores
    learner, actor = thread_shares(config, len(heavy))
    wanted = {"learner": learner * config.learner.ranks} | {f"actor-{n}": actor for n in range(config.actor.count)}
    if sum(wanted.values()) > len(heavy):
        return anywhere
    free = iter(heavy)
    kept = {name: tuple(next(free) for _ in range(count)) for name, count in wanted.items()}
    if len(heavy) < len(cores):
        kept |= dict.fromkeys(LIGHT, (cores[-1],)) | {"env_search": tuple(heavy)}
    return Sharing(learner, actor, kept)


def _numbers(cores: Sequence[int]) -> str:
    together = cores[-1] - cores[0] == len(cores) - 1 > 0
    return f"{cores[0]}-{cores[-1]}" if together else "+".join(map(str, cores))
