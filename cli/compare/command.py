"""`headrace compare`: configurations (arms) over seeds, run after run on this machine, and a report with intervals."""

import argparse
import sys
from pathlib import Path
from typing import Any

EPILOG = """examples:
  headrace compare examples/studies/quick.toml               make the runs that are missing, then the report
  headrace compare examples/studies/quick.toml --dry-run     the runs, their steps, and about how long it takes
  headrace compare my.toml --report-only                     the report of what is made so far
  headrace compare my.toml --actor.count 1                   a setting for all arms, on top of [common]

A study may be stopped with Ctrl-C, or killed, at any time; the same command goes on with the run that was cut off, from
its beginning. What a study file says is in docs/comparisons.md.
"""


def add_parser(subparsers: Any) -> None:
    """Add `compare` to the subparsers of the `headrace` command."""
    compare = subparsers.add_parser(
        "compare",
        help="compare configurations over seeds",
        usage="headrace compare STUDY.toml [--dry-run | --report-only] [--section.key VALUE ...]",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument("study", metavar="STUDY.toml", help="the arms and seeds; see examples/studies/")
    compare.add_argument("--dry-run", action="store_true", help="check, and show what would be run; start nothing")
    compare.add_argument("--report-only", action="store_true", help="write the report of the runs that are there")
    compare.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make the runs and the report: 0, or 130 after Ctrl-C."""
    from cli.compare import evaluation, report, runner
    from cli.compare.screen import StudyScreen
    from cli.compare.study import read_study
    from shared.config import parse_overrides
    from shared.errors import UserError

    study = read_study(Path(args.study), parse_overrides(args.overrides))
    made = {r.name: note["seconds"] for r in study.runs if (note := runner.trained(r)) is not None}
    if args.report_only:
        if not made:
            raise UserError(f"no run of the study is made yet in {study.folder}: leave --report-only away.")
        evaluation.refuse_other_questions(study, [r for r in study.runs if runner.is_made(study, r)])
        _say(report.write(study))
        return 0
    runner.check(study)
    _print_plan(study, made)
    if args.dry_run:
        return 0
    screen = StudyScreen(study, sys.stdout, made)
    try:
        finished = runner.make_all(study, screen)
    finally:
        screen.close()
    if not finished:
        done = sum(runner.is_made(study, r) for r in study.runs)
        print(f"Stopped with {done} of {len(study.runs)} runs made; the same command goes on.")
        return 130
    _say(report.write(study))
    return 0


def _print_plan(study: Any, made: dict[str, float]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from cli.compare.screen import pace_of
    from cli.run.progress import clock

    head = study.head
    title = f"study {head.name}: {len(study.arms)} arms x {len(head.seeds)} seeds = {len(study.runs)} runs"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for name in ("arm", "b", "K", "steps", "fresh groups", "made", "settings"):
        table.add_column(name, justify="left" if name in ("arm", "settings") else "right")
    for arm in study.arms:
        runs = [r for r in study.runs if r.arm == arm]
        config, done = runs[0].config, sum(r.name in made for r in runs)
        settings = ", ".join(f"{key} = {value}" for key, value in study.settings[arm].items())
        steps, b = config.run.steps, config.learner.batch
        table.add_row(arm, str(b), str(runs[0].wanted), str(steps), str(steps * b), f"{done}/{len(runs)}", settings)
    Console(markup=False).print(table)
    groups = {r.name: r.config.run.steps * r.config.learner.batch for r in study.runs}
    pace = pace_of(groups, made) or head.group_seconds
    left = pace * sum(n for name, n in groups.items() if name not in made)
    if not pace:
        print("How long it takes is known when the first run is made (or from [study] group_seconds).")
    elif left:
        source = "the runs that are made, without evaluations" if made else "[study] group_seconds"
        print(f"About {clock(left)} left: {pace:.3g} s a fresh group, from {source}.")
    print(f"In {study.folder}", flush=True)


def _say(page: Path) -> None:
    print(f"The report: {page} (and report.md, runs.csv, steps.csv, differences.csv, plots/)")
