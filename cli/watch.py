"""`headrace watch`: follow a run that something else started, as compose does, and write what it leaves behind."""

import argparse
import asyncio
import os
import sys
from typing import Any

EPILOG = """examples:
  headrace watch examples/atlas.toml          with HEADRACE_REDIS__URL set; the run of this configuration
  HEADRACE_CONFIG=run.toml headrace watch     the same, as the services are told

Progress is shown, every event is kept in <run.root>/<run.name>/events.jsonl, every step in metrics.jsonl; when the run
has finished, summary.json, samples.md and curves.png are written there. Ctrl-C ends the watching alone: the run
goes on, and watching again continues where it stopped. One watcher per run.
"""


def add_parser(subparsers: Any) -> None:
    """Add `watch` to the subparsers of the `headrace` command."""
    watch = subparsers.add_parser(
        "watch",
        help="follow a run that something else started, and record it",
        usage="headrace watch [CONFIG.toml] [--section.key VALUE ...]",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    watch.add_argument("config", nargs="?", metavar="CONFIG.toml", help="the run's configuration; or HEADRACE_CONFIG")
    watch.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Follow until the run has finished (0) or Ctrl-C (130)."""
    from cli.run import artefacts, ending, session
    from cli.run.progress import screen_for
    from cli.run.watching import follow_to_end
    from shared.config import CONFIG_FILE_VARIABLE, load
    from shared.errors import UserError
    from shared.files import write_whole

    file = args.config or os.environ.get(CONFIG_FILE_VARIABLE)
    config = load(file or None, args.overrides)
    if not config.redis.url:
        raise UserError("redis.url is empty: name the server of the run, for example in HEADRACE_REDIS__URL.")
    run_dir = config.run_dir
    if (run_dir / "redis").exists():
        raise UserError(
            f"{run_dir} is the folder of a run of `headrace up`, which records itself: give another --run.root."
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    with session.lock(run_dir):
        write_whole(run_dir / "config.toml", config.to_toml())
        screen = screen_for(sys.stdout)
        try:
            finished = asyncio.run(follow_to_end(config, screen))
        finally:
            screen.close()
        summary = artefacts.write(run_dir, pictures=finished)
    if not finished:
        return 130
    ending.print_summary(run_dir, summary)
    return 0
