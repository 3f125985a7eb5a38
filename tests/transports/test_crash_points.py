"""A receiver is killed at each write to its folder in turn: the next one has the version whole, and nothing beside."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from services.actor.transports.broadcast import BroadcastReceiver
from services.actor.transports.received import PART, Received
from services.actor.transports.redis_chunks import RedisReceiver
from services.actor.wire import Wire
from services.learner.talk.outbox import Outbox
from services.learner.weights.transports.broadcast import BroadcastSender
from services.learner.weights.transports.redis_chunks import RedisSender
from shared import weights
from shared.config import Config
from shared.messages import WeightsNotice
from shared.transports import broadcast
from tests.crashing import Death, Killed, deaths, mortal_files
from tests.transports.conftest import Publish
from tests.transports.test_redis_chunks import files, say


class Folder:
    """What a receiver has before it dies: two versions, a newer one with other bytes, and two that began to come."""

    def __init__(self, root: Path, sent: list[tuple[WeightsNotice, Path]]) -> None:
        """sent: four versions, of which the second and the third have been received."""
        self.root, (self.old, self.left, self.new) = root, [notice for notice, _ in sent[1:]]
        self.files = files(sent[3][1])
        location = self.new.location
        for name, text in ((location, "wrong"), (f"{PART}{location}", "stray"), (f"{PART}{self.old.location}", "old")):
            (root / name).mkdir()
            (root / name / text).write_text(text)

    async def is_received(self, death: Death, patch: pytest.MonkeyPatch, receiver: Received, each: bool) -> None:
        """One life with this death in it, and another after it, which has the process that carried for the first."""
        receiver._root = root = shutil.copytree(self.root, self.root.with_name(f"at_{death.at}"))
        with patch.context() as at_first, suppress(Killed):
            mortal_files(at_first, root, lambda: death, each=each)
            await receiver.fetch(self.new, self.left.version)
        weights.verify(root / self.left.location, self.left.digest)  # what is in force

        received, there = await receiver.fetch(self.new, self.left.version)
        weights.verify(received, self.new.digest)
        assert there and files(received) == self.files, f"{death.at}: {death.where}"
        names = sorted(path.name for path in root.iterdir())
        assert names == [".lock", self.left.location, self.new.location], f"{death.at}: {death.where}"


async def test_a_receiver_that_dies_at_any_write_is_followed_by_one_that_has_the_version_whole(
    sender: RedisSender, receiver: RedisReceiver, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [publish(number) for number in range(4)]
    for notice, folder in sent[:3]:
        sender.send(notice, folder)
        await receiver.fetch(notice, None)
    sender.send(*sent[3])
    before, kinds = Folder(receiver._root, sent), set[str]()
    for death in deaths(lost=False):
        await before.is_received(death, monkeypatch, receiver, each=True)
        kinds.add(death.where.split(" ")[0])
    assert kinds == {"pwrite", "unlink", "rmdir", "rmtree", "rename", ""}


@pytest.mark.slow
async def test_so_it_is_with_a_version_that_comes_by_broadcast(
    config: Config, outbox: Outbox, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "BUCKET", 10_000)
    monkeypatch.setattr(broadcast, "PATIENCE_S", 5.0)  # with who has died before its round
    sent, wire = [publish(number) for number in range(4)], Wire(config)
    say(outbox, wire.name, host="here", state="running")
    sender, receiver = BroadcastSender(config, outbox.client), BroadcastReceiver(wire, tmp_path / "received")
    try:
        for notice, _ in sent[1:3]:
            await receiver.fetch(notice, None)
        before, kinds = Folder(receiver._root, sent), list[str]()
        for death in deaths(lost=False):
            await before.is_received(death, monkeypatch, receiver, each=False)
            kinds.append(death.where.split(" ")[0])
    finally:
        receiver.close()
        sender.close()
        await wire.client.aclose()
    assert set(kinds) == {"rmtree", "rename", ""} and len(kinds) >= 6
