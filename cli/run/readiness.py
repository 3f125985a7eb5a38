"""When a service is up, seen from outside: its health answers, its weights are announced, its heartbeat is there.

replay, env_search    GET /health answers 200
learner               it has announced weights since this session began
actor                 a heartbeat with its process id and an engine
"""

from typing import Any

import httpx
import redis.asyncio

from cli.run.plan import service_url
from shared.config import Config
from shared.streams import Keys

HEALTH_TIMEOUT_S = 1.0


class Readiness:
    """Looks at a run through Redis and the health endpoints."""

    def __init__(self, config: Config, client: redis.asyncio.Redis, since: float) -> None:
        """`since`: unix seconds; what was announced before belongs to an earlier session."""
        self._keys = Keys(config.run.name)
        self._client, self._since_ms = client, int(since * 1000)
        self._http = httpx.AsyncClient(timeout=HEALTH_TIMEOUT_S, trust_env=False)
        self._health = {
            "replay": f"{service_url(config.replay.host, config.replay.port)}/health",
            "env_search": f"{service_url(config.search.host, config.search.port)}/health",
        }

    async def is_up(self, service: str, pid: int | None, heartbeats: list[dict[str, Any]]) -> bool:
        """Whether this service, running as `pid`, can do its work."""
        if pid is None:
            return False
        if service in self._health:
            return await self._answers(self._health[service])
        if service == "learner":
            newest: Any = await self._client.xrevrange(self._keys.weights, count=1)
            return bool(newest) and int(newest[0][0].split(b"-")[0]) >= self._since_ms
        return any(beat.get("pid") == pid for beat in heartbeats)

    async def close(self) -> None:
        """Close the connections that health checks used."""
        await self._http.aclose()

    async def _answers(self, url: str) -> bool:
        try:
            return (await self._http.get(url)).status_code == 200
        except httpx.HTTPError:
            return False
