"""What `headrace top` shows, from a replay service over HTTP or from Redis alone: the same columns either way.

Where only Redis is reached, the gate is that of the last step, and what replay waits for is what it said last.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import redis.asyncio
from redis.exceptions import RedisError

from cli.run.plan import is_this_machine
from services.replay import tables
from services.replay.window.actors import Actors
from services.replay.window.history import History
from shared import heartbeats
from shared.errors import UserError
from shared.events import plain
from shared.messages import UNREADABLE, Malformed
from shared.redis_client import connect_async, until_up
from shared.streams import Keys

LARGEST = 5000  # groups; the rows of a larger buffer are not read
TIMEOUT_S = 3.0


class Unanswered(UserError):
    """Nobody answers at the address just now."""


@dataclass
class Glance:
    """One look. `columns`: /window/steps; `groups`: headroom, drift and mark of the stored groups; times in seconds."""

    name: str
    step: int = 0
    steps: int | None = None
    version: str | None = None
    policy: str = ""
    tau: float | None = None
    waiting_for: str = ""
    waiting_s: float = 0.0
    finished: bool = False
    buffer: int = 0
    fresh: int = 0
    running: int = 0
    actors: list[dict[str, Any]] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    evals: list[dict[str, Any]] = field(default_factory=list)
    notices: list[dict[str, Any]] = field(default_factory=list)
    groups: dict[str, list[Any]] = field(default_factory=dict)


class FromReplay:
    """Looks through the replay service's address."""

    def __init__(self, url: str) -> None:
        self.shown = url
        # a proxy or certificates that the user's environment names are for other machines
        self._http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=not is_this_machine(url))

    async def look(self) -> Glance:
        """Raises Unanswered, and UserError where something else answers."""
        now = await self._get("/window/now")
        steps, groups = await self._get("/window/steps"), await self._get("/window/groups")
        try:
            return self._glance(now, steps, groups)
        except (KeyError, TypeError):
            raise UserError(f"{self.shown} does not answer as a replay service does.") from None

    def _glance(self, now: dict[str, Any], steps: dict[str, Any], groups: dict[str, Any]) -> Glance:
        return Glance(
            name=now["run"],
            step=now["step"],
            steps=now["steps"],
            version=now["version"],
            policy=now["policy"],
            tau=now["tau"] if now["gated"] else None,
            waiting_for=now["waiting_for"],
            waiting_s=now["waiting_s"],
            finished=now["finished"],
            buffer=now["buffer_groups"],
            fresh=now["fresh_groups"],
            running=now["tasks_running"],
            actors=now["actors"],
            columns=steps["columns"],
            evals=steps["evals"],
            notices=steps["notices"],
            groups={key: groups[key] for key in ("headroom", "drift", "mark")},
        )

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = await self._http.get(path)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unanswered(f"no replay service answers at {self.shown} ({error or 'no reply'}).") from None
        if answer.status_code == 503:
            raise Unanswered(f"the replay service at {self.shown} waits for Redis.")
        if answer.status_code != 200:
            raise UserError(f"{self.shown} does not answer as a replay service does: status {answer.status_code}.")
        try:
            return answer.json()
        except ValueError:
            raise UserError(f"{self.shown} does not answer as a replay service does.") from None


class FromRedis:
    """Looks into the run's Redis."""

    def __init__(self, url: str, run: str) -> None:
        self.shown, self._url, self._run, self._keys = run, url, run, Keys(run)
        self._client = connect_async(url)
        self._history, self._actors = History(self._client, self._keys), Actors(self._client, self._keys)

    async def look(self) -> Glance:
        """Raises Unanswered, and UserError for a run that Redis does not know."""
        try:
            return await self._look()
        except (RedisError, OSError) as error:
            await until_up(self._url, 0.0)  # says what is wrong with the address, where that is the reason
            raise Unanswered(f"Redis does not answer ({error}).") from None

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()

    async def _look(self) -> Glance:
        table, client = f"{self._keys.prefix}replay:", self._client
        saved: Any = await client.get(f"{table}state")
        if saved is None:
            raise UserError(f"Redis knows no run '{self._run}': name one with --run, or give replay's address.")
        try:
            counters = tables.counters(saved)
        except Malformed as error:
            raise UserError(f"{table}state in Redis cannot be read ({plain(str(error))}).") from None
        await self._history.look()
        told = self._history.since(-1)
        stored, fresh, tasks = [await _length(client.hlen(table + name)) for name in ("buffer", "fresh", "tasks")]
        tau = next((value for value in reversed(told["columns"]["tau"]) if value is not None), None)
        gated = any(value for value in told["columns"]["scanned"])
        said = await heartbeats.of_replay(client, self._keys) or {}
        return Glance(
            name=self._run,
            step=counters.step,
            steps=self._history.planned,
            version=str(counters.version) if counters.version else None,
            tau=tau if gated else None,
            waiting_for=said.get("waiting_for", "" if counters.finished else "a replay service to report"),
            waiting_s=said.get("waiting_s", 0.0),
            finished=counters.finished,
            buffer=stored,
            fresh=fresh,
            running=tasks,
            actors=await self._actors.alive(),
            columns=told["columns"],
            evals=told["evals"],
            notices=told["notices"],
            groups=await _groups(client, table, set(said.get("refused", []))) if stored <= LARGEST else {},
        )


class _Trained(msgspec.Struct):
    """As much of a line of the ledger as is looked at."""

    replay: list[str] = []


async def _length(reply: Any) -> int:
    return await reply


async def _groups(client: redis.asyncio.Redis, table: str, refused: set[str]) -> dict[str, list[Any]]:
    """Rows and which of them the last step replayed, from the ledger, or scanned in vain, from replay itself."""
    saved: Any = client.hgetall(table + "buffer")
    last: Any = client.lindex(table + "ledger", -1)
    rows = []
    for name, value in (await saved).items():
        with suppress(Malformed):  # replay leaves it out as well, and says so
            rows.append(tables.entry("buffer", name, value)[1])
    line, replayed = await last, set[str]()
    with suppress(*UNREADABLE):
        replayed = set(msgspec.json.decode(line or b"{}", type=_Trained).replay)
    return {
        "headroom": [row.headroom for row in rows],
        "drift": [None if row.drift != row.drift else row.drift for row in rows],
        "mark": [2 if row.id in replayed else int(row.id in refused) for row in rows],
    }


def left(glance: Glance, recent: int = 10) -> float | None:
    """Seconds that the rest of the run takes at the pace of its last steps; None before there are two."""
    seconds = [s for s in glance.columns.get("seconds", [])[-recent:] if s is not None]
    if len(seconds) < 2 or glance.steps is None:
        return None
    return sorted(seconds)[len(seconds) // 2] * max(0, glance.steps - glance.step)


def spoken_time(unix: float) -> str:
    """hh:mm:ss of this machine's clock."""
    return time.strftime("%H:%M:%S", time.localtime(unix))
