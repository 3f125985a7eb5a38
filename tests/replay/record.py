"""Make a recording: what real actors and a real learner said in a finished run, read from its Redis append-only file.

    headrace up examples/atlas.toml --run.name recorded --run.steps 40 --replay.tau 0 --replay.capacity 64
    python -m tests.replay.record runs/recorded tests/replay/recorded/atlas.jsonl.gz

With tau = 0 no group passes the gate, so every stored group is scanned in every step: the recording then holds the
Headroom and Drift of every group at every age until its eviction. The append-only file has every command the server
took, so nothing in the services has to know of recordings.

    line 1        {"G", "b", "capacity", "steps"}
    line 2 + s    {"step", "fresh": [GroupHeader ...], "trained": {id: numbers}, "scanned": {id: numbers}}
                  numbers = [headroom, drift, k3, entropy, headroom_ref or null], 7 digits
"""

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from shared import messages
from shared.config import load
from shared.messages import Batch, GroupHeader, Record, ScanResult, Trained
from shared.streams import FIELD, Keys


def commands(data: bytes) -> Iterator[list[bytes]]:
    """The commands of an append-only file, each a list of words; an unfinished last one is left out."""
    at = 0
    while at < len(data):
        end = data.find(b"\r\n", at)
        if end < 0 or data[at : at + 1] != b"*":
            return
        count, at, words = int(data[at + 1 : end]), end + 2, []
        for _ in range(count):
            end = data.find(b"\r\n", at)
            if end < 0 or data[at : at + 1] != b"$":
                return
            length, at = int(data[at + 1 : end]), end + 2
            if at + length + 2 > len(data):
                return
            words.append(data[at : at + length])
            at += length + 2
        yield words


def sent(run: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """(stream, message) of every entry that was ever added to a stream of the run, in order."""
    keys = Keys(name)
    streams = {s.encode(): s.removeprefix(keys.prefix) for s in (keys.groups, keys.work, keys.results)}
    for path in sorted((run / "redis" / "appendonlydir").glob("*.incr.aof")):
        for words in commands(path.read_bytes()):
            if words[0].upper() == b"XADD" and words[1] in streams:
                yield streams[words[1]], words[words.index(FIELD, 2) + 1]


def record(run: Path) -> Iterator[dict[str, Any]]:
    """The lines of a recording of this run."""
    config = load(run / "config.toml", environ={})
    headers: dict[str, GroupHeader] = {}
    fresh: dict[int, list[str]] = {}
    trained: dict[int, dict] = {}
    scanned: dict[int, dict] = {}
    for stream, data in sent(run, config.run.name):
        if stream == "groups":
            header = messages.decode(data, GroupHeader)
            headers[header.id] = header
            continue
        match messages.decode(data, messages.Work if stream == "work" else messages.Result):
            case Batch() as batch:
                fresh[batch.step] = batch.fresh
            case ScanResult() as result:
                scanned.setdefault(result.step, {}).update({r.id: _numbers(r) for r in result.records})
            case Trained() as done:
                trained[done.step] = {r.id: _numbers(r) for r in done.records}
    steps = [step for step in sorted(fresh) if step in trained]
    assert steps == list(range(len(steps))), "the run trained steps again after a resume: record one that did not"
    yield {"G": config.rollout.group_size, "b": config.learner.batch, "capacity": config.replay.capacity,
           "steps": len(steps)}  # fmt: skip
    for step in steps:
        yield {
            "step": step,
            "fresh": [msgspec.to_builtins(headers[id]) for id in fresh[step]],
            "trained": trained[step],
            "scanned": scanned.get(step, {}),
        }


def _numbers(r: Record) -> list[float | None]:
    values = (r.headroom, r.drift, r.k3, r.entropy, r.headroom_ref)
    return [None if value is None else float(f"{value:.7g}") for value in values]


if __name__ == "__main__":
    run_dir, out = Path(sys.argv[1]), Path(sys.argv[2])
    with gzip.GzipFile(out, "wb", compresslevel=9, mtime=0) as file:
        for line in record(run_dir):
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    print(f"{out}: {out.stat().st_size:,} bytes")
