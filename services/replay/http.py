"""The replay service's HTTP side: /health, /metrics, /groups, and the replay window at /. Read-only."""

import math
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.replay.buffer import StoredGroup
from services.replay.own_names import OwnNames
from services.replay.service import Replay
from services.replay.window.http import window_routes


def make_app(replay: Replay) -> FastAPI:
    """The application over a running service."""
    app = FastAPI(title="Headrace replay", docs_url=None, redoc_url=None)
    app.add_middleware(OwnNames, public_name=replay.config.replay.public_name)

    @app.get("/health")
    async def health(response: Response) -> dict[str, Any]:
        """Whether the state is loaded, and where the run is. Status 503 until then."""
        if replay.state is None:
            response.status_code = 503
            return {"ready": False, "waiting_for": "Redis"}
        c = replay.state.counters
        return {
            "ready": True,
            "run": replay.config.run.name,
            "policy": replay.policy.name,
            "step": c.step,
            "steps": replay.config.run.steps,
            "version": str(c.version) if c.version else None,
            "buffer_groups": len(replay.state.buffer),
            "fresh_groups": len(replay.state.fresh),
            "tasks_running": len(replay.state.tasks),
            "payload_bytes": replay.state.payload_bytes,
            "finished": c.finished,
            "waiting_for": replay.waiting_for,
            "waiting_s": round(replay.waiting_s, 1),
        }

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text."""
        return Response(generate_latest(replay.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/groups")
    async def groups(
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100, offset: Annotated[int, Query(ge=0)] = 0
    ) -> dict[str, Any]:
        """Stored groups by cached Headroom, descending: the order the next scan follows under headroom_drift."""
        if replay.state is None:
            raise HTTPException(503, "the state is not loaded yet: Redis has not answered.")
        buffer = replay.state.buffer
        slots = buffer.highest(buffer.headroom, offset + limit)[offset:]
        step = replay.state.counters.step
        return {
            "step": step,
            "total": len(buffer),
            "groups": [_shown(buffer.row(id), step) for id in buffer.ids(slots)],
        }

    app.include_router(window_routes(replay))
    return app


def _shown(row: StoredGroup, step: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "step": row.step,
        "age": step - row.step,
        "headroom": row.headroom,
        "headroom_ref": row.headroom_ref,
        "drift": None if math.isnan(row.drift) else row.drift,
        "uses": row.uses,
        "tokens": row.tokens,
        "payload_bytes": row.bytes,
    }
