"""A receiver is killed at each write to its folder in turn: the next one has the version whole, and nothing beside."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from services.actor.transports.received import PART
from services.actor.transports.redis_chunks import RedisReceiver
from services.learner.weights.transports.redis_chunks import RedisSender
from shared import weights
from tests.crashing import Death, Killed, deaths, mortal_files
from tests.transports.conftest import Publish
from tests.transports.test_redis_chunks import files


async def test_a_receiver_that_dies_at_any_write_is_followed_by_one_that_has_the_version_whole(
    sender: RedisSender, receiver: RedisReceiver, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [publish(number) for number in range(4)]
    for notice, folder in sent[:3]:
        sender.send(notice, folder)
        await receiver.fetch(notice, None)
    sender.send(*sent[3])
    (left, _), (new, folder) = sent[2], sent[3]
    before, location = receiver._root, new.location  # the newest is there with other bytes, and has begun to come again
    for name, text in ((location, "wrong"), (f"{PART}{location}", "stray"), (f"{PART}{sent[1][0].location}", "old")):
        (before / name).mkdir()
        (before / name / text).write_text(text)
    now: Death | None = None
    mortal_files(monkeypatch, tmp_path, lambda: now, each=True)
    kinds: set[str] = set()
    for death in deaths(lost=False):
        root = shutil.copytree(before, tmp_path / f"at_{death.at}")
        now = death
        with suppress(Killed):
            await RedisReceiver(receiver._wire, root).fetch(new, left.version)
        now = None
        weights.verify(root / left.location, left.digest)  # what is in force

        received, there = await RedisReceiver(receiver._wire, root).fetch(new, left.version)
        weights.verify(received, new.digest)
        assert there and files(received) == files(folder), f"{death.at}: {death.where}"
        assert sorted(path.name for path in root.iterdir()) == [".lock", left.location, location], death.where
        kinds.add(death.where.split(" ")[0])
    assert kinds == {"pwrite", "unlink", "rmdir", "rmtree", "rename", ""}
