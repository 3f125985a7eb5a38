"""How much the requests under way may hold together, and what one of them may."""

import pytest

from services.env_search import app
from services.env_search.requests import Crowded, Intake, Limits


def test_bytes_count_until_their_request_is_answered():
    intake = Intake(most=100)
    with intake.request() as first, intake.request() as second:
        first(60)
        second(40)
        with pytest.raises(Crowded):
            second(1)
    with intake.request() as third:
        third(100)


def test_a_request_that_finds_no_room_is_told_to_come_again(small_index, serve, monkeypatch):
    monkeypatch.setattr(app, "Intake", lambda: Intake(most=100))
    client = serve(small_index)
    for _ in range(3):
        crowded = client.post("/retrieve", json={"query": "water" * 40})
        assert crowded.status_code == 503 and "try again" in crowded.json()["detail"]
        assert client.post("/retrieve", json={"query": "mill"}).status_code == 200, "what it held is free again"


def test_a_body_that_never_ends_is_refused_at_its_limit(small_index, serve):
    limits = Limits(max_queries=2, max_query_chars=100)

    def endless():
        for _ in range(1600):  # 100 MiB, far more than any allowed request
            yield b" " * 65536

    answer = serve(small_index, limits).post("/retrieve", content=endless())
    assert answer.status_code == 422 and "larger than" in answer.json()["detail"]
