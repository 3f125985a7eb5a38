"""`headrace top`: a run at a glance, drawn anew every second. q or Ctrl-C leaves."""

import argparse
import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Any

from cli.status import add_target_arguments, find_target, replay_url, say_nothing_runs

EPILOG = """examples:
  headrace top                                          the newest run under ./runs
  headrace top runs/atlas-001                           that run
  headrace top http://127.0.0.1:8001                    whatever the replay service at this address does
  headrace top --redis redis://host:6379/0 --run exp7   a run of another machine, from its Redis
  HEADRACE_REDIS__URL=... headrace top --run exp7       the same, with a password that no list of processes shows
"""
EVERY_S = 1.0


def add_parser(subparsers: Any) -> None:
    """Add `top` to the subparsers of the `headrace` command."""
    top = subparsers.add_parser(
        "top",
        help="a run at a glance, drawn anew every second",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target_arguments(top, "RUN", "the run's folder, or replay's address; by default the newest run")
    top.add_argument("--once", action="store_true", help="print one frame and leave")
    top.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show frames until the user leaves; with --once one. 0, or 1 where nothing runs."""
    return asyncio.run(_once(args) if args.once or not sys.stdout.isatty() else _watch(args))


async def _source(args: argparse.Namespace) -> Any:
    """Replay's address where one is given or the run's own answers with its name; its Redis otherwise."""
    from cli.glance import FromRedis, FromReplay
    from shared.addresses import host_and_port
    from shared.errors import UserError

    if args.run_dir and args.run_dir.startswith(("http://", "https://")):
        try:
            host_and_port(args.run_dir)
        except ValueError:
            raise UserError(f"{args.run_dir} is no address: write it like http://127.0.0.1:8001.") from None
        return FromReplay(args.run_dir.rstrip("/"))
    target = find_target(args)
    if url := replay_url(target.shown):
        source = FromReplay(url)
        with contextlib.suppress(UserError):
            if (await source.look()).name == target.name:
                return source
        await source.close()
    return FromRedis(target.url, target.name)


async def _once(args: argparse.Namespace) -> int:
    from rich.console import Console

    from cli.glance import Unanswered
    from cli.top_screen import frame
    from shared.errors import UserError

    source = await _source(args)
    try:
        console = Console(markup=False)
        console.print(frame(await source.look(), console.width))
        return 0
    except Unanswered as error:
        print(f"Nothing runs there: {error}")
        return 1
    except UserError as error:
        return _nothing_runs(args, error)
    finally:
        await source.close()


async def _watch(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from cli.glance import Glance, Unanswered
    from cli.top_screen import frame
    from shared.errors import UserError
    from shared.redis_client import RedisAway

    source = await _source(args)
    leave = asyncio.Event()
    glance, note = Glance(name=source.shown), ""
    try:
        with contextlib.suppress(Unanswered):
            glance = await source.look()
    except UserError as error:
        await source.close()
        return _nothing_runs(args, error)
    try:
        with _keys(leave), Live(console=Console(markup=False), screen=True, auto_refresh=False) as live:
            while not leave.is_set():
                try:
                    glance, note = await source.look(), ""
                except (Unanswered, RedisAway) as error:
                    note = f"These are the last figures: {error}"
                live.update(frame(glance, live.console.width, note), refresh=True)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(leave.wait(), EVERY_S)
    finally:
        await source.close()
    return 0


def _nothing_runs(args: argparse.Namespace, error: Exception) -> int:
    """What the run came to whose Redis is gone; behind the port of its own may be another run's by now."""
    from shared.redis_client import RedisAway

    if args.run_dir and args.run_dir.startswith(("http://", "https://")):
        raise error
    target = find_target(args)
    if not (target.own or isinstance(error, RedisAway)):
        raise error
    return say_nothing_runs(target)


@contextlib.contextmanager
def _keys(leave: asyncio.Event) -> Iterator[None]:
    """Set `leave` at q, without waiting for Enter; a standard input that is no terminal has no keys."""
    if not sys.stdin.isatty():
        yield
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed() -> None:
        if os.read(descriptor, 64).lower().strip() in (b"q", b"\x1b", b""):
            leave.set()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
