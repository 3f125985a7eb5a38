"""`headrace chaos`: a run whose processes, connections and files are struck at random, and a verdict from its log."""

import argparse
import sys
from pathlib import Path
from typing import Any

from cli.numbers import number, setting

EPILOG = """examples:
  headrace chaos examples/atlas.toml                            five minutes of faults, then the rest of the run
  headrace chaos examples/atlas.toml --minutes 30 --seed 7 --run.steps 400
  headrace chaos examples/atlas.toml --against runs/atlas-001   hold EM against a run without faults
  headrace chaos --check runs/atlas-chaos                       judge the log of such a run again

Exit status 0: the log keeps every rule; 1: a rule is broken, the run did not come to its end, or its EM is not that of
--against; docs/chaos.md says what the rules are. The run has a server, ports and a folder of its own: what else runs
here is left alone.
"""
MINUTES, EVERY_S, LONGEST_S = 5.0, 12.0, 60.0
SUFFIX = "-chaos"


def add_parser(subparsers: Any) -> None:
    """Add `chaos` to the subparsers of the `headrace` command."""
    chaos = subparsers.add_parser(
        "chaos",
        help="strike a run at random and judge its log",
        usage="headrace chaos CONFIG.toml [--minutes N] [--seed S] [--json] [--section.key VALUE ...]\n"
        "       headrace chaos --check RUN_DIR [--json]",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chaos.add_argument("config", nargs="?", metavar="CONFIG.toml", help="the configuration; see examples/")
    chaos.add_argument(
        "--minutes",
        type=number(float, gt=0, le=10_080),  # a week
        default=MINUTES,
        metavar="N",
        help=f"how long faults go on (default {MINUTES:g})",
    )
    chaos.add_argument(
        "--seed",
        type=setting("run.seed"),
        default=0,
        metavar="S",
        help="decides which faults, on whom and when (default 0)",
    )
    chaos.add_argument(
        "--every",
        type=number(float, ge=1, le=86_400),
        default=EVERY_S,
        metavar="S",
        help=f"seconds from fault to fault (default {EVERY_S:g})",
    )
    chaos.add_argument(
        "--max-stop",
        type=number(float, gt=0, le=86_400),
        default=LONGEST_S,
        metavar="S",
        help=f"seconds that a fault lasts at most (default {LONGEST_S:g})",
    )
    chaos.add_argument("--against", metavar="RUN_DIR", help="a finished run without faults, for its EM")
    chaos.add_argument("--check", metavar="RUN_DIR", help="only judge the log of a run that is over")
    chaos.add_argument("--json", action="store_true", help="print the result as JSON; progress goes to stderr")
    chaos.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when every rule held, 1 when not, 130 after Ctrl-C."""
    from cli.chaos import report
    from shared.errors import UserError

    if (args.config is None) == (args.check is None):
        raise UserError("name either a configuration (headrace chaos CONFIG.toml) or a run to judge (--check RUN_DIR).")
    if args.check is not None:
        return _check(Path(args.check), args.json)
    without = _summary_of(Path(args.against)) if args.against else None
    config = _resolve(args)
    record, stopped = _make(config, args, without)
    file = report.write(config.run_dir, record)
    _print(record, config.run.name, args.json)
    if not args.json:
        print(f"All of it is in {file}.")
    return 130 if stopped else int(not record["passed"])


def _check(folder: Path, as_json: bool) -> int:
    import json

    from cli.chaos.checker import check_run
    from cli.up import resolve

    verdict = check_run(resolve(None, str(folder), []))
    if as_json:
        found = {"passed": verdict.passed, "finished": verdict.finished, "broken": verdict.broken}
        print(json.dumps(found | {"log": verdict.counts}, indent=1))
    else:
        if cut := verdict.counts["bytes_cut_off"]:
            print(f"A kill has cut off the last {cut} bytes of the log, which never took effect.")
        print("\n".join(verdict.broken) or verdict.sentence)
    return int(not verdict.passed)


def _resolve(args: argparse.Namespace) -> Any:
    """The configuration, on ports and in a folder that nothing else has."""
    from cli import up
    from cli.overrides import is_set
    from cli.run.preflight import Preflight
    from cli.tau import free_name
    from shared.config import load
    from shared.errors import UserError

    asked = load(args.config, args.overrides)
    if asked.redis.url:
        raise UserError("chaos kills its Redis, so it starts one of its own: leave redis.url empty.")
    words = ["--search.port", "0", "--replay.port", "0"]
    if not is_set(args.overrides, "run.name"):
        words += ["--run.name", free_name(Path(asked.run.root), asked.run.name + SUFFIX)]
    config = up.resolve(args.config, None, [*args.overrides, *words])
    if config.run_dir.exists():
        raise UserError(
            f"{config.run_dir} is there already, and the log must be that of one run: set another run.name."
        )
    Preflight(config).check()
    return config


def _make(config: Any, args: argparse.Namespace, without: dict[str, Any] | None) -> tuple[dict[str, Any], bool]:
    """Make the run; its report, and whether the user stopped it."""
    import asyncio

    from cli.chaos import schedule
    from cli.chaos.checker import check_run
    from cli.chaos.report import report
    from cli.chaos.session import STILL_S, ChaosSession
    from cli.run import artefacts, plan, session
    from cli.run.progress import screen_for
    from cli.run.recorder import EVENTS, read_records
    from shared.cores import available
    from shared.errors import UserError

    run_dir: Path = config.run_dir
    faults = schedule.plan(args.seed, args.minutes, args.every, args.max_stop, plan.serves_search(config))
    (run_dir / "logs").mkdir(parents=True)
    out = sys.stderr if args.json else sys.stdout
    print(f"{len(faults)} faults in {args.minutes:g} minutes of the run in {run_dir}.", file=out, flush=True)

    ended, stopped = "", False
    with session.lock(run_dir):
        (run_dir / "config.toml").write_text(config.to_toml())
        screen = screen_for(out)
        made = ChaosSession(config, screen, available(), faults, args.seed)
        try:
            finished = asyncio.run(made.run()).finished
            if made.stood_still:
                ended = f"the run stood still for {STILL_S:g} s after the last fault, and was ended."
            stopped = not finished and not made.stood_still
        except UserError as error:
            ended = f"the run ended: {error}"
        finally:
            screen.close()
        summary = artefacts.write(run_dir, pictures=not ended and not stopped)
    records = read_records(run_dir / EVENTS)
    record = report(made.inflicted, len(faults), check_run(config), summary, without, records, ended)
    return {"seed": args.seed, "minutes": args.minutes} | record, stopped


def _summary_of(folder: Path) -> dict[str, Any]:
    import json

    from cli.run.artefacts import SUMMARY
    from shared.errors import UserError

    try:
        summary = json.loads((folder / SUMMARY).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"--against {folder}: it holds no summary of a run ({error}).") from None
    if summary.get("em_last") is None or not summary.get("eval_questions"):
        raise UserError(f"--against {folder}: that run was never evaluated, so it has no EM to hold this one against.")
    return summary


def _print(record: dict[str, Any], name: str, as_json: bool) -> None:
    import json

    from cli.chaos import report

    if as_json:
        print(json.dumps(record, indent=1))
    else:
        report.show(record, name)
