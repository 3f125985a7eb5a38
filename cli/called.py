"""How the command is called here, so that what is suggested can be typed as it stands."""

import re
import shutil
import sys
from pathlib import Path


def called() -> str:
    """`headrace` where the shell finds it, else the path of the one in this environment."""
    script = Path(sys.executable).with_name("headrace")
    if shutil.which("headrace") or not script.exists():
        return "headrace"
    return shorten(script)


def as_called(sentence: str) -> str:
    """The sentence with every command in backquotes as it is called here."""
    return re.sub(r"`headrace(?= )", lambda _: f"`{called()}", sentence)


def shorten(path: Path) -> str:
    """Relative to the working directory where it lies below it."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
