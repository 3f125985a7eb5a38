"""The replay window over HTTP: a page of our own files, the figures it polls, one group's bytes as Redis has them.

    /                        the page                    /page/<file>           its style and scripts
    /window/now              a glance, asked every second
    /window/groups           the scatter and the table   /window/steps?after=   the curves
    /groups/<id>             scores, outcomes, question  /tokenizer.json        of the model, where this machine has it
    /groups/<id>/payload     the payload's own bytes     /groups/<id>/reference l_ref, float32[T] little-endian

Read-only. A token array is passed on and never decoded: the browser does that. What pages may ask for at once is
bounded, so that a crowd of them cannot delay the selection.
"""

import asyncio
import secrets
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Query, Response
from redis.exceptions import RedisError

from services.replay.service import Replay
from services.replay.state import State
from services.replay.tasks import question_of
from services.replay.window import files as window_files
from services.replay.window import shown as window
from services.replay.window.actors import Actors
from services.replay.window.answers import IfNoneMatch, RequestLimit, answer, redis_answers, unchanged
from services.replay.window.history import History
from shared.errors import UserError
from shared.messages import GroupHeader

PAYLOAD_BYTES = 64 * 2**20  # the largest group that is passed on
_json = msgspec.json.Encoder().encode


def window_routes(replay: Replay) -> APIRouter:
    """The routes over a running service."""
    history, actors = History(replay.client, replay.keys), Actors(replay.client, replay.keys)
    life = secrets.token_hex(4)  # no tag outlives the process
    routes = APIRouter(dependencies=[Depends(RequestLimit())])
    routes.include_router(window_files.file_routes(replay.config.model.path))

    @routes.get("/window/now")
    async def now() -> Response:
        """Where the run is, what it waits for, who generates; tags of the two answers below."""
        state = loaded(replay)
        alive: list[dict[str, Any]] = []
        with suppress(RedisError, TimeoutError):  # then it is Redis that is waited for, which the answer says
            async with asyncio.timeout(2):
                await history.look()
                alive = await actors.alive()
        return answer(_json(window.now(replay, state) | {"history": history.tag, "actors": alive}))

    @routes.get("/window/groups")
    async def groups(seen: IfNoneMatch = None) -> Response:
        """Stored groups as columns, at most `window.GROUPS_SHOWN`."""
        state = loaded(replay)
        tag = f'"{life}-{window.groups_tag(state)}"'
        return unchanged(tag) if seen == tag else answer(_json(window.groups(replay, state)), tag)

    @routes.get("/window/steps")
    async def steps(after: Annotated[int, Query(ge=-1)] = -1, seen: IfNoneMatch = None) -> Response:
        """The steps behind `after` as columns."""
        async with redis_answers():
            await history.look()
        tag = f'"{history.tag}"'
        return unchanged(tag) if seen == tag else answer(_json(history.since(after)), tag)

    @routes.get("/groups/{id}")
    async def group(id: str) -> Response:
        """One group: its row, how each rollout ended, its question."""
        state = known(replay, id)
        async with redis_answers():
            header = await replay.store.header(id)
        row = msgspec.to_builtins(state.buffer.row(id)) if id in state.buffer else None
        question = await asyncio.to_thread(_question, replay, header) if header else None
        return answer(_json({"id": id, "step": state.counters.step, "row": row, "header": header, "task": question}))

    @routes.get("/groups/{id}/payload")
    async def payload(id: str) -> Response:
        """The bytes an actor stored; `shared/payload.py` says what they are."""
        known(replay, id)
        data = await _read(replay, replay.keys.payload(id))
        replay.metrics.window_reads.inc()
        return answer(data, media_type="application/octet-stream")

    @routes.get("/groups/{id}/reference")
    async def reference(id: str) -> Response:
        """The trainer's log-probabilities; 404 before the group was trained, and where none are stored."""
        known(replay, id)
        return answer(await _read(replay, replay.keys.reference(id)), media_type="application/octet-stream")

    return routes


def loaded(replay: Replay) -> State:
    """The state; status 503 before Redis has answered."""
    if replay.state is None:
        raise HTTPException(503, "the state is not loaded yet: Redis has not answered.")
    return replay.state


def known(replay: Replay, id: str) -> State:
    """The state, in which the group `id` is; status 404 where it is not."""
    state = loaded(replay)
    if not window.is_known(state, id):
        raise HTTPException(404, "no such group is stored: it was evicted, or never arrived.")
    return state


async def _read(replay: Replay, key: str) -> bytes:
    async with redis_answers():
        size = await replay.client.strlen(key)
        if size > PAYLOAD_BYTES:
            raise HTTPException(413, f"this is {size} bytes, the page reads up to {PAYLOAD_BYTES}.")
        data: Any = await replay.client.get(key)
    if data is None:
        raise HTTPException(404, "nothing is stored under this name.")
    return data


def _question(replay: Replay, header: GroupHeader) -> dict[str, Any] | None:
    try:
        example = replay.train[question_of(replay.config, len(replay.train), header)]
    except (UserError, IndexError):  # the file has changed since
        return None
    return {"ground_truth": list(example.ground_truth), "data_source": example.data_source}
