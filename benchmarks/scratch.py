"""A Redis server and a replay process of a benchmark's own, gone when it ends."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.run.ports import free_port
from cli.run.redis_binary import find_redis_binary
from shared.config import Config
from shared.redis_client import wait_until_up

UP_S = 60.0


@contextmanager
def scratch_redis() -> Iterator[str]:
    """The address of a server on a free port, without a file. Raises UserError where this machine has none."""
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    with tempfile.TemporaryDirectory() as folder:
        command = [str(find_redis_binary().path), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        server = subprocess.Popen([*command, "--dir", folder], stdout=subprocess.DEVNULL)
        try:
            wait_until_up(url, UP_S)
            yield url
        finally:
            server.kill()
            server.wait()


@contextmanager
def replay_process(config: Config) -> Iterator[int]:
    """The pid of `python -m services.replay` with this configuration. Raises RuntimeError where it ended by itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(config.to_toml())
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
        environment |= {"HEADRACE_CONFIG": str(path), "HEADRACE_LOG": "WARNING"}
        replay = subprocess.Popen([sys.executable, "-m", "services.replay"], env=environment)
        try:
            yield replay.pid
            if (status := replay.poll()) is not None:
                raise RuntimeError(f"the replay process ended with status {status}")
        finally:
            replay.terminate()
            try:
                replay.wait(10)
            except subprocess.TimeoutExpired:
                replay.kill()
                replay.wait()
