"""Adapters in the learner: onto the base they were made for, into the files of peft, and left out as a KL reference.

A checkpoint or version holds the adapters, and `base.json` says what they belong to. What the base computes is found
again by leaving the adapters out, so a KL term to it needs no second model.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from services.learner.model.policy import SCORED, device_of, score
from services.learner.weights.model_writer import written
from shared.adapters import BASE, CONFIG, WEIGHTS, adapters_of, add_adapters, digest_of_base, parameters_of
from shared.errors import UserError
from shared.settings import Learner

log = logging.getLogger("headrace")


def adapt(model: Any, settings: Learner, base: Path, name: str) -> None:
    """Have the loaded `base`, which the user calls `name`, train adapters alone."""
    add_adapters(model, settings)
    for adapter in parameters_of(model).values():
        adapter.data = adapter.data.to(device_of(model))  # shards of the base may lie elsewhere
    shown = str(base.resolve()) if Path(name).is_dir() else name
    model.peft_config["default"].base_model_name_or_path = shown
    model.headrace_base = {"base": shown, "digest": digest_of_base(base)}
    few, all_of_it = (sum(p.numel() for p in of) for of in (adapters_of(model).values(), model.parameters()))
    log.info(
        "adapters of %d parameters beside %d: a version is %.1f MB instead of %.1f MB",
        few,
        all_of_it - few,
        few * 4 / 1e6,
        (all_of_it - few) * model.dtype.itemsize / 1e6,
    )


def load_adapters(model: Any, folder: Path) -> None:
    """The adapters of a checkpoint. UserError where they are of another base, rank or choice of layers."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} holds a whole model and learner.lora_rank is set: set it to 0, or start a new run.")
    made_for = json.loads((folder / BASE).read_text())
    if made_for["digest"] != model.headrace_base["digest"]:
        raise UserError(
            f"the adapters in {folder} were trained beside {made_for['base']}, and the weights of model.path are "
            "others: set it back, or start a new run."
        )
    stored, own = load_file(folder / WEIGHTS), adapters_of(model)
    same_alpha = json.loads((folder / CONFIG).read_text())["lora_alpha"] == model.peft_config["default"].lora_alpha
    if not same_alpha or {n: t.shape for n, t in stored.items()} != {n: t.shape for n, t in own.items()}:
        raise UserError(
            f"the adapters in {folder} are of another learner.lora_rank, learner.lora_alpha or learner.lora_targets: "
            "set them back, or start a new run."
        )
    for name, tensor in stored.items():
        own[name].copy_(tensor)


def write_adapters(model: Any, folder: Path) -> None:
    """As peft and vLLM read them; without a config.json, beside which transformers would look for the base."""
    model.peft_config["default"].save_pretrained(folder)
    (folder / BASE).write_text(json.dumps(model.headrace_base, indent=1))
    adapters = adapters_of(model)
    writing = written(folder / WEIGHTS, {name: (tuple(t.shape), t.dtype) for name, t in adapters.items()})
    next(writing)
    for tensor in adapters.values():
        writing.send(tensor.cpu())
    writing.close()


class WithoutAdapters:
    """The same model to `policy.logprobs`, as it was before any training."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def headrace_score(self, *args: Any) -> Tensor:
        """As `policy.SCORED` says."""
        run = getattr(self._model, SCORED, None)
        with _left_out(self._model):
            return run(*args) if run else score(self._model, *args)


@contextmanager
def _left_out(model: Any) -> Iterator[None]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [m for m in model.modules() if isinstance(m, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
