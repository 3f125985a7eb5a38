"""`headrace demo`: train a small search agent on this machine and show what it learned.

The world of examples/atlas is invented, so the policy cannot know it: it has to search. Before training it answers
about a third of the held-out questions; the demo trains it for a few minutes and asks the same questions again.
"""

import argparse
from pathlib import Path
from typing import Any

from cli.numbers import setting

EPILOG = """examples:
  headrace demo                                  the whole thing; the files are in runs/atlas-001
  headrace demo --steps 20 --actor.count 1       shorter, with one actor
  headrace demo --replay.policy none             plain GRPO, to compare with
"""
EXAMPLE = "atlas"
WINDOW_PORT = 8001  # of the replay window, where it is free


def add_parser(subparsers: Any) -> None:
    """Add `demo` to the subparsers of the `headrace` command."""
    demo = subparsers.add_parser(
        "demo",
        help="train a small search agent here",
        usage="headrace demo [--name NAME] [--steps N] [--section.key VALUE ...]",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--name", metavar="NAME", help="the run's name; by default the next free atlas-NNN")
    demo.add_argument("--steps", type=setting("run.steps"), metavar="N", help="training steps")
    demo.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the example, then show one question before and after."""
    from cli import up
    from cli.overrides import is_set
    from cli.run import ending, ports
    from cli.run.plan import PACKAGE_ROOT
    from cli.run.preflight import Preflight
    from shared.config import load
    from shared.errors import UserError

    example = PACKAGE_ROOT / "examples" / f"{EXAMPLE}.toml"
    if not example.is_file():
        raise UserError(
            f"the demo's configuration {example} is missing: run the demo from a checkout of the repository."
        )
    page = WINDOW_PORT if ports.can_listen("127.0.0.1", WINDOW_PORT) else 0
    defaults = ["--search.port", "0", "--replay.port", str(page)]
    if args.name and is_set(args.overrides, "run.name"):
        raise UserError("--name and --run.name say the same: give one of them.")
    if not is_set(args.overrides, "run.name"):
        asked = load(example, args.overrides)
        defaults += ["--run.name", args.name or free_name(Path(asked.run.root))]
    if args.steps:
        defaults += ["--run.steps", str(args.steps)]
    config = up.resolve(str(example), None, defaults + args.overrides)
    preflight = Preflight(config)
    preflight.check()
    print(
        f"Training in {ending.shorten(config.run_dir)}; Ctrl-C stops it and leaves a run that can be resumed.",
        flush=True,
    )
    status = up.launch(preflight)
    if status == 0:
        ending.print_samples(config.run_dir)
        ending.print_next(config.run_dir)
    return status


def free_name(root: Path) -> str:
    """The first atlas-NNN that is not a folder below `root`."""
    number = 1
    while (root / f"{EXAMPLE}-{number:03}").exists():
        number += 1
    return f"{EXAMPLE}-{number:03}"
