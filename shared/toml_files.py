"""TOML read from a file and written: a file that is none is told in a sentence."""

import re
import tomllib
from pathlib import Path
from typing import Any

from shared.errors import UserError


def read_toml(path: Path, what: str, example: str) -> dict[str, Any]:
    """The file's tree. UserError in a sentence; `what` it is and an `example` to start from are for one not there."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # some editors write a mark in front
    except IsADirectoryError:
        if (path / "config.toml").is_file():
            raise UserError(
                f"{path} is the folder of a run, not a {what}: `headrace up --resume {path}` continues that run, and "
                f"{path / 'config.toml'} is its configuration."
            ) from None
        raise UserError(f"{path} is a folder, not a {what}: name a file.") from None
    except FileNotFoundError:
        raise UserError(f"there is no {what} {path}: check the path, or start from {example}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: save it as UTF-8.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(_twice(path, str(error)) or f"{path} is not valid TOML: {error}.") from None
    except RecursionError:
        raise UserError(f"{path} is not valid TOML: its brackets are nested too deep.") from None


def _twice(path: Path, error: str) -> str | None:
    """What is said of a key or a section that stands in the file twice, which the library calls overwriting."""
    if not error.startswith(("Cannot overwrite", "Cannot declare", "Duplicate")):
        return None
    lines = path.read_text("utf-8-sig").rstrip().splitlines()
    at = re.search(r"at line (\d+)", error)
    number = int(at[1]) if at else len(lines)
    key = lines[number - 1].partition("=")[0].partition("#")[0].strip()
    return f"{path} line {number}: {key} is set above already: keep one of the two."


def as_toml(value: Any) -> str:
    """A truth, a number or a text as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found.group()):04x}", escaped) + '"'
    return repr(value)
