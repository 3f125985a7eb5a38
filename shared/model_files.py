"""The folder of a model: found and checked before torch is imported, so that a mistake is told at once."""

import json
import math
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.errors import UserError

SETTINGS_FILES = ("config.json", "generation_config.json", "tokenizer_config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")

LARGEST_HEADER = 100 * 2**20  # that safetensors reads

# For `from_pretrained`: a model is data. Neither its folder's Python files nor a pickle of weights is ever run.
NO_CODE = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}


def find_model(name: str, setting: str = "model.path") -> Path:
    """The folder a setting names: a path, or a hub name that the local cache holds.

    Raises UserError when it is neither, lacks its configuration, tokenizer or weights, or has settings nobody can read.
    """
    if not name:
        raise UserError(f"{setting} is empty: name a folder with config.json, a tokenizer and safetensors weights.")
    folder = Path(name)
    if not os.path.isdir(name):  # noqa: PTH112  Path's raises where a name is too long to be one
        folder = _cached(name, setting)
    missing = []
    if not (folder / "config.json").is_file():
        missing.append("config.json")
    if not any((folder / file).is_file() for file in TOKENIZER_FILES):
        missing.append("a tokenizer (tokenizer.json or tokenizer.model)")
    if not any(folder.glob("*.safetensors")):
        missing.append("weights (*.safetensors)")
    if missing:
        raise UserError(f"{setting} = '{name}' lacks {' and '.join(missing)}: point it at a complete model folder.")
    for file in SETTINGS_FILES:
        if (folder / file).is_file():
            read_settings(folder / file)
    return folder


def read_settings(file: Path) -> dict[str, Any]:
    """One of a model's SETTINGS_FILES. Raises UserError where it holds no JSON object."""
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read ({error}): copy the model again.") from None
    if not isinstance(settings, dict):
        raise UserError(f"{file} holds no settings: copy the model again.")
    return settings


def text_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a config.json says of its language model: of one that also takes images, its text part comes first."""
    text = settings.get("text_config")
    return {**settings, **(text if isinstance(text, dict) else {})}


def positions_of(folder: Path) -> int | None:
    """Tokens that the model in a folder can take at once, by its config.json; None where it does not say."""
    positions = text_settings(read_settings(folder / "config.json")).get("max_position_embeddings")
    return positions if isinstance(positions, int) and positions else None


def parameters_of(folder: Path) -> int:
    """How many numbers the folder's safetensors hold, by their headers; what is none of them counts nothing."""
    return sum(_numbers_in(file) for file in folder.glob("*.safetensors"))


def _numbers_in(file: Path) -> int:
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(min(size, LARGEST_HEADER)))
        return sum(
            math.prod(map(operator.index, entry["shape"])) for name, entry in header.items() if name != "__metadata__"
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 0


def _cached(name: str, setting: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        raise UserError(
            f"{setting} = '{name}' is neither a folder nor in the local model cache: mend the path, or download it."
        ) from None
