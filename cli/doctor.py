"""`headrace doctor`: what this machine can run, what is missing, and what to do about it."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from cli import machine
from cli.machine import Check

STYLES = {"ok": "green", "optional": "yellow", "missing": "bold red"}


def add_parser(subparsers: Any) -> None:
    """Add `doctor` to the subparsers of the `headrace` command."""
    doctor = subparsers.add_parser("doctor", help="say what this machine can run and what is missing")
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
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("what", "state", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        style = STYLES[check.state]
        table.add_row(check.name, f"[{style}]{check.state}[/]", check.found, check.advice)
    console = Console()
    console.print(table)
    if ready:
        console.print(f"This machine can run Headrace; actors generate with the {engine} engine.")
    else:
        console.print("This machine cannot run Headrace yet: see the lines marked missing.", style="bold red")
