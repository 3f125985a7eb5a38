"""Bytes per second from an actor through Redis and replay into a learner, against loopback TCP and against Redis alone.

    python -m benchmarks.end_to_end [--batches 12] [--batch 64] [--size 144000] [--repetitions 5]

The learner's store reads and checks every payload. Batches follow one another at lag 1: the clock runs from the first
group that is stored to the last batch that is trained. A byte of payload crosses a socket twice and three processes
handle it, on as many cores as there are. Redis alone: one client that sets as many bytes and reads them again.
"""

import asyncio
import socket
import time
from multiprocessing import get_context

from benchmarks.figure import Figure, run_alone, say
from benchmarks.passing import POLL_S, Actor, passing
from shared.group_store import TOGETHER

PIECE = 2**20


def measure(*, batches: int = 12, batch: int = 64, size: int = 144_000, repetitions: int = 5) -> list[Figure]:
    """A batch to warm up, then `batches` of them per repetition, and as many bytes through a plain socket."""
    ours, raw, alone = asyncio.run(_measure(batches, batch, size, repetitions))
    note = f"{batches} batches of {batch} groups of {size / 1000:.0f} KB"
    return [
        Figure(name="end to end", unit="MB/s", ours=ours, peer=raw, against="loopback TCP", at_least=0.15, note=note),
        Figure(name="end to end, of Redis alone", unit="MB/s", ours=ours, peer=alone, against="SET + MGET"),
    ]


async def _measure(batches: int, batch: int, size: int, repetitions: int) -> tuple[list[float], ...]:
    ours, raw, alone = [], [], []
    async with passing(batch, batches * (repetitions + 1) + 2, size, fetch=True) as actor:
        await _batches(actor, 1, batch)
        for i in range(repetitions):
            began = time.perf_counter()
            sent = await _batches(actor, batches, batch)
            ours.append(sent / (time.perf_counter() - began) / 1e6)
            raw.append(loopback(sent))
            alone.append(await _set_and_get(actor, batches * batch, size))
            figures = ours[-1], raw[-1], alone[-1]
            say("repetition {} of {}: {:.0f} of {:.0f}, Redis alone {:.0f} MB/s".format(i + 1, repetitions, *figures))
    return ours, raw, alone


async def _batches(actor: Actor, count: int, batch: int) -> int:
    """Store so many batches, TOGETHER groups at once, and wait until they are trained; the bytes of their payloads.

    Tasks are read as an actor reads them: as many as there is room for, in one call.
    """
    left, sent, running = count * batch, 0, set[asyncio.Task[int]]()
    while left or running:
        if free := min(left, TOGETHER - len(running)):
            entries = await actor.some_tasks(free)
            left -= len(entries)
            running |= {asyncio.create_task(actor.put(entry)) for entry in entries}
        if running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            sent += sum(task.result() for task in done)
    while await actor.open_groups():  # noqa: ASYNC110  other processes train them
        await asyncio.sleep(POLL_S)
    return sent


async def _set_and_get(actor: Actor, count: int, size: int) -> float:
    """MB/s of so many values of `size` bytes, TOGETHER of them, at most, written and read at a time."""
    client, value = actor.wire.client, bytes(size)
    began = time.perf_counter()
    for at in range(0, count, TOGETHER):
        names = [f"alone:{i}" for i in range(min(TOGETHER, count - at))]
        pipe = client.pipeline(transaction=False)
        for name in names:
            pipe.set(name, value)
        await pipe.execute()
        await client.mget(names)
    return count * size / (time.perf_counter() - began) / 1e6


def loopback(size: int) -> float:
    """MB/s of so many bytes to another process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader = get_context("spawn").Process(target=drain, args=(server.getsockname()[1],), daemon=True)
        reader.start()
        connection, _ = server.accept()
        with connection:
            piece = bytes(PIECE)
            began = time.perf_counter()
            for _ in range(max(1, size // PIECE)):
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            seconds = time.perf_counter() - began
        reader.join()
    return max(1, size // PIECE) * PIECE / seconds / 1e6


def drain(port: int) -> None:
    """Read to the end, and say so."""
    buffer = bytearray(PIECE)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv_into(buffer):
            pass
        connection.sendall(b"x")


if __name__ == "__main__":
    run_alone(measure)
