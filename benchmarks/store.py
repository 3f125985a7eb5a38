"""Groups by the real wire into Redis, acknowledged by replay, against SET and XADD of the same bytes.

    python -m benchmarks.store [--groups 256] [--size 144000] [--in_flight 16] [--repetitions 7]

Ours makes the payload's bytes from its arrays, stores payload and header and ends the task in one atomic call, and
counts until the replay process has filed and acknowledged the last group. The peer sends the same bytes by the same
client with no atomicity, nobody reads them. "One at a time" awaits each call; pipelined, ours has `in_flight` calls on
the way, and the peer sends as many groups in one round trip.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from benchmarks.figure import Figure, run_alone, say
from benchmarks.passing import Actor, passing
from shared.streams import FIELD, Entry

REVERB = 888  # groups of this size per second, one writer, once on two (slower) cores (dm-reverb 0.14.0)


def measure(*, groups: int = 256, size: int = 144_000, in_flight: int = 16, repetitions: int = 7) -> list[Figure]:
    """Both ways, ours and raw by turns; the first turn warms up."""
    taken = asyncio.run(_measure(groups, size, in_flight, repetitions))
    rate = {name: [groups / s for s in seconds[1:]] for name, seconds in taken.items()}
    megabytes = size / 1e6
    note = "{:.0f} MB/s, Reverb once, on two slower cores, {} groups/s"
    return [
        Figure(name="store, one at a time", unit="groups/s", ours=rate["ours"], peer=rate["raw"],
               against="SET + XADD", at_least=0.9),
        Figure(name="store, pipelined", unit="groups/s", ours=rate["ours, pipelined"], peer=rate["raw, pipelined"],
               against="SET + XADD", at_least=0.9),
        Figure(name="store, pipelined, groups/s", unit="groups/s", ours=rate["ours, pipelined"], judged="ours",
               at_least=2600, note=note.format(megabytes * max(rate["ours, pipelined"]), REVERB)),
    ]  # fmt: skip


async def _measure(groups: int, size: int, in_flight: int, repetitions: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {}
    async with passing(groups, 2 * (repetitions + 2), size, fetch=False) as actor:
        for i in range(repetitions + 1):
            for at_once, suffix in ((1, ""), (in_flight, ", pipelined")):
                entries = await actor.tasks(groups)
                raw = [actor.made(entry)[1:] for entry in entries]
                taken.setdefault("ours" + suffix, []).append(await _ours(actor, entries, at_once))
                taken.setdefault("raw" + suffix, []).append(await _raw(actor, raw, at_once))
            say(f"repetition {i} of {repetitions}")
    return taken


async def _ours(actor: Actor, entries: list[Entry], at_once: int) -> float:
    began = time.perf_counter()
    room = asyncio.Semaphore(at_once)

    async def put(entry: Entry) -> None:
        async with room:
            await actor.put(entry)

    await (_in_turn(entries, actor.put) if at_once == 1 else asyncio.gather(*map(put, entries)))
    await actor.until_filed()
    return time.perf_counter() - began


async def _in_turn(entries: list[Entry], put: Callable[[Entry], Awaitable[int]]) -> None:
    for entry in entries:
        await put(entry)


async def _raw(actor: Actor, groups: list[tuple[bytes, bytes]], at_once: int) -> float:
    client = actor.wire.client
    began = time.perf_counter()
    for at in range(0, len(groups), at_once):
        pipe = client.pipeline(transaction=False)
        for i, (header, payload) in enumerate(groups[at : at + at_once], at):
            pipe.set(f"raw:{i}", payload)
            pipe.xadd("raw", {FIELD: header})
        await pipe.execute()
    seconds = time.perf_counter() - began
    await client.delete("raw", *(f"raw:{i}" for i in range(len(groups))))
    return seconds


if __name__ == "__main__":
    run_alone(measure)
