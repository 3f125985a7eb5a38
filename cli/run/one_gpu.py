"""Whether a learner and vLLM fit the one GPU that they share, before either is started. Pure."""

import math

from shared.checkpoints import MASTER_BYTES, MOMENTS_BYTES
from shared.config import Config
from shared.gpus import Gpu

GIB = 2**30


def refusal(config: Config, gpu: Gpu, parameters: int, own: int) -> str | None:
    """Why the run could never begin, in a sentence; None where it can, or where the driver does not say what there is.

    parameters: of the model; own: bytes of one in the learner. vLLM takes its share of the GPU for itself, and does
    not start where less is free.
    """
    actors, share = config.actor.count, config.actor.gpu_memory_utilization
    learner, engines = learner_bytes(config, parameters, own), actors * share * gpu.total
    if not gpu.total or not actors or learner + engines <= gpu.total:
        return None
    room = (gpu.total - learner) / actors
    fits = math.floor(100 * room / gpu.total) / 100
    lower = f"set actor.gpu_memory_utilization to {fits:g} or less, which leaves nothing to activations"
    smaller = "train with learner.offload or learner.lora_rank, or give the actors GPUs of their own"
    return (
        f"this machine's one GPU has {gpu.total / GIB:.1f} GiB, of which the learner takes {learner / GIB:.1f}, "
        f"activations aside, and actor.count = {actors} with actor.gpu_memory_utilization = {share:g} "
        f"{engines / GIB:.1f}: {lower if room > own * parameters else smaller}."
    )


def learner_bytes(config: Config, parameters: int, own: int) -> int:
    """On its GPU, activations aside: the model, masters, gradients of both, moments (docs/operations.md)."""
    c = config.learner
    if c.lora_rank:
        return parameters * own
    beside = 0 if c.offload else MOMENTS_BYTES[c.optimizer] + (0 if own == MASTER_BYTES else 2 * MASTER_BYTES)
    return parameters * (2 * own + beside)
