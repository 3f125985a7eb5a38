"""These tests take many minutes and an engine: they run when asked for by their mark (`make test-compose`)."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave them out of every other run."""
    if "compose" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("compose")]
    items[:] = [item for item in items if item not in left_out]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
