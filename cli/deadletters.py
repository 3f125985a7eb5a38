"""`headrace deadletters`: what any service refused to read, from where, why and how it begins; the newest first."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from cli.numbers import MOST, number

EPILOG = """examples:
  headrace deadletters                        the newest 20 of the newest run under ./runs
  headrace deadletters runs/atlas-001 -n 1000 --json
  headrace deadletters --redis redis://host:6379/0 --run exp7

An entry that is no valid message, or a group whose arrays do not fit, is put aside and the run goes on without it; the
last 1,000 or so are kept, 64 KiB of each. Several in a row from one place mean two versions of Headrace in one run, or
something else that writes to its keys.
"""
SHOWN_BYTES = 48


def add_parser(subparsers: Any) -> None:
    """Add `deadletters` to the subparsers of the `headrace` command."""
    from cli.status import add_target_arguments

    letters = subparsers.add_parser(
        "deadletters",
        help="what was refused, and why",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target_arguments(letters, "RUN_DIR", "the run's folder; by default the newest under ./runs")
    letters.add_argument(
        "-n", type=number(int, ge=1, le=MOST), default=20, metavar="COUNT", help="how many, at most (20)"
    )
    letters.add_argument("--json", action="store_true", help="one JSON object a line")
    letters.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print them; UserError where no Redis answers for the run."""
    import redis

    from cli.status import find_target
    from shared.errors import UserError
    from shared.redis_client import RedisAway, wait_until_up
    from shared.streams import Keys

    target = find_target(args)
    try:
        wait_until_up(target.url, 1.0)
    except RedisAway:
        if not target.own:
            raise
        raise UserError(_where_they_are(target.shown)) from None
    with redis.Redis.from_url(target.url, socket_timeout=5.0) as client:
        total, letters = read_letters(client, Keys(target.name).dead, args.n)
    if args.json:
        for letter in letters:
            print(json.dumps(letter))
        return 0
    for letter in letters:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter["time"]))
        print(f"{when}  {letter['source']}: {letter['reason']}")
        print(f"                     {letter['bytes']} bytes kept, beginning {letter['begins']}")
    print(
        f"{len(letters)} of {total} dead letters of {target.shown}." if total else f"{target.shown}: no dead letters."
    )
    return 0


def _where_they_are(folder: str) -> str:
    """Of a run whose own Redis is down. To resume a finished one only shows its summary, unless it is to go on."""
    from cli.run import artefacts, plan
    from shared.config import load

    config = load(Path(folder) / "config.toml", environ={})
    config = plan.with_values(config, {"run.root": str(Path(folder).resolve().parent)})  # it may have been moved
    resume = f"`headrace up --resume {folder}`"
    if not artefacts.is_complete(config):
        return f"nothing runs for {folder}, and its dead letters are in its Redis: {resume} starts it."
    return (
        f"{folder} has finished, and its dead letters are in its Redis, which runs only while the run does: {resume} "
        f"with --run.steps {2 * config.run.steps}, for example, trains on, and starts it."
    )


def read_letters(client: Any, stream: str, count: int) -> tuple[int, list[dict[str, Any]]]:
    """(how many are kept, the newest `count` of them as plain data). Letters that somebody else wrote are shown too."""
    from shared.events import said_at

    letters = []
    for id, fields in client.xrevrange(stream, count=count):
        data = fields.get(b"data", b"")
        letters.append(
            {
                "id": id.decode(),
                "time": said_at(id),
                "source": _text(fields.get(b"source", b"?")),
                "reason": _text(fields.get(b"reason", b"it gives no reason")),
                "bytes": len(data),
                "begins": repr(data[:SHOWN_BYTES])[1:],
            }
        )
    return client.xlen(stream), letters


def _text(value: bytes) -> str:
    """On one line, and without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " for c in value.decode(errors="replace"))
