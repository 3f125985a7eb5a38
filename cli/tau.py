"""`headrace tau`: which gate on Drift suits a run, from a run that was made or from a short one that it makes.

tau scales with how far one training step moves the policy, so it is calibrated by decades: too tight and replay
starves, too wide and what is replayed drifts further away the longer the run goes.
"""

import argparse
from pathlib import Path
from typing import Any

from cli.numbers import setting

EPILOG = """examples:
  headrace tau runs/atlas-001                        from the step events of a run, finished or not
  headrace tau examples/atlas.toml                   from a short run of this configuration, in runs/<name>-tau
  headrace tau examples/atlas.toml --steps 60        a longer one
  headrace tau my.toml --learner.lr 2e-4             with another learning rate

A gate is judged by the groups that the run scanned. What a scan meets depends on the gate in force: take the
suggestion, run again, and ask again; it settles in one or two rounds. `replay.adaptive_tau` lets the gate follow a run.
"""
STEPS = 30
SUFFIX = "-tau"
FLOORS = 10  # so many times the noise of Drift and a gate is clear of it


def add_parser(subparsers: Any) -> None:
    """Add `tau` to the subparsers of the `headrace` command."""
    tau = subparsers.add_parser(
        "tau",
        help="suggest a gate for a configuration",
        usage="headrace tau RUN_DIR\n       headrace tau CONFIG.toml [--steps N] [--section.key VALUE ...]",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tau.add_argument("what", metavar="RUN_DIR or CONFIG.toml", help="a run's folder, or a configuration to try")
    tau.add_argument(
        "--steps",
        type=setting("run.steps"),
        default=STEPS,
        metavar="N",
        help=f"training steps of the short run (default {STEPS})",
    )
    tau.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else")
    tau.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the gates and the suggestion: 0, or 130 after Ctrl-C in the short run."""
    from shared.errors import UserError

    if args.steps < 3:
        raise UserError(f"--steps {args.steps}: the first steps scan nothing yet; {STEPS} is a good number.")
    folder = Path(args.what)
    if not folder.is_dir():
        if not folder.suffix and not folder.is_file():
            raise UserError(f"there is no run folder {folder}, and no configuration of that name: check the path.")
        if args.json:
            raise UserError(
                "--json prints nothing else, and a short run does: make the run first, then name its folder."
            )
        made = _short_run(args.what, args.steps, args.overrides)
        if made is None:
            return 130
        folder = made
    elif args.overrides:
        raise UserError(f"{args.overrides[0]} would change nothing of a run that was made: name its configuration.")
    _judge(folder, args.json)
    return 0


def _judge(folder: Path, as_json: bool) -> None:
    from cli.calibration import gates, suggest
    from cli.run.recorder import EVENTS, METRICS, read_records
    from cli.run.summary import last_of_each_step
    from shared.config import load
    from shared.errors import UserError

    if not (folder / METRICS).is_file():
        raise UserError(f"{folder} is not the folder of a run: it holds no {METRICS}.")
    config = load(folder / "config.toml", environ={})
    if config.replay.tau == 0:
        raise UserError(f"the run in {folder} had replay.tau = 0: its multiples say nothing of other gates.")
    steps = last_of_each_step(read_records(folder / EVENTS))
    found = gates(steps, config.replay.tau)
    if not found:
        raise UserError(f"the run in {folder} scanned no group in its {len(steps)} steps{_why(config, steps)}")
    best, why = suggest(found)
    scanned, floor = sum(step.get("scanned", 0) for step in steps), noise_floor(steps, config.replay.drift)
    if as_json:
        _print_json(found, best, why, scanned, floor)
    else:
        _print(folder, found, best, why, scanned, floor, config)


def noise_floor(steps: list[dict[str, Any]], measure: str) -> float | None:
    """Which Drift rounding alone gave in the run (`drift_noise`), in tau's measure; None where nothing told it."""
    from statistics import median

    told = [s["learner"]["drift_noise"] for s in steps if "drift_noise" in s.get("learner", {})]
    if not told:
        return None
    return median(told) if measure == "l2" else median(told) ** 0.5


def _why(config: Any, steps: list[dict[str, Any]]) -> str:
    """What kept a run from scanning anything, and what to do about it: the end of a sentence."""
    from services.replay.policies import get_policy

    if not get_policy(config.replay.policy).gated:
        return f" (replay.policy = '{config.replay.policy}'): a policy with a gate is needed, headroom_drift for one."
    if not any(step.get("mixed_groups") for step in steps):
        return (
            ": none of them had both right and wrong rollouts, so nothing was stored that could be scanned. Read the "
            "run's samples.md before its gate."
        )
    return ": what a step stores is scanned from the next one on, so make a longer run."


def _print(folder: Path, found: list[Any], best: Any, why: str, scanned: int, floor: float | None, config: Any) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from cli.calibration import LEAST_SCANNED
    from cli.run.progress import DASH
    from shared.latency import spoken

    def small(value: float | None) -> str:
        return DASH if value is None else f"{value:.2g}"

    table = Table(title=f"{folder.name}: {scanned} scanned groups", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("tau", "let in", "late", "KL", "early", "late", "climb", "judged"):
        table.add_column(name, justify="left" if name == "judged" else "right", no_wrap=True)
    for gate in found:
        climb = DASH if gate.climb is None else f"x {gate.climb:.1f}"
        marks = [gate.judgement, "now" if gate.tau == config.replay.tau else "", "suggested" if gate is best else ""]
        table.add_row(
            f"{gate.tau:.3g}",
            f"{gate.acceptance:.0%}",
            f"{gate.acceptance_last:.0%}",
            small(gate.kl),
            small(gate.kl_first),
            small(gate.kl_last),
            climb,
            ", ".join(filter(None, marks)),
            style="bold" if gate is best else None,
        )
    console = Console(markup=False)
    console.print(table)
    console.print(f"replay.tau = {best.tau:.3g}: {why}", highlight=False)
    if floor is not None:
        text = f"Scoring the same tokens twice gives a Drift of {floor:.2g}: "
        text += f"below {FLOORS * floor:.2g} a gate judges rounding too."
        console.print(text, style="yellow" if best.tau < FLOORS * floor else "dim", highlight=False)
    if config.env.kind == "search":
        console.print(f"In the run's environment {spoken(config.env.latency)}.", style="dim", highlight=False)
    if scanned < LEAST_SCANNED:
        console.print(f"Only {scanned} groups were scanned: a longer run says more.", style="yellow", highlight=False)


def _print_json(found: list[Any], best: Any, why: str, scanned: int, floor: float | None) -> None:
    import json
    from dataclasses import asdict

    rows = [asdict(gate) | {"climb": gate.climb, "judgement": gate.judgement} for gate in found]
    print(json.dumps({"tau": best.tau, "why": why, "scanned": scanned, "drift_noise": floor, "gates": rows}, indent=1))


def _short_run(config_file: str, steps: int, overrides: list[str]) -> Path | None:
    """Train `steps` steps under a gate; the run's folder, None when the user stopped it."""
    from cli import up
    from cli.overrides import is_set
    from cli.run.preflight import Preflight
    from services.replay.policies import get_policy
    from shared.config import load

    asked = load(config_file, overrides)
    words = ["--run.steps", str(steps), "--data.eval=", "--search.port", "0", "--replay.port", "0"]
    if not is_set(overrides, "run.name"):
        words += ["--run.name", free_name(Path(asked.run.root), asked.run.name + SUFFIX)]
    if not get_policy(asked.replay.policy).gated:
        print(f"replay.policy = '{asked.replay.policy}' has no gate: the short run takes headroom_drift.")
        words += ["--replay.policy", "headroom_drift"]
    config = up.resolve(config_file, None, [*overrides, *words])
    preflight = Preflight(config)
    preflight.check()
    return config.run_dir if up.launch(preflight) == 0 else None


def free_name(root: Path, name: str) -> str:
    """The name, or the first `name-N` that is not a folder below `root`."""
    candidate, number = name, 2
    while (root / candidate).exists():
        candidate, number = f"{name}-{number}", number + 1
    return candidate
