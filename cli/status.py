"""`headrace status`: what a running system is doing, read from its Redis."""

import argparse
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.called import as_called

EPILOG = """examples:
  headrace status                                         the newest run under ./runs
  headrace status runs/atlas-001 --json                   that run, for a program
  headrace status --redis redis://host:6379/0 --run exp7  a run of another machine
  HEADRACE_REDIS__URL=... headrace status --run exp7      the same, with a password that no list of processes shows
"""
EVENTS_SHOWN = 6
EVENTS_READ = 200
WARNINGS = ("warning", "refused")
WARNINGS_READ = 4000  # back to here: with three actors a step is five events and more
HEARTBEAT_LIFE_S = 10.0
HEALTH_S = 2.0
ASKS_S = 10.0  # an idle service asks for entries every second, of which Redis 7.0 counts those that brought some
READS = {"replay": "groups", "learner": "work"}  # service -> the stream that it alone reads


def add_parser(subparsers: Any) -> None:
    """Add `status` to the subparsers of the `headrace` command."""
    status = subparsers.add_parser(
        "status",
        help="what a running system is doing",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target_arguments(status, "RUN_DIR", "the run's folder; by default the newest under ./runs")
    status.add_argument("--json", action="store_true", help="print everything as JSON")
    status.set_defaults(run=run)


def add_target_arguments(parser: argparse.ArgumentParser, metavar: str, run_help: str) -> None:
    """The words by which a run is meant, as `find_target` reads them."""
    parser.add_argument("run_dir", nargs="?", metavar=metavar, help=run_help)
    parser.add_argument("--redis", metavar="URL", help="the address of Redis, where the run is on another machine")
    parser.add_argument(
        "--run", metavar="NAME", dest="run_name", help="the run's name, with --redis or HEADRACE_REDIS__URL"
    )


@dataclass(frozen=True)
class Target:
    """A run and the address of its Redis."""

    name: str
    url: str
    shown: str  # how to speak of it
    own: bool = False  # the run started this server for itself


def run(args: argparse.Namespace) -> int:
    """Print the state; 0 where the run is there or has finished, 1 where nothing runs or nothing is known of it."""
    import redis

    from shared.errors import UserError
    from shared.redis_client import wait_until_up

    target = find_target(args)
    try:
        wait_until_up(target.url, 1.0)
        with redis.Redis.from_url(target.url, socket_timeout=5.0) as client:
            state = read_state(client, target.name)
    except UserError as error:
        # behind the port of a run's own server may be another run's by now
        if "did not answer" not in str(error) and not target.own:
            raise
        if (waiting := _waiting_for(target)) is not None and not args.json:
            print(f"Redis does not answer; the replay service of {target.shown} does, and waits for {waiting}.")
            return 1
        return say_nothing_runs(target, args.json)
    state["waiting_for"], known = _waiting_for(target), target.own or state["begun"]
    if args.json:
        print(json.dumps({"running": known, **state}, indent=1))
    elif not known:
        print(*state["troubles"], sep="\n")
    else:
        from cli.status_table import print_state

        print_state(target.shown, state)
    return 0 if known else 1


def find_target(args: argparse.Namespace) -> Target:
    """Which run is meant. UserError where there is none, or its address is not known."""
    from cli.run.local_redis import stored_url
    from shared.config import load
    from shared.errors import UserError

    given = args.redis or os.environ.get("HEADRACE_REDIS__URL")
    if not args.run_dir and (args.redis or args.run_name):
        if not args.run_name:
            raise UserError("--redis needs --run NAME, the run whose keys are meant.")
        if not given:
            raise UserError("--run needs the address of its Redis: add --redis URL, or set HEADRACE_REDIS__URL.")
        return Target(args.run_name, given, args.run_name)
    folder = Path(args.run_dir) if args.run_dir else newest_run(Path("runs"))
    if not (folder / "config.toml").is_file():
        raise UserError(f"{folder} is not the folder of a run: it holds no config.toml.")
    config = load(folder / "config.toml", environ={})
    url = stored_url(folder) if not config.redis.url else given or config.redis.url
    if url is None:
        raise UserError(f"the run in {folder} was never started: `headrace up --resume {folder}` starts it.")
    return Target(config.run.name, url, str(folder), own=not config.redis.url)


def newest_run(root: Path) -> Path:
    """The folder below `root` whose run was touched last."""
    from shared.errors import UserError

    found = [p.parent for p in root.glob("*/config.toml")]
    if not found:
        raise UserError(f"there is no run under {root.absolute()}: name its folder, or start one with `headrace demo`.")
    return max(found, key=_touched)


def _touched(folder: Path) -> float:
    """When something in the folder was written last, unix seconds; a file that goes just now is passed over."""
    times = [0.0]
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            times.append(file.lstat().st_mtime)
    return max(times)


def read_state(client: Any, run_name: str) -> dict[str, Any]:
    """Everything that is shown, as plain data."""
    from shared import events
    from shared.streams import ACTORS, LEARNER, REPLAY, Keys

    keys = Keys(run_name)
    groups = {"tasks": ACTORS, "groups": REPLAY, "work": LEARNER, "results": REPLAY}
    streams = {name: _stream(client, getattr(keys, name), group) for name, group in groups.items()}
    unreadable: list[dict[str, Any]] = []
    notice, counters = _notice(client, keys, unreadable), _counters(client, keys, unreadable)
    recent = [record for _, record in reversed(events.parse(client.xrevrange(keys.events, count=EVENTS_READ)))]
    memory = client.info("memory")
    services = {name: _last_heard(client, getattr(keys, stream), groups[stream]) for name, stream in READS.items()}
    finished, trouble = _has_finished(recent), _redis_trouble(memory, client.info("persistence"))
    begun = bool(client.exists(keys.state, keys.weights, keys.events, keys.tasks))
    return {
        "run": run_name,
        "begun": begun,
        "version": str(notice.version) if notice else None,
        "step": next((e for e in reversed(recent) if e["kind"] == "step"), None),
        "eval": next((e for e in reversed(recent) if e["kind"] == "eval"), None),
        "finished": finished,
        "actors": _actors(client, keys),
        "services": services,
        "streams": streams,
        "dead_letters": client.xlen(keys.dead),
        "replay": counters,
        "redis_memory_bytes": memory["used_memory"],
        "redis_trouble": trouble,
        # on a full server nobody can report
        "troubles": [
            *([] if begun else [_instead(client, keys)]),
            *([] if finished or trouble else _silent(client, keys, services)),
        ],
        "warnings": [*_warnings(client, keys), *unreadable],
        "events": [e for e in recent if e["kind"] not in ("rollout", "step", *WARNINGS)][-EVENTS_SHOWN:],
    }


def _silent(client: Any, keys: Any, heard: dict[str, float | None]) -> list[str]:
    """Sentences about a service that began, and has neither reported nor asked for entries for longer than it may."""
    from shared.gpu_lease import mark_of
    from shared.heard import stopped

    reports: dict[Any, str] = {"replay": keys.replay, "learner": mark_of(keys.run)}
    asked = {role for role, ago in heard.items() if ago is not None and ago > ASKS_S}
    return [stopped(role) for role, key in reports.items() if role in asked and not client.exists(key)]


def _instead(client: Any, keys: Any) -> str:
    """What a database holds that has nothing of the run: other runs, others' keys, or nothing."""
    from shared.gpu_lease import PREFIX
    from shared.nearest import hint
    from shared.streams import run_of

    found = [key.decode(errors="replace") for key in client.scan(count=1000)[1] if not key.startswith(PREFIX.encode())]
    runs = sorted({run for key in found if (run := run_of(key))})
    others = [key for key in found if run_of(key) is None]
    nothing = f"This database holds nothing of a run '{keys.run}'"
    if runs:
        return f"{nothing}; {hint(keys.run, runs)}"
    held = f", and {client.dbsize()} keys of others, such as '{others[0][:40]}'" if others else ""
    return f"{nothing}{held}: the run has not begun, or the address or the name is that of another."


def _redis_trouble(memory: dict[str, Any], persistence: dict[str, Any]) -> str | None:
    """Why the server refuses writes, in which nobody could say so; None where it takes them."""
    from shared.redis_client import PAYLOAD_SHARE

    if persistence.get("aof_last_write_status") == "err" or persistence.get("rdb_last_bgsave_status") == "err":
        return "Redis cannot write to its disk, and takes nothing more until it can: make room there."
    if 0 < memory["maxmemory"] * PAYLOAD_SHARE < memory["used_memory"]:
        share = memory["used_memory"] / memory["maxmemory"]
        return f"Redis has used {share:.0%} of its memory, and takes no more groups: give it more (maxmemory)."
    return None


def _warnings(client: Any, keys: Any) -> list[dict[str, Any]]:
    """The last warnings and refusals, each when it was said last, however many other events came behind them."""
    from shared import events

    found: dict[str, dict[str, Any]] = {}
    end = "+"
    for _ in range(WARNINGS_READ // EVENTS_READ):
        page = events.parse(client.xrevrange(keys.events, max=end, count=EVENTS_READ))
        for _, event in page:
            if event["kind"] in WARNINGS and len(found) < EVENTS_SHOWN:
                found.setdefault(sentence(event), event)
        if len(page) < EVENTS_READ or len(found) == EVENTS_SHOWN:
            break
        end = f"({page[-1][0].decode()}"
    return sorted(found.values(), key=lambda event: event["time"])


def sentence(event: dict[str, Any]) -> str:
    """A warning or a refusal in words, with who says it."""
    who = event.get("actor") or event.get("service") or "somebody"
    if event["kind"] == "refused":
        return f"{who} refused weights {event.get('version')}: {event.get('reason')}"
    return f"{who}: {event.get('text')}"


def replay_url(folder: str) -> str | None:
    """The address of a local run's replay service, from its configuration; None where it has none or no fixed port."""
    from cli.run.plan import service_url
    from shared.config import load

    path = Path(folder) / "config.toml"
    if not path.is_file():
        return None
    replay = load(path, environ={}).replay
    return service_url(replay.host, replay.port) if replay.port else None


def _waiting_for(target: Target) -> str | None:
    """What the run's replay service says that the next step waits for; None where it does not answer."""
    import httpx

    if not (url := replay_url(target.shown)):
        return None
    try:
        health = httpx.get(f"{url}/health", timeout=HEALTH_S, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return None
    if not isinstance(health, dict) or health.get("run") != target.name:  # another's: the port may be taken by now
        return None
    return health.get("waiting_for")


def _has_finished(recent: list[dict[str, Any]]) -> bool:
    """Whether the end is the last that was heard: a run may have been resumed for more steps."""
    kinds = [e["kind"] for e in recent if e["kind"] in ("step", "resumed", "finished")]
    return kinds[-1:] == ["finished"]


def _last_heard(client: Any, key: str, group: str) -> float | None:
    """Seconds since a reader of this consumer group last asked for entries; None where none has yet."""
    import redis

    try:
        idle = [reader["idle"] for reader in client.xinfo_consumers(key, group)]
    except redis.ResponseError:  # no such stream or group yet
        return None
    return min(idle) / 1000 if idle else None


def _stream(client: Any, key: str, group: str) -> dict[str, int]:
    import redis

    length = client.xlen(key)
    try:
        pending = client.xpending(key, group)["pending"]
    except redis.ResponseError:  # no such group yet
        pending = 0
    return {"length": length, "pending": pending}


def _notice(client: Any, keys: Any, unreadable: list[dict[str, Any]]) -> Any:
    """The newest notice of weights; None where there is none, or it cannot be read, which is put into `unreadable`."""
    from shared.messages import Malformed, WeightsNotice, decode
    from shared.streams import FIELD

    newest = client.xrevrange(keys.weights, count=1)
    try:
        return decode(newest[0][1].get(FIELD, b""), WeightsNotice) if newest else None
    except Malformed as error:
        unreadable.append(_unreadable("the newest notice of weights", error))
        return None


def _counters(client: Any, keys: Any, unreadable: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Replay's, with the same said of them."""
    import msgspec

    from services.replay import tables
    from shared.messages import Malformed

    saved = client.get(keys.state)
    try:
        return msgspec.to_builtins(tables.counters(saved)) if saved else None
    except Malformed as error:
        unreadable.append(_unreadable("what replay keeps of the run", error))
        return None


def _unreadable(what: str, error: Exception) -> dict[str, Any]:
    from shared.events import plain

    text = f"{what} cannot be read: {plain(str(error))}."
    return {"kind": "warning", "time": time.time(), "service": "status", "text": text}


def _actors(client: Any, keys: Any) -> list[dict[str, Any]]:
    from shared import heartbeats

    found = []
    for name, beat in heartbeats.known(client, keys).items():
        if beat is not None:
            age_s = max(0.0, HEARTBEAT_LIFE_S - client.pttl(keys.actor(name)) / 1000)
            found.append({"heartbeat_age_s": age_s, **beat, "id": name})
    return found


def say_nothing_runs(target: Target, as_json: bool = False) -> int:
    """Of a run whose Redis is not there: what it came to (0), or how to go on with it (1)."""
    from cli.run.artefacts import SUMMARY, is_complete
    from cli.run.progress import percent
    from cli.run.recorder import EVENTS, read_records
    from cli.run.summary import summarise
    from shared.config import load

    shown, folder = target.shown, Path(target.shown)
    if not (folder / "config.toml").is_file():  # a run of another machine
        print(json.dumps({"running": False, "run": target.name}) if as_json else f"Redis of {shown} does not answer.")
        return 1
    config = load(folder / "config.toml", environ={})
    finished, records = is_complete(config), read_records(folder / EVENTS)
    summary = summarise(records)
    done = f"{summary['steps']} of {config.run.steps} steps"
    if as_json:
        figures = {key: summary[key] for key in ("steps", "em_first", "em_last")}
        print(json.dumps({"running": False, "run": target.name, "finished": finished, **figures}))
    elif finished:
        first, last = summary["em_first"], summary["em_last"]
        em = "" if first is None else f", EM {100 * first:.1f} → {percent(last)}"
        print(f"{shown} has finished: {done}{em}; the summary is in {folder / SUMMARY}.")
    else:
        print(
            as_called(
                f"Nothing runs for {shown}: its Redis does not answer, and {done} are trained. "
                f"Continue it with `headrace up --resume {shown}`."
            )
        )
    return 0 if finished else 1
