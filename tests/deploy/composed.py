"""The compose files as `docker compose` reads them, as far as they go: variables, merging, published ports."""

import re
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
FORMS = [
    ("compose.yaml",),
    ("compose.yaml", "compose.gpu.yaml"),
]
_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?:(:?[-?])([^}]*))?\})")


def loaded(files: tuple[str, ...], variables: dict[str, str]) -> dict[str, Any]:
    """The files, later ones on top, with these variables filled in. KeyError: one that is needed is not there."""
    made: Any = {}
    for file in files:
        made = _merged(made, _filled(yaml.safe_load((REPOSITORY / file).read_text()), variables))
    return made


def defaults(files: tuple[str, ...]) -> dict[str, str]:
    """What the files themselves take for each variable that has a default."""
    text = "".join((REPOSITORY / file).read_text() for file in files)
    found = [(name, value) for _, name, how, value in _VARIABLE.findall(text) if how.endswith("-")]
    assert len(set(found)) == len(dict(found)), "one variable, two defaults"
    return dict(found)


def env_file(name: str) -> dict[str, str]:
    """A file of NAME=VALUE lines."""
    lines = (REPOSITORY / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))


def published(service: dict[str, Any]) -> list[tuple[str, int]]:
    """(address of the host, port of the host) of each port, written short or long; no address is 0.0.0.0."""
    found = []
    for port in service.get("ports", []):
        if isinstance(port, dict):
            found.append((port.get("host_ip", "0.0.0.0"), int(port["published"])))
            continue
        *address, host, _ = str(port).partition("/")[0].rsplit(":", 2) if ":" in str(port) else ("0", str(port))
        found.append((address[0].strip("[]") if address else "0.0.0.0", int(host)))
    return found


def _filled(value: Any, variables: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, variables) for item in value]
    return _VARIABLE.sub(lambda found: _value(found, variables), value) if isinstance(value, str) else value


def _value(found: re.Match[str], variables: dict[str, str]) -> str:
    dollar, name, how, default = found.groups()
    if dollar:
        return dollar
    value = variables.get(name)
    if value is None or (not value and how and how.startswith(":")):
        if not (how and how.endswith("-")):
            raise KeyError(f"{name}: {default or 'it is not set'}")
        return default
    return value


def _merged(under: Any, over: Any) -> Any:
    """Mappings key by key, lists one after the other, of anything else the later."""
    if isinstance(under, dict) and isinstance(over, dict):
        return {key: _merged(under.get(key), over.get(key)) if key in over else under[key] for key in {**under, **over}}
    if isinstance(under, list) and isinstance(over, list):
        return under + over
    return over
