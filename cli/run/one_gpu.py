"""Whether a learner and vLLM fit the one GPU that they share, before either is started. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.checkpoints import MASTER_BYTES, MOMENTS_BYTES
from shared.config import Config
from shared.gpus import Gpu
from shared.model_files import text_settings

GIB = 2**30


@dataclass(frozen=True)
class Model:
    """What the learner holds. `architecture`: its config.json."""

    parameters: int
    own: int  # bytes of one in the learner
    reference: int = 0  # parameters of the frozen model of the KL term
    architecture: Mapping[str, Any] | None = None


def refusal(config: Config, gpus: list[Gpu], model: Model) -> str | None:
    """Why the run could never begin, in a sentence; None where it can, or where the driver does not say what there is.

    gpus: that everybody sees, and takes the first of. vLLM takes its share of it for itself, and does not start where
    less is free.
    """
    actors, share, total = config.actor.count, config.actor.gpu_memory_utilization, gpus[0].total
    held, activations = learner_bytes(config, model), activation_bytes(config, model)
    engines = actors * share * total
    if not total or not actors or held + activations + engines <= total:
        return None
    room = (total - held - activations) / actors
    fits = math.floor(100 * room / total) / 100
    which = "this machine's one GPU"
    if len(gpus) > 1:
        which = f"the first of the {len(gpus)} GPUs here, which learner and actors take with run.gpus = 'share',"
    lower = f"set actor.gpu_memory_utilization to {fits:g} or less"
    smaller = (
        "lower learner.micro_tokens, train with learner.recompute, learner.offload or learner.lora_rank, or give the "
        "actors GPUs of their own"
    )
    return (
        f"{which} has {total / GIB:.1f} GiB, of which the learner takes {held / GIB:.1f} and {activations / GIB:.1f} "
        f"for activations of learner.micro_tokens = {config.learner.micro_tokens}, and actor.count = {actors} with "
        f"actor.gpu_memory_utilization = {share:g} {engines / GIB:.1f}: "
        f"{lower if room > model.own * model.parameters else smaller}."
    )


def learner_bytes(config: Config, model: Model) -> int:
    """On its GPU, activations aside: the model, masters, gradients of both, moments, and the frozen model of the KL
    term (docs/operations.md); of several ranks, on each.
    """
    c, own = config.learner, model.own
    frozen = model.reference * own
    if c.ranks > 1 and c.offload:
        return 0  # but for the layer that runs
    if c.lora_rank:
        return (model.parameters * own + frozen) // c.ranks
    if c.ranks > 1:
        return (model.parameters * (2 * MASTER_BYTES + MOMENTS_BYTES[c.optimizer]) + frozen) // c.ranks
    beside = 0 if c.offload else MOMENTS_BYTES[c.optimizer] + (0 if own == MASTER_BYTES else 2 * MASTER_BYTES)
    return model.parameters * (2 * own + beside) + frozen


def activation_bytes(config: Config, model: Model) -> int:
    """What the backward pass of a micro-batch needs at the least (docs/operations.md); 0 where the model does not say.

    Of each token a layer keeps numbers, with width d, keys of k and a gated MLP of m: what its norms take, make of it
    and give (6 d), queries and what attention makes (2 d), keys and values (2 k), gate, its activation, up and their
    product (4 m; 2 m without a gate). Under adapters a frozen layer needs no inputs: 4 d + 2 k + 3 m, or 1 m.
    Recomputed are all but what goes into the layers and what one of them keeps.
    """
    a = text_settings(model.architecture or {})
    width, layers, heads = (a.get(key) or 0 for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    if not (width and layers and heads):
        return 0
    keys = (a.get("num_key_value_heads") or heads) * (a.get("head_dim") or width // heads)
    mlp = 0 if any("experts" in key for key in a) else a.get("intermediate_size") or 0  # which expert is not known
    gated = 2 if a.get("hidden_act") == "silu" else 0
    c, frozen = config.learner, config.learner.lora_rank > 0
    kept = (4 if frozen else 8) * width + 2 * keys + (gated + (1 if frozen else 2)) * mlp
    numbers = layers * width + kept if c.recompute else layers * kept
    groups = c.mini_batch or c.batch
    tokens = min(c.micro_tokens, groups * config.rollout.group_size * config.rollout.max_tokens // c.ranks)
    return tokens * numbers * model.own
