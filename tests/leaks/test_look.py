"""What the check for leaks looks at: the run's server too, which hides its environment."""

import subprocess
from pathlib import Path

import pytest

from cli.run.local_redis import prepare
from shared.redis_client import wait_until_up
from tests.e2e.command import Command
from tests.leaks.__main__ import _look


def test_the_runs_own_server_is_looked_at_and_found_when_it_stays_behind(tmp_path: Path) -> None:
    run_dir = tmp_path / "leaks"
    command = Command(tmp_path, "--version")
    assert command.wait(60) == 0, command.said
    command.assert_gone()
    server = prepare(run_dir, 0)
    with subprocess.Popen(server.command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until_up(server.url, 60)
            names = {name for name, _ in _look(command, run_dir)}
            assert {f"redis server {process.pid} MiB", "redis data MiB"} <= names
            with pytest.raises(AssertionError, match="still there"):
                command.assert_gone()
        finally:
            process.kill()
    command.assert_gone()
