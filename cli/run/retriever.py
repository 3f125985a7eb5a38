"""Whether what answers at env.url is a retriever: it is asked once, as an actor asks it."""

import asyncio

from services.actor.retrieval import RetrievalClient, RetrievalFailed
from shared.config import Config
from shared.errors import UserError

QUERY = "headrace"  # which a retriever finds something for, or nothing, and a tool may refuse
_NO_ROUTE = (401, 403, 404, 405)  # to whatever is asked


def try_out(config: Config) -> str | None:
    """What a person should know of its answer. Raises UserError where no rollout could be answered."""
    try:
        asyncio.run(_ask(config))
    except RetrievalFailed as error:
        said = " ".join(str(error).split())
        if error.status and error.status not in _NO_ROUTE:
            return f"env.url: {said}. Rollouts whose query it refuses are masked out."
        raise UserError(
            f"what answers at env.url is no retriever: {said}. It must answer POST /retrieve, "
            "as docs/environments.md says."
        ) from None
    return None


async def _ask(config: Config) -> None:
    async with RetrievalClient.of(config) as retriever:
        await retriever.search(QUERY)
