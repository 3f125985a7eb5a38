"""`headrace bench`: figures as ratios, each to a limit of this machine or a peer that is measured in the same run.

Each benchmark runs in a process of its own, one after the other. A target that is missed is no error:
docs/performance.md says what bounds it. A machine that does other work gives other ratios; the spread is over
repetitions within this run.
"""

import argparse
import json
import platform
import subprocess
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.catalogue import Benchmark, benchmarks
from benchmarks.figure import Figure, figure_of, shown, target
from benchmarks.leaving import leaves_by_itself
from cli.numbers import MOST, number
from shared.cores import available
from shared.errors import UserError
from shared.nearest import hint

EPILOG = """examples:
  headrace bench --list                          what there is, with sizes
  headrace bench selection store                 two of them, at the sizes of a two-core machine
  headrace bench selection --size groups=1000000
  headrace bench --json > figures.json           all, with every repetition
"""
WIDTH = 160  # of the table in a file or a pipe


def add_parser(subparsers: Any) -> None:
    """Add `bench` to the subparsers of the `headrace` command."""
    bench = subparsers.add_parser(
        "bench",
        help="measure this machine: ratios to its limits and to peers",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks; all of them by default")
    bench.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    bench.add_argument("--json", action="store_true", help="print every repetition as JSON")
    bench.add_argument(
        "--size", action="append", default=[], metavar="SIZE=VALUE", help="another size, for each NAME that has it"
    )
    bench.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns 1 where a benchmark failed. UserError for a name or a size that there is not."""
    known = benchmarks()
    for name in args.names:
        if name not in known:
            raise UserError(f"there is no benchmark '{name}'; {hint(name, known)}")
    chosen = [known[name] for name in dict.fromkeys(args.names or known)]
    sizes = _sizes(args.size, chosen)
    if args.list:
        _print_list(chosen)
        return 0
    figures: dict[str, list[Figure]] = {}
    failed: list[str] = []
    for i, benchmark in enumerate(chosen, 1):
        print(f"[{i}/{len(chosen)}] {benchmark.name}: {benchmark.summary}", file=sys.stderr, flush=True)
        try:
            figures[benchmark.name] = _measure(benchmark, sizes)
        except subprocess.CalledProcessError as error:
            failed.append(benchmark.name)
            print(f"{benchmark.name} failed with status {error.returncode}: see above.", file=sys.stderr)
    if args.json:
        records = {name: [figure.record() for figure in made] for name, made in figures.items()}
        print(json.dumps({"machine": _machine(), "sizes": sizes, "figures": records, "failed": failed}, indent=2))
    else:
        _print_table([figure for made in figures.values() for figure in made])
    return 1 if failed else 0


def _sizes(words: list[str], chosen: list[Benchmark]) -> dict[str, str]:
    """SIZE=VALUE by size; each must be one that a chosen benchmark has."""
    known = {size for benchmark in chosen for size in benchmark.sizes}
    sizes: dict[str, str] = {}
    for word in words:
        size, equals, value = word.partition("=")
        if not (equals and value):
            raise UserError(f"--size {word}: write --size SIZE=VALUE, like --size groups=1000.")
        if size not in known:
            raise UserError(f"--size {word}: what is measured has no size '{size}'; {hint(size, sorted(known))}")
        try:
            for default in (benchmark.sizes[size] for benchmark in chosen if size in benchmark.sizes):
                _size(value, default)
        except argparse.ArgumentTypeError as error:
            raise UserError(f"--size {word}: {size} {error}.") from None
        sizes[size] = value
    return sizes


def _size(text: str, default: Any) -> str:
    """As a benchmark's process reads it, of the kind of the default."""
    if isinstance(default, str):
        return text
    if isinstance(default, tuple):
        kind = type(default[0])
        words = text.strip("() ,").split(",")
        return f"({', '.join(str(number(kind, ge=0, le=MOST)(word)) for word in words)},)"
    return str(number(type(default), ge=int(isinstance(default, int)), le=MOST)(text))


def _measure(benchmark: Benchmark, sizes: dict[str, str]) -> list[Figure]:
    flags = [
        f"--{size}={_size(value, benchmark.sizes[size])}" for size, value in sizes.items() if size in benchmark.sizes
    ]
    command = [sys.executable, "-m", "benchmarks", benchmark.name, "--json", *flags]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    with leaves_by_itself(child):
        printed, _ = child.communicate()
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return [figure_of(record) for record in json.loads(printed)]


def _machine() -> dict[str, Any]:
    return {"cores": len(available()), "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(), "system": platform.platform()}  # fmt: skip


def _print_list(chosen: list[Benchmark]) -> None:
    console, width = Console(highlight=False), max(len(benchmark.name) for benchmark in chosen)
    for benchmark in chosen:
        console.print(f"  {benchmark.name:<{width}}  {benchmark.summary}", markup=False, soft_wrap=True)
        shown_sizes = "  ".join(f"{size}={value}" for size, value in benchmark.sizes.items())
        console.print(f"  {'':<{width}}  {shown_sizes}", style="dim", markup=False, soft_wrap=True)
    console.print(
        "Below each name are its sizes, how much is measured and how often, with their defaults: --size SIZE=VALUE "
        "changes one.",
        soft_wrap=True,
    )


def _print_table(figures: list[Figure]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("figure")
    for heading in ("ours", "limit or peer", "ratio", "spread", "times", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("met")
    for figure in figures:
        record, (low, high) = figure.record(), figure.spread
        table.add_row(
            figure.name,
            f"{shown(record['median'])} {figure.unit}",
            f"{shown(record['peer_median'])}" if figure.peer else "",
            shown(figure.ratio) if figure.ratio is not None else "",
            f"{shown(low)} - {shown(high)}",
            str(figure.repetitions),
            target(figure),
            {True: "[green]yes[/]", False: "[bold red]no[/]", None: ""}[figure.met],
        )
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(table)
    for figure in figures:
        words = [f"against {figure.against}" if figure.against else "", figure.note]
        if said := "; ".join(word for word in words if word):
            console.print(f"[dim]{figure.name}:[/] ", end="")
            console.print(said, style="dim", markup=False, soft_wrap=True)
