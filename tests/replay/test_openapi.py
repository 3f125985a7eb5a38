"""The replay service under requests made from its own description, with groups stored."""

import asyncio
from collections.abc import Callable

import pytest

from shared.config import Config
from tests.replay.test_window import _filled, served


@pytest.mark.slow
async def test_every_request_of_its_description_is_answered_or_refused(make_config: Callable[..., Config]):
    from tests.fuzz.openapi import ask  # imports slowly

    async with served(await _filled(make_config), within_s=240) as (service, http):
        assert service.state is not None
        buffer = repr(list(service.state.buffer))  # a drift that was never measured is NaN, which equals nothing
        seen = await asyncio.to_thread(ask, str(http.base_url).rstrip("/"), 10)
        assert {status for (_, status) in seen} <= {200, 304, 404, 405, 422}
        assert {"GET /groups", "GET /groups/{id}/payload", "GET /window/steps"} <= {name for name, _ in seen}
        assert seen["GET /groups", 200] and seen["GET /groups", 422] and seen["GET /groups/{id}", 404]
        assert repr(list(service.state.buffer)) == buffer, "and nothing has changed"
