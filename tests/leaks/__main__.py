"""`python -m tests.leaks --minutes 30 [--engine vllm] [--json FILE]`: does anything grow that should not?

Runs the demo at full speed and looks every few seconds at each process (memory of its own, open files, sockets,
threads), at Redis (memory, keys) and at the length of every stream. After a third of the time, in which buffer and
caches fill, each should be flat: the slope is a least-squares line with its standard error. Status 1 where something
grows, 2 where the run cannot tell: it was too slow, something was not seen, or the figures are too scattered.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import redis

from cli.run.local_redis import stored_url
from shared.streams import Keys
from tests.e2e.command import REPOSITORY, Command
from tests.leaks.slope import Series, fit, grows, is_blurred

EVERY_S = 5.0
WARM_UP = 1 / 3
ENOUGH_STEPS = 150  # the caches of the learner and of compiled kernels are not full before
EXPECTED = ("services.replay", "services.actor", "services.env_search", "services.learner")
EXPECTED += ("redis server", "redis data", "redis keys")
EXPECTED += tuple(f"stream {name}" for name in ("tasks", "groups", "work", "results", "weights"))
# In an hour of this speed; under it a line is noise of the allocator. Pools of connections never shrink, and grow when
# more calls than before meet by chance: by ten in half an hour, where a leak of one a step comes to hundreds.
ALLOWED = {"MiB": 60.0, "files": 5.0, "sockets": 60.0, "threads": 5.0, "entries": 200.0, "keys": 200.0}


def main(arguments: list[str]) -> int:
    """Run, look, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.leaks", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--engine", choices=["torch", "vllm"], default="torch")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    series: dict[str, Series] = defaultdict(Series)
    with tempfile.TemporaryDirectory(prefix="headrace-leaks-", ignore_cleanup_errors=True) as folder:
        steps = _run(Path(folder), args.minutes * 60, args.engine, series)
    kept = {name: each.after(WARM_UP) for name, each in sorted(series.items()) if len(each.after(WARM_UP).values) > 4}
    print(f"{steps} steps; from {WARM_UP:.0%} of {args.minutes:g} min on, per hour of this speed:")
    print(f"{'what':44} {'first':>10} {'last':>10} {'per hour':>12} {'+-':>9}")
    growing, blurred = [], []
    for name, each in kept.items():
        slope, error = fit(each)
        allowed, mark = ALLOWED[name.rpartition(" ")[2]], ""
        if grows(slope, error, allowed):
            growing.append(name)
            mark = "  GROWS"
        elif is_blurred(error, allowed):
            blurred.append(name)
            mark = "  cannot be told"
        print(f"{name:44} {each.values[0]:10.1f} {each.values[-1]:10.1f} {slope:12.1f} {error:9.1f}{mark}")
    if args.json:
        args.json.write_text(json.dumps({name: [e.seconds, e.values] for name, e in series.items()}))
    if steps < ENOUGH_STEPS:
        print(f"{steps} steps are too few to tell growth from warming up: {ENOUGH_STEPS} are needed.")
        return 2
    if unseen := [what for what in EXPECTED if not any(name.startswith(what) for name in kept)]:
        print(f"not seen for long enough: {', '.join(unseen)}.")
    return 1 if growing else 2 if unseen or blurred else 0


def _run(folder: Path, seconds: float, engine: str, series: dict[str, Series]) -> int:
    """Fill the series; returns how many steps were trained."""
    words = ["up", str(REPOSITORY / "examples" / "atlas.toml"), "--run.name", "leaks", "--run.root", str(folder)]
    words += ["--run.steps", "100000", "--actor.engine", engine, "--replay.port", "0", "--eval.every", "50"]
    words += ["--search.port", "0", "--learner.checkpoint_every", "5", "--learner.lr", "1e-5"]
    command = Command(folder, *words)
    started = time.monotonic()
    metrics = folder / "leaks" / "metrics.jsonl"
    try:
        while (now := time.monotonic() - started) < seconds:
            if command.process.poll() is not None:
                raise SystemExit(f"the run has ended by itself:\n{command.said[-3000:]}")
            for name, value in _look(command, folder / "leaks"):
                series[name].add(now, value)
            time.sleep(EVERY_S)
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0
    finally:
        command.process.terminate()
        command.process.wait(20)


def _look(command: Command, run_dir: Path) -> list[tuple[str, float]]:
    """(what, unit last; how much) of everything there is now."""
    seen: list[tuple[str, float]] = []
    for process in command.processes():
        with suppress(psutil.Error):
            name = f"{_name(process)} {process.pid}"
            seen.append((f"{name} MiB", process.memory_full_info().uss / 2**20))
            sockets = len(process.net_connections("all"))
            seen.append((f"{name} files", process.num_fds() - sockets))
            seen.append((f"{name} sockets", sockets))
            seen.append((f"{name} threads", process.num_threads()))
    url = stored_url(run_dir)
    with suppress(redis.RedisError), redis.Redis.from_url(url or "redis://127.0.0.1:1") as client:
        information: Any = client.info("memory")
        seen.append(("redis data MiB", information["used_memory"] / 2**20))
        seen.append(("redis keys", client.dbsize()))
        keys = Keys("leaks")
        streams = (keys.tasks, keys.groups, keys.work, keys.results, keys.weights, keys.dead)
        seen += [(f"stream {stream.rpartition(':')[2]} entries", client.xlen(stream)) for stream in streams]
    return seen


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    service = next((word for word in words if word.startswith(("services.", "cli."))), None)
    if service or not words:
        return service or process.name()
    name = Path(words[0]).name.partition(" ")[0]  # Redis and valkey write their address behind it
    return "redis server" if name.endswith("-server") else name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
