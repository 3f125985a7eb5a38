"""A small configuration for the replay service's tests."""

import asyncio
import uuid

import pytest
import pytest_asyncio

from shared.cancellation import stop
from shared.config import Config, build


@pytest_asyncio.fixture(autouse=True)
async def _nothing_is_left_running():
    """A test that fails in the middle must not end the next one by the warnings of its tasks."""
    yield
    await stop(*asyncio.all_tasks() - {asyncio.current_task()})


@pytest.fixture
def make_config(redis_server_url):
    """Builds a small configuration for a run of its own on the test's Redis."""

    def make(**sections) -> Config:
        tree = {
            "run": {"name": f"t-{uuid.uuid4().hex[:8]}", "steps": 12},
            "redis": {"url": redis_server_url},
            "learner": {"batch": 4},
            "replay": {
                "policy": "headroom_drift",
                "select": 2,
                "tau": 0.01,
                "capacity": 10,
                "max_lag": 1,
                "scan_chunk": 3,
                "max_attempts": 9,
            },
            "rollout": {"group_size": 3},
        }
        for name, values in sections.items():
            tree[name] = tree.get(name, {}) | values
        return build(tree)

    return make
