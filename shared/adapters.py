"""LoRA adapters (Hu et al. 2021) in a model and in files: what the learner trains is what the engines put in.

    y = W x + (alpha / rank) B A x          W frozen, A [rank, in] random, B [out, rank] zero at the start

The files are peft's: `adapter_config.json` and `adapter_model.safetensors`. Adapters are float32 and are not merged
into W, whose bfloat16 would round small updates away. torch and peft are imported by what needs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from blake3 import blake3

from shared.errors import UserError
from shared.messages import UNREADABLE
from shared.model_files import find_model
from shared.weights import update_from

if TYPE_CHECKING:
    from torch import Tensor

    from shared.settings import Learner

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE = "base.json"  # beside them: which model they belong to, and the digest of its weights
ALL = "all"
_NAME = "default"  # peft's, of the one adapter there is
T = TypeVar("T")


class _Base(msgspec.Struct):
    """BASE."""

    base: str
    digest: str


class _Made(msgspec.Struct):
    """What is wanted of peft's configuration."""

    r: int
    lora_alpha: int | float
    target_modules: list[str]


def digest_of_base(folder: Path) -> str:
    """BLAKE3 of a model's weights, file after file."""
    hasher = blake3()
    for path in sorted(folder.glob("*.safetensors")):
        update_from(hasher, path)
    return hasher.hexdigest()


def base_of(folder: Path) -> Path:
    """The model beside which a checkpoint's adapters were trained. UserError where it is not there, or another now."""
    made_for = _read(folder / BASE, _Base)
    base = find_model(made_for.base, BASE)
    if digest_of_base(base) != made_for.digest:
        raise UserError(f"the weights in {base} are not those beside which {folder} was trained: put them back.")
    return base


def settings_of(folder: Path) -> dict[str, object]:
    """The settings of the learner that make adapters of the kind that the folder holds, by their dotted names."""
    made = _read(folder / CONFIG, _Made)
    return {
        "learner.lora_rank": made.r,
        "learner.lora_alpha": made.lora_alpha,
        "learner.lora_targets": ",".join(sorted(made.target_modules)),
    }


def _read(file: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, *UNREADABLE) as error:
        raise UserError(f"{file} cannot be read ({error}): adapters need it as it was written beside them.") from None


def add_adapters(model: Any, settings: Learner) -> None:
    """Put fresh adapters beside the chosen layers of a loaded model; they alone have a gradient.

    Raises UserError for target names that the model does not have.
    """
    try:
        import peft
    except ImportError:
        raise UserError(
            "learner.lora_rank is set and peft is not installed here: pip install peft, or set it to 0."
        ) from None

    targets = settings.lora_targets.replace(" ", "").split(",")
    linear = _linear_layers(model)
    if unknown := sorted(set(targets) - linear - {ALL}):
        raise UserError(
            f"learner.lora_targets names {', '.join(unknown)}, and the model's linear layers are "
            f"{', '.join(sorted(linear))}."
        )
    chosen = linear if ALL in targets else linear & set(targets)
    alpha = settings.lora_alpha or 2 * settings.lora_rank
    config = peft.LoraConfig(
        r=settings.lora_rank, lora_alpha=alpha, target_modules=sorted(chosen), bias="none", task_type="CAUSAL_LM"
    )
    peft.inject_adapter_in_model(config, model)
    for adapter in (p for name, p in model.named_parameters() if ".lora_" in name and p.dtype.itemsize < 4):
        adapter.data = adapter.data.float()
    model.eval()


def has_adapters(model: Any) -> bool:
    """Whether `add_adapters` was called on it."""
    return hasattr(model, "peft_config")


def adapters_of(model: Any) -> dict[str, Tensor]:
    """The adapters of a model, A and B of each layer, by their names in the file; the tensors are the model's own."""
    return {name: p.data for name, p in parameters_of(model).items()}


def parameters_of(model: Any) -> dict[str, Tensor]:
    """The same by the model's parameters, which can be given other tensors."""
    return {_file_name(name): p for name, p in model.named_parameters() if ".lora_" in name}


def _file_name(parameter: str) -> str:
    return "base_model.model." + parameter.replace(f".{_NAME}.", ".")


def _linear_layers(model: Any) -> set[str]:
    import torch

    head = model.get_output_embeddings()
    return {
        name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head
    }
