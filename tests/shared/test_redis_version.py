"""A server that says over the wire that it is too old is refused by every service, in one sentence."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.redis_client import MINIMUM_VERSION, wait_until_up
from tests.redis_proxy import called_old, proxied

ATLAS = Path(__file__).resolve().parents[2] / "examples" / "atlas"


@pytest.fixture
def old_url(redis_url: str) -> Iterator[str]:
    """A real server that calls itself Redis 5.0."""
    wait_until_up(redis_url, 5)
    with proxied(redis_url, called_old) as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("service", ["replay", "learner", "actor"])
def test_a_service_says_what_it_found_what_it_needs_and_what_to_do(service: str, old_url: str, tmp_path: Path) -> None:
    settings = {
        "RUN__ROOT": str(tmp_path),
        "MODEL__PATH": str(ATLAS / "policy"),
        "DATA__TRAIN": str(ATLAS / "data" / "train.jsonl"),
        "REDIS__URL": old_url,
        "REPLAY__PORT": "0",
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    done = subprocess.run(
        [sys.executable, "-m", f"services.{service}"],
        env=inherited | {f"HEADRACE_{k}": v for k, v in settings.items()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    needed = ".".join(map(str, MINIMUM_VERSION))
    assert done.returncode == 2
    assert re.fullmatch(
        rf"{service}: Redis at redis://127\.0\.0\.1:\d+/0 is version 5\.0\.\d+, and XAUTOCLAIM needs {needed} or "
        r"newer: upgrade it\.\n",
        done.stderr,
    ), done.stderr
