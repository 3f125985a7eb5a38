"""The Redis server that a run starts for itself: loopback only, a random password, an append-only file in its folder.

    <run>/redis/redis.conf   mode 0600; the password is here, never on a command line
    <run>/redis/url          mode 0600; where `headrace status` finds the running server
    <run>/redis/appendonlydir/  all state of the run; a resumed run opens it again

Every acknowledged write is on disk within a second. Memory is never freed by losing entries (noeviction).
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from cli.run.ports import free_port
from cli.run.redis_binary import find_redis_binary
from shared.files import write_whole

FOLDER, CONF, URL = "redis", "redis.conf", "url"
START_S = 60.0  # loading a large append-only file takes a while


@dataclass(frozen=True)
class LocalRedis:
    """A server that is configured and can be started with `command`."""

    command: list[str]
    url: str
    folder: Path


def prepare(run_dir: Path, max_memory_bytes: int, keep_history: bool = False) -> LocalRedis:
    """Write the server's configuration into the run's folder. Raises UserError where this machine has no server.

    keep_history: the append-only file is never rewritten, so that it holds every write of the run.
    """
    binary = find_redis_binary()
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    password, port = secrets.token_urlsafe(24), free_port()
    settings = {
        "bind": "127.0.0.1",
        "port": port,
        "requirepass": password,
        "dir": f'"{folder.resolve()}"',
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": '""',
        "maxmemory": max_memory_bytes,
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "tcp-keepalive": 60,
    }
    if keep_history:
        settings |= {"auto-aof-rewrite-percentage": 0, "aof-use-rdb-preamble": "no"}
    write_whole(folder / CONF, "".join(f"{key} {value}\n" for key, value in settings.items()), 0o600)
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    write_whole(folder / URL, url + "\n", 0o600)
    return LocalRedis([str(binary.path), str((folder / CONF).resolve())], url, folder)


def stored_url(run_dir: Path) -> str | None:
    """The address, with its password, of the server that this run started; None where it started none."""
    try:
        return (run_dir / FOLDER / URL).read_text().strip()
    except FileNotFoundError:
        return None
