"""A process that receives a version is killed with SIGKILL in the middle; the next one fetches only what is missing."""

import os
import signal
import subprocess
import sys

import pytest

from shared import weights
from shared.messages import encode
from shared.transports import chunks
from tests.e2e.command import REPOSITORY

RECEIVE = """
import asyncio, sys
from pathlib import Path
from services.actor.transports.redis_chunks import RedisReceiver
from services.actor.wire import Wire
from shared.config import build
from shared.messages import WeightsNotice, decode
from shared.transports import chunks

url, root, pause, notice = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), bytes.fromhex(sys.argv[4])
chunks.CHUNK = 10_000

class Slow(RedisReceiver):
    async def _get(self, notice, field):
        await asyncio.sleep(pause)
        print(field, flush=True)
        return await super()._get(notice, field)

async def main():
    wire = Wire(build({"run": {"name": "sent"}, "redis": {"url": url}}))
    folder, there = await Slow(wire, root).fetch(decode(notice, WeightsNotice), None)
    assert there
    await wire.client.aclose()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_killed_receiver_is_followed_by_one_that_goes_on(sender, publish, redis_url, tmp_path):
    notice, folder = publish(0)
    sender.send(notice, folder)
    root = tmp_path / "received"

    def receive(pause: float) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", RECEIVE, redis_url, str(root), str(pause), encode(notice).hex()]
        env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        return subprocess.Popen(words, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    first = receive(0.2)
    assert first.stdout is not None
    seen = [first.stdout.readline().strip() for _ in range(8)]
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    first.stdout.close()
    assert seen[0] == chunks.CONTENTS and not (root / notice.location).exists()

    second = receive(0.0)
    asked = second.communicate(timeout=60)[0].split()
    assert second.returncode == 0
    kept = set(seen[1:-4])  # whether the last four, which were asked for, were written is a race
    assert kept.isdisjoint(asked) and len(asked) > 1
    weights.verify(root / notice.location, notice.digest)
    assert [(root / notice.location / name).read_bytes() for name, _ in chunks.files_in(folder)] == [
        (folder / name).read_bytes() for name, _ in chunks.files_in(folder)
    ]
