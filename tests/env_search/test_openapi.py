"""env_search under requests made from its own description."""

import pytest

from services.env_search.requests import Limits


@pytest.mark.slow
def test_every_request_of_its_description_is_answered_or_refused(small_index, serve):
    from tests.fuzz.openapi import ask  # imports slowly

    client = serve(small_index, Limits(max_queries=4, max_query_chars=50))
    seen = ask(str(client.base_url), 40)
    assert {status for (_, status) in seen} <= {200, 404, 405, 422}
    assert {name for name, _ in seen} == {"POST /retrieve", "GET /health", "GET /metrics"}
    assert seen["POST /retrieve", 200] and seen["POST /retrieve", 422]
    assert client.post("/retrieve", json={"query": "mill"}).json()["result"][0], "and it goes on"
