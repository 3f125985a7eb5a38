"""Which benchmarks there are, and their sizes, read from their files without importing them (some need torch)."""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Benchmark:
    """One file of this folder that measures."""

    name: str
    summary: str  # the first line of its docstring
    sizes: dict[str, Any]  # the arguments of `measure` and their defaults


def benchmarks() -> dict[str, Benchmark]:
    """All of them by name."""
    found = (_read(path) for path in sorted(FOLDER.glob("*.py")))
    return {benchmark.name: benchmark for benchmark in found if benchmark is not None}


def _read(path: Path) -> Benchmark | None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "measure" and path.name != "figure.py":
            names = [argument.arg for argument in node.args.kwonlyargs]
            defaults = [ast.literal_eval(default) for default in node.args.kw_defaults if default is not None]
            summary = (ast.get_docstring(tree) or "").partition("\n")[0].rstrip(".")
            return Benchmark(path.stem, summary, dict(zip(names, defaults, strict=True)))
    return None
