"""Versions through Redis: the same files arrive, once, whatever is killed, full or gone in between."""

import asyncio
import fcntl
import json
import logging
import threading
import time
from pathlib import Path

import pytest
import torch

from services.actor.transports import received
from services.actor.transports.redis_chunks import RedisReceiver, _missing
from services.actor.wire import Wire
from services.learner import waits
from services.learner.stop import Stop, Stopped
from services.learner.weights.transports import redis_chunks as sending
from services.learner.weights.transports.redis_chunks import RedisSender
from shared import weights
from shared.cancellation import stop
from shared.errors import UserError
from shared.transports import chunks
from tests.transports.conftest import KEYS


def there(outbox) -> list[str]:
    return sorted(name.decode() for name in outbox.client.smembers(chunks.versions_key(KEYS)))


def say(outbox, name: str, **fields) -> None:
    """An actor's heartbeat."""
    outbox.client.sadd(KEYS.actors, name)
    outbox.client.set(KEYS.actor(name), json.dumps({"version": None, "loading": None, **fields}))


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name, _ in chunks.files_in(folder)}


async def test_what_arrives_has_the_digest_and_the_files_of_the_shared_folder(sender, receiver, publish):
    notice, folder = publish(0)
    sender.send(notice, folder)
    assert sender.has(notice)
    received, is_there = await receiver.fetch(notice, None)
    assert is_there and received != folder
    weights.verify(received, notice.digest)
    assert files(received) == files(folder)


async def test_a_version_that_is_whole_is_not_fetched_again(sender, receiver, publish, asked):
    notice, folder = publish(0)
    sender.send(notice, folder)
    await receiver.fetch(notice, None)
    asked.clear()
    assert (await receiver.fetch(notice, None))[1] and asked == []
    (receiver._root / notice.location / "config.json").write_text("other")
    received, _ = await receiver.fetch(notice, None)
    assert asked and files(received) == files(folder)


async def test_an_actor_that_is_stopped_in_the_middle_goes_on_with_what_it_has(
    sender, receiver, publish, asked, outbox
):
    notice, folder = publish(0)
    sender.send(notice, folder)
    enough = asyncio.Event()
    get = receiver._get

    async def slow(notice, field):
        if len(asked) >= 5:
            enough.set()
            await asyncio.sleep(60)
        return await get(notice, field)

    receiver._get = slow
    first = asyncio.create_task(receiver.fetch(notice, None))
    await asyncio.wait_for(enough.wait(), 10)
    before, contents = (
        set(asked[1:]),
        chunks.decode(outbox.client.hget(chunks.key_of(KEYS, notice.location), "contents")),
    )
    part, all_chunks = receiver._root / f".part-{notice.location}", list(chunks.places(contents))
    async with asyncio.timeout(10):
        while len(_missing(part, contents)) > len(all_chunks) - len(before):
            await asyncio.sleep(0.01)
    await stop(first)
    assert len(before) == 4
    asked.clear()
    receiver._get = get
    received, _ = await receiver.fetch(notice, None)
    assert files(received) == files(folder)
    assert before.isdisjoint(asked) and len(asked) > 3
    assert [p.name for p in receiver._root.glob(".part-*")] == []


async def test_who_waits_for_a_stopped_actor_of_its_machine_says_so(sender, receiver, publish, tmp_path, monkeypatch):
    monkeypatch.setattr(received, "_TELL_S", 0.0)
    notice, folder = publish(0)
    sender.send(notice, folder)
    (tmp_path / "received").mkdir()
    said = asyncio.Queue[str]()
    monkeypatch.setattr(receiver._wire, "warn", said.put)
    with (tmp_path / "received" / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = asyncio.create_task(receiver.fetch(notice, None))
        async with asyncio.timeout(20):
            text = await said.get()
    assert "for another of this machine that receives weights" in text
    assert (await waiting)[1]


async def test_a_chunk_that_was_damaged_on_the_disk_is_fetched_again(sender, receiver, publish, asked):
    notice, folder = publish(0)
    sender.send(notice, folder)
    part = receiver._root / f".part-{notice.location}"
    part.mkdir(parents=True)
    for name, data in files(folder).items():
        (part / name).write_bytes(data)
    (part / "stray.bin").write_bytes(b"of nobody")
    with (part / "model.safetensors").open("r+b") as file:
        file.seek(25_000)
        file.write(b"damaged")
    with (part / "model.safetensors").open("ab") as file:
        file.write(b"too long")
    received, _ = await receiver.fetch(notice, None)
    assert len(asked) == 2, "the contents, and one chunk"
    assert files(received) == files(folder)


async def test_a_wrong_chunk_in_redis_is_no_version(sender, receiver, publish, outbox):
    notice, folder = publish(0)
    sender.send(notice, folder)
    outbox.client.hset(chunks.key_of(KEYS, notice.location), "3", b"something else")
    received, is_there = await receiver.fetch(notice, None)
    assert not is_there and not received.exists()
    sender.send(notice, folder)
    assert (await receiver.fetch(notice, None))[1]


async def test_a_version_that_is_gone_or_another_is_not_there(sender, receiver, publish, outbox):
    notice, folder = publish(0)
    assert not sender.has(notice) and not (await receiver.fetch(notice, None))[1]
    sender.send(notice, folder)
    other = type(notice)(**{f: getattr(notice, f) for f in notice.__struct_fields__} | {"digest": "00"})
    assert not sender.has(other) and not (await receiver.fetch(other, None))[1]
    outbox.client.hdel(chunks.key_of(KEYS, notice.location), "2")
    assert not (await receiver.fetch(notice, None))[1]
    outbox.client.flushall()
    assert not sender.has(notice)


async def test_a_folder_that_cannot_be_written_is_named_in_a_sentence(sender, config, publish, tmp_path):
    (tmp_path / "a_file").write_text("")
    wire = Wire(config)
    with pytest.raises(UserError, match=r"cannot be received in .*a_file.*weights\.received"):
        await RedisReceiver(wire, tmp_path / "a_file").fetch(publish(0)[0], None)
    await wire.client.aclose()


async def test_two_actors_of_one_machine_fetch_a_version_once(sender, receiver, publish, config, asked):
    notice, folder = publish(0)
    sender.send(notice, folder)
    wire = Wire(config)
    both = await asyncio.gather(receiver.fetch(notice, None), RedisReceiver(wire, receiver._root).fetch(notice, None))
    await wire.client.aclose()
    assert [is_there for _, is_there in both] == [True, True]
    assert len(asked) == len(set(asked)), "no chunk twice"


async def test_an_actor_keeps_the_newest_two_and_what_live_actors_report(sender, receiver, publish, outbox):
    for number in range(5):
        notice, folder = publish(number)
        sender.send(notice, folder)
        if number == 2:
            (receiver._root / ".part-v0000-00000001").mkdir()
        if number == 3:
            say(outbox, "other", version=[0, 1])
        await receiver.fetch(notice, None)
    assert [v.number for v in weights.published(receiver._root)] == [1, 3, 4]
    assert list(receiver._root.glob(".part-*")) == []
    notice, folder = publish(5)
    sender.send(notice, folder)
    outbox.client.delete(KEYS.actor("other"))
    await receiver.fetch(notice, publish(3)[0].version)
    assert [v.number for v in weights.published(receiver._root)] == [3, 4, 5]


def test_redis_holds_two_versions_and_those_that_are_being_read(sender, publish, outbox):
    def send(number: int) -> list[str]:
        notice, folder = publish(number)
        sender.send(notice, folder)
        keys = sorted(k.decode().rpartition(":")[2] for k in outbox.client.scan_iter(chunks.key_of(KEYS, "*")))
        assert keys == there(outbox)
        return [name[-1] for name in keys]

    assert [send(0), send(1), send(2)] == [["0"], ["0", "1"], ["1", "2"]]
    say(outbox, "slow", loading=[0, 1], version=[0, 0])
    assert send(3) == ["1", "2", "3"]
    assert send(4) == ["1", "3", "4"]
    say(outbox, "slow", version=[0, 1])
    assert send(5) == ["4", "5"]


def test_a_learner_without_room_says_so_and_goes_on_when_there_is_some(outbox, publish, monkeypatch):
    monkeypatch.setattr(sending, "RETRY_S", 0.05)
    told: list[str] = []
    monkeypatch.setattr(outbox, "warn", told.append)
    client = outbox.client
    old, new = publish(0), publish(1)
    RedisSender(outbox, Stop(), delta=False).send(*old)
    client.set("of_others", bytes(300_000))
    client.config_set("maxmemory", int(client.info("memory")["used_memory"] + 30_000))
    sender = RedisSender(outbox, Stop(), delta=False)
    waiting = threading.Thread(target=sender.send, args=new)
    try:
        waiting.start()
        deadline = time.monotonic() + 10
        while not told:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "no room for weights" in told[0] and waiting.is_alive()
        assert there(outbox) == [new[1].name], "what nobody reads makes room first"
        assert waits.ROOM._value.get() > 0
        client.delete("of_others")
        waiting.join(10)
        assert not waiting.is_alive() and sender.has(new[0]) and len(told) == 1 and waits.ROOM._value.get() == 0
    finally:
        client.config_set("maxmemory", 0)
        waiting.join(10)


def test_a_learner_that_waits_for_room_can_be_stopped(outbox, publish, monkeypatch):
    client, halt = outbox.client, Stop()
    monkeypatch.setattr(outbox, "warn", lambda text: halt._asked.set())
    late = threading.Timer(3, halt._asked.set)  # where the server has shrunk so far that not even a name fits
    late.start()
    client.config_set("maxmemory", int(client.info("memory")["used_memory"] + 5_000))
    try:
        with pytest.raises(Stopped):
            RedisSender(outbox, halt, delta=False).send(*publish(0))
    finally:
        late.cancel()
        client.config_set("maxmemory", 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
async def test_differences_give_the_same_digest_for_fewer_bytes(sender, receiver, publish, outbox, asked, dtype):
    for number in (0, 1):
        notice, folder = publish(number, dtype=dtype)
        sender.send(notice, folder)
        asked.clear()
        received, _ = await receiver.fetch(notice, None)
        weights.verify(received, notice.digest)
    changed = [field for field in asked if field.startswith("d")]
    assert len(changed) >= len(asked) - 2, "the contents, and the manifest, whose digest is another"
    lengths = [outbox.client.hstrlen(chunks.key_of(KEYS, notice.location), field) for field in changed]
    assert sum(lengths) < (0.3 if dtype == torch.bfloat16 else 0.6) * notice.size


async def test_a_base_that_is_not_here_is_named_and_the_whole_version_is_fetched(
    sender, receiver, publish, asked, caplog
):
    sender.send(*publish(0))
    notice, folder = publish(1)
    sender.send(notice, folder)
    with caplog.at_level(logging.WARNING):
        received, _ = await receiver.fetch(notice, None)
    assert files(received) == files(folder)
    assert not any(field.startswith("d") for field in asked)
    assert "differences to 0.0, which is not in" in caplog.text and "all of it is fetched" in caplog.text


async def test_a_base_whose_bytes_are_wrong_is_named_and_its_chunks_are_fetched(
    sender, receiver, publish, asked, caplog
):
    base, base_folder = publish(0)
    sender.send(base, base_folder)
    received, _ = await receiver.fetch(base, None)
    with (received / "model.safetensors").open("r+b") as file:
        file.seek(25_000)
        file.write(b"damaged")
    notice, folder = publish(1)
    sender.send(notice, folder)
    asked.clear()
    with caplog.at_level(logging.WARNING):
        received, _ = await receiver.fetch(notice, None)
    assert files(received) == files(folder)
    assert caplog.text.count("is not used (it does not give the announced digest)") == 1
    assert any(field.startswith("d") for field in asked)


async def test_where_everything_has_changed_the_whole_is_sent_and_no_difference(sender, publish, outbox):
    sender.send(*publish(0, step=0.02, dtype=torch.float32))
    notice, folder = publish(1, step=0.02, dtype=torch.float32)
    sender.send(notice, folder)
    fields = [field.decode() for field in outbox.client.hkeys(chunks.key_of(KEYS, notice.location))]
    large = len(list(chunks.cuts((folder / "model.safetensors").stat().st_size)))
    assert sum(field.startswith("d") for field in fields) < large / 2
