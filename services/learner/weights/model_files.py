"""What lies beside a model's weights and goes with them into every checkpoint and published version."""

from pathlib import Path

from shared.model_files import TOKENIZER_FILES

_COMPANIONS = (
    *TOKENIZER_FILES,
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


def read_companions(folder: Path) -> dict[str, bytes]:
    """What lies beside the weights, by file name: the tokenizer, its template, the generation settings.

    Held in memory, because a checkpoint that was resumed from is deleted later.
    """
    return {name: (folder / name).read_bytes() for name in _COMPANIONS if (folder / name).is_file()}


def ids_of(folder: Path) -> int | None:
    """Above the largest token id of the folder's tokenizer.json; None where there is none. A model may have more rows:
    families pad them, each size to a number of its own.
    """
    from tokenizers import Tokenizer

    try:
        return 1 + max(Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab().values())
    except Exception:  # noqa: BLE001, it raises no other type
        return None
