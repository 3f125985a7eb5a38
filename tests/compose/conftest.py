"""These tests take many minutes and an engine: they run when asked for by their mark (`make test-compose`)."""

from collections.abc import Callable

import pytest

NOTES = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave them out of every other run."""
    if "compose" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("compose")]
    items[:] = [item for item in items if item not in left_out]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="module")
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Says something at the end of all tests, whether they pass or not."""
    return request.config.stash.setdefault(NOTES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was measured."""
    if notes := config.stash.get(NOTES, []):
        terminalreporter.section("containers")
        for line in notes:
            terminalreporter.write_line(line)
