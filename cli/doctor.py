"""`headrace doctor`: what this machine can run, what is missing, and what to do about it.

Exit status 0 where a run can start here, else 1. `missing` stops a run, `optional` is something it can do without.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cli import machine
from cli.machine import Check

EPILOG = """examples:
  headrace doctor             a second: what is installed, memory, disk, ports
  headrace doctor --deep      a minute: also whether torch, transformers and vLLM import
  headrace doctor --json      the same for a program
"""
STYLES = {"ok": "green", "optional": "yellow", "missing": "bold red"}


def add_parser(subparsers: Any) -> None:
    """Add `doctor` to the subparsers of the `headrace` command."""
    doctor = subparsers.add_parser(
        "doctor",
        help="say what this machine can run and what is missing",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    doctor.add_argument("--deep", action="store_true", help="also import torch, transformers and vLLM (a minute)")
    doctor.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; returns 0 where a run can start on this machine, else 1."""
    checks = machine.quick_checks(Path.cwd())
    if args.deep:
        checks += machine.deep_checks()
    engine = machine.chosen_engine(checks)
    ready = engine is not None and all(check.state != "missing" for check in checks)
    if args.json:
        print(json.dumps({"ready": ready, "engine": engine, "checks": [asdict(c) for c in checks]}, indent=2))
    else:
        _print_report(checks, engine, ready)
    return 0 if ready else 1


def _print_report(checks: list[Check], engine: str | None, ready: bool) -> None:
    """A line for each, which only the terminal itself may break: paths and commands can be copied as they are."""
    console, width = Console(highlight=False, markup=False), max(len(check.name) for check in checks)
    for check in checks:
        state = (f"{check.state:<8}", STYLES[check.state])
        console.print(Text.assemble(f"  {check.name:<{width}}  ", state, f"  {check.found}"), soft_wrap=True)
        if check.advice:
            console.print(f"  {'':<{width}}  {'':<8}  {check.advice}", style="dim", soft_wrap=True)
    console.print()
    if ready:
        console.print(f"This machine can run Headrace; actors generate with the {engine} engine.")
    else:
        console.print("This machine cannot run Headrace yet: see the lines marked missing.", style="bold red")
