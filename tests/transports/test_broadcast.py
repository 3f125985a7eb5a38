"""Versions by broadcast, in real groups of real processes: whoever dies, comes late or is sent something else."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from services.actor.transports import broadcast as receiving
from services.actor.transports.broadcast import BroadcastReceiver
from services.actor.wire import Wire
from services.learner.weights.transports import broadcast as sending
from services.learner.weights.transports.broadcast import BroadcastSender
from shared import weights
from shared.config import Config
from shared.errors import UserError
from shared.messages import encode
from shared.transports import broadcast, carrier
from shared.transports.broadcast import Round, backend_for, own_address
from tests.e2e.command import REPOSITORY
from tests.transports.conftest import KEYS
from tests.transports.test_redis_chunks import files, say

Actor = Callable[[str], BroadcastReceiver]
slow = pytest.mark.slow

RECEIVE = """
import asyncio, sys
from pathlib import Path
from services.actor.transports.broadcast import BroadcastReceiver
from services.actor.wire import Wire
from shared.config import build
from shared.messages import WeightsNotice, decode
from shared.transports import broadcast

url, root, notice = sys.argv[1], Path(sys.argv[2]), bytes.fromhex(sys.argv[3])
broadcast.MODULE = "tests.transports.carriers"

async def main():
    wire = Wire(build({"run": {"name": "sent"}, "redis": {"url": url}}))
    print(wire.name, flush=True)
    receiver = BroadcastReceiver(wire, root)
    await receiver._up()
    sys.stdin.readline()
    await receiver.fetch(decode(notice, WeightsNotice), None)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "BUCKET", 10_000)
    monkeypatch.setattr(broadcast, "MODULE", "tests.transports.carriers")


@pytest.fixture
def sender(config: Config, outbox) -> Iterator[BroadcastSender]:
    sender = BroadcastSender(config, outbox.client)
    sender._carrier.up()
    yield sender
    sender.close()
    sender._thread.join(20)


@pytest.fixture
async def actor(config: Config, tmp_path: Path, outbox) -> AsyncIterator[Actor]:
    """An actor on a machine of this name, that has reported itself."""
    made: list[tuple[Wire, BroadcastReceiver]] = []

    def make(host: str) -> BroadcastReceiver:
        wire = Wire(config)
        say(outbox, wire.name, host=host, state="running")
        made.append((wire, receiver := BroadcastReceiver(wire, tmp_path / host)))
        return receiver

    yield make
    for wire, receiver in made:
        receiver.close()
        await wire.client.aclose()


async def until(condition: Callable[[], bool]) -> None:
    """The learner's side is a thread, which may be later than what the actors have got."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


@slow
async def test_all_who_want_a_version_get_it_in_one_round_and_late_ones_in_another(
    sender, actor, publish, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(sending, "GATHER_S", 250.0)
    caplog.set_level(logging.INFO)
    notice, folder = publish(0)
    one, other = actor("here"), actor("there")
    both = await asyncio.gather(one.fetch(notice, None), other.fetch(notice, None))
    assert both == [(tmp_path / host / folder.name, True) for host in ("here", "there")]
    for received, _ in both:
        weights.verify(received, notice.digest)
        assert files(received) == files(folder)
    await until(lambda: f"the broadcast of {folder.name} came to 2 of 2 actors" in caplog.text)
    first = sender._carrier._process

    monkeypatch.setattr(sending, "GATHER_S", 0.1)
    late = actor("late")
    received, there = await late.fetch(notice, None)
    assert there and files(received) == files(folder)
    await until(lambda: "came to 1 of 1 actors" in caplog.text)
    assert sender._carrier._process is first
    first.kill()  # between two rounds
    first.wait()

    (tmp_path / "late" / ".part-v0000-00000001").write_text("in the way")
    notice, folder = publish(1)
    here, nowhere = await asyncio.gather(one.fetch(notice, None), late.fetch(notice, None), return_exceptions=True)
    assert here == (tmp_path / "here" / folder.name, True), "another's full disk is nothing to it"
    assert isinstance(nowhere, UserError) and "cannot be received in" in str(nowhere)

    weights.delete(folder.parent, notice.version)
    assert not (await other.fetch(notice, None))[1], "the learner has it no more"
    sender.close()
    monkeypatch.setattr(receiving, "ASK_AGAIN_S", 0.1)
    assert not (await other.fetch(notice, None))[1], "nobody answers"
    assert await other._wire.client.llen(broadcast.wanted_key(KEYS)) == 0


@slow
async def test_an_actor_that_is_killed_in_the_middle_takes_neither_learner_nor_others_with_it(
    sender, actor, publish, tmp_path, redis_url, outbox, monkeypatch, caplog
):
    monkeypatch.setattr(sending, "GATHER_S", 250.0)
    notice, folder = publish(0)
    (halt := folder.parent / "wait").touch()
    words = [sys.executable, "-c", RECEIVE, redis_url, str(tmp_path / "doomed"), encode(notice).hex()]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(  # noqa: ASYNC220  it is killed
        words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as doomed:
        assert doomed.stdin is not None and doomed.stdout is not None
        name = doomed.stdout.readline().strip()
        say(outbox, name, host="doomed", state="running")
        survivor = actor("survivor")
        fetching = asyncio.create_task(survivor.fetch(notice, None))
        print(file=doomed.stdin, flush=True)
        part = tmp_path / "doomed" / f".part-{folder.name}" / "model.safetensors"
        async with asyncio.timeout(200):
            while not (part.exists() and part.stat().st_size):
                await asyncio.sleep(0.02)
        assert not fetching.done()
        doomed.send_signal(signal.SIGKILL)
    outbox.client.delete(KEYS.actor(name))
    halt.unlink()
    async with asyncio.timeout(200):
        received, there = await fetching
    assert there and files(received) == files(folder)
    assert "was broken" in caplog.text and not (tmp_path / "doomed" / folder.name).exists()
    assert sender._thread.is_alive()


@slow
async def test_what_is_not_what_was_announced_is_no_version(sender, actor, publish, caplog):
    notice, folder = publish(0)
    (wrong := folder.parent / "wrong").touch()
    lonely = actor("lonely")
    received, there = await lonely.fetch(notice, None)
    assert not there and not received.exists()
    assert caplog.text.count("with another digest") == receiving.TRIES
    wrong.unlink()
    received, there = await lonely.fetch(notice, None)
    assert there and files(received) == files(folder)


def test_a_file_that_would_lie_elsewhere_ends_the_round():
    round = Round("127.0.0.1", 1, 1, 2, "gloo", "v0000-00000000", "", [("../x", 1)], 1, 1.0)
    with pytest.raises(ValueError, match="cannot be in a version"):
        list(carrier._pieces(round))


def test_nccl_is_for_members_with_a_gpu_each():
    assert backend_for(["a", "b", "c"]) == "nccl"
    assert backend_for(["a", "b", "a"]) == backend_for(["a", ""]) == backend_for(["", ""]) == "gloo"


def test_the_learners_address_is_the_one_from_which_it_reaches_redis():
    assert own_address("127.0.0.1") == "127.0.0.1"
    broadcast.listener("127.0.0.1").close()
    with pytest.raises(UserError, match=r"cannot listen at '192\.0\.2\.1'.*name an address of it"):
        broadcast.listener("192.0.2.1")
    with pytest.raises(UserError, match=r"no way to 'no\.such\.host\.invalid'.*weights\.address"):
        own_address("no.such.host.invalid")
