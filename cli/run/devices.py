"""Whether this machine has the GPUs that the processes `headrace up` starts on it would claim. Pure."""

from shared.config import Config


def refusal(config: Config, gpus: int) -> str | None:
    """Why the run could never begin with so many GPUs, in a sentence; None where it can, or has none at all."""
    ranks, actors, each = _wanted(config)
    if gpus and ranks > gpus:
        return (
            f"learner.ranks = {ranks} needs a GPU for each and {_these(gpus)}: set it to {gpus} or less, or "
            "learner.device to 'cpu'."
        )
    if _leased(config, gpus) and actors and ranks + each > gpus:
        return (
            f"the learner (learner.ranks = {ranks}) and one actor (actor.tensor_parallel = {each}) claim "
            f"{ranks + each} GPUs and {_these(gpus)}: lower one of the two, or set run.gpus to 'share'."
        )
    return None


def note(config: Config, gpus: int) -> str | None:
    """That some of the actors would find no GPU, or that more of them would; None where neither is so."""
    ranks, actors, each = _wanted(config)
    used = max(ranks, each if actors else 0)
    if config.run.gpus == "share" and 0 < used < gpus:
        return (
            f"run.gpus = 'share': everybody takes the first {used} of {gpus} GPUs and nobody the others; 'auto' gives "
            "each process its own."
        )
    busy = (gpus - ranks) // each
    if not _leased(config, gpus) or not actors or actors == busy:
        return None
    if actors < busy:
        idle, more = gpus - ranks - actors * each, (busy - actors) * each
        them = "them" if more == idle else f"{more} of them"
        return f"{idle} of {gpus} GPUs stay unused: --actor.count {busy} uses {them}."
    return (
        f"actor.count = {actors}: {_these(gpus)}, which is enough for {busy} beside the learner (learner.ranks = "
        f"{ranks}, actor.tensor_parallel = {each}); the others wait for one that is free."
    )


def placing(config: Config, gpus: int) -> str:
    """Who takes which of so many GPUs (one or more), by number, where all of them are idle."""
    ranks, actors, each = _wanted(config)
    if _leased(config, gpus):
        learner = f"learner {_numbers(0, ranks)}" if ranks else "learner none"
        taken = min(actors, (gpus - ranks) // each) * each
        return f"{learner}; actors {_numbers(ranks, ranks + taken)}, {each} each" if taken else learner
    alike = f"each actor {_numbers(0, each)}" if actors else "no actors"
    return f"learner {_numbers(0, ranks)}; {alike}" if ranks else f"learner none; {alike}"


def are_shared(config: Config, gpus: int) -> bool:
    """Whether learner and actors take the same GPU, the first."""
    return gpus > 0 and config.learner.device != "cpu" and not _leased(config, gpus)


def _wanted(config: Config) -> tuple[int, int, int]:
    """(GPUs of the learner, actors, GPUs of each)."""
    ranks = 0 if config.learner.device == "cpu" else config.learner.ranks
    return ranks, config.actor.count, config.actor.tensor_parallel


def _leased(config: Config, gpus: int) -> bool:
    return gpus > 0 and (config.run.gpus == "lease" or (config.run.gpus == "auto" and gpus > 1))


def _numbers(first: int, end: int) -> str:
    return f"{first}" if end - first == 1 else f"{first}-{end - 1}"


def _these(gpus: int) -> str:
    return f"this machine shows {gpus}"
