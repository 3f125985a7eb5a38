"""Checks every group that a search run has stored: what the environment wrote is masked out, what was sampled is not.

    .venv/bin/python examples/smollm2/check_masks.py runs/smollm2-search

The groups are read from the append-only file of the run's own Redis, so those are there too whose payload was deleted
long ago; the run may be going on. It knows nothing of how a mask is made. For each scored rollout, from the stored ids:

    the turns cover the masked-in tokens, all of them and no others
    a turn that is followed by an answer of the environment holds a finished tag, unless the answer is the hint
    each search is answered by one whole <information> ... </information>, which is masked out
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from shared.config import load
from shared.errors import UserError
from shared.payload import Payload, decode_payload
from shared.streams import Keys

SEARCH_END, OPEN, CLOSE = "</search>", "<information>", "</information>"


@dataclass
class Counts:
    """What was looked at."""

    groups: int = 0
    rollouts: int = 0  # scored ones; the others are masked out whole
    unscored: int = 0
    searches: int = 0
    hints: int = 0
    sampled: int = 0  # tokens
    masked_out: int = 0  # tokens of the environment


def check_run(run_dir: Path) -> Counts:
    """Check all groups of a run. AssertionError where a mask is wrong, UserError where there is nothing to check."""
    if not (run_dir / "config.toml").is_file():
        raise UserError(f"{run_dir} is not the folder of a run: it holds no config.toml.")
    config = load(run_dir / "config.toml", environ={})
    tokenizer = Tokenizer.from_file(str(Path(config.model.path) / "tokenizer.json"))
    counts = Counts()
    for payload in stored_payloads(run_dir / "redis" / "appendonlydir", config.run.name):
        counts.groups += 1
        for i in range(payload.group_size):
            check_rollout(payload, i, tokenizer, counts)
    if not counts.groups:
        raise UserError(f"{run_dir} has stored no group yet: let the run get to its first step.")
    return counts


def check_rollout(payload: Payload, i: int, tokenizer: Tokenizer, counts: Counts) -> None:
    """One rollout, of which only the stored arrays are known."""
    ids, mask = payload.rollout(i)
    where = f"group {payload.id}, rollout {i}"
    turns = [(start, end) for rollout, start, end in payload.turns.tolist() if rollout == i]
    if not mask.any():
        counts.unscored += 1
        return
    sampled = np.zeros(len(ids), bool)
    for start, end in turns:
        sampled[start:end] = True
    assert (mask == sampled).all(), f"{where}: the mask is not the sampled turns"

    def text(start: int, end: int) -> str:
        return tokenizer.decode(ids[start:end].tolist(), skip_special_tokens=False)

    answers = 0
    following = [start for start, _ in turns[1:]] + [len(ids)]
    for (start, end), after in zip(turns, following, strict=True):
        if end == after:
            continue
        answer = text(end, after)
        if OPEN in answer:
            answers += 1
            assert answer.strip().startswith(OPEN) and answer.strip().endswith(CLOSE), f"{where}: {answer!r}"
            assert SEARCH_END in text(start, end), f"{where}: an answer to no search: {text(start, end)!r}"
        else:
            counts.hints += 1
    assert answers == len(payload.documents[i]), f"{where}: {answers} answers to {len(payload.documents[i])} searches"
    counts.rollouts += 1
    counts.searches += answers
    counts.sampled += int(mask.sum())
    counts.masked_out += int((~mask).sum())


def stored_payloads(folder: Path, run: str) -> Iterator[Payload]:
    """Each payload that was ever written, in order, once."""
    prefix, seen, beside = Keys(run).payload("").encode(), set[bytes](), b""
    for file in sorted(folder.glob("*.incr.aof"), key=lambda f: int(f.name.split(".")[-3])):
        for command in commands(file.read_bytes()):
            if command[0].upper() == b"SET" and command[1] == prefix:
                beside = command[2]  # it gets its name in the same transaction
            elif command[0].upper() == b"RENAMENX" and command[1] == prefix and command[2] not in seen:
                seen.add(command[2])
                yield decode_payload(beside, run)


def commands(data: bytes) -> Iterator[list[bytes]]:
    """The commands in an append-only file: `*n`, then n times `$length` and so many bytes. One cut off is the last."""
    at = 0
    while (line := data.find(b"\r\n", at)) > 0:
        head, at, words = data[at:line], line + 2, []
        if not head.startswith(b"*"):
            continue  # an annotation
        for _ in range(int(head[1:])):
            line = data.find(b"\r\n", at)
            if line < 0:
                return
            length = int(data[at + 1 : line])
            at = line + 2 + length + 2
            if at > len(data):
                return
            words.append(data[line + 2 : at - 2])
        yield words


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, help="the folder of a run, as runs/smollm2-search")
    try:
        c = check_run(parser.parse_args().run_dir)
    except UserError as error:
        sys.exit(str(error))
    print(f"{c.groups} groups, {c.rollouts} rollouts ({c.unscored} more were not scored): every mask is right.")
    print(f"{c.searches} searches and {c.hints} hints: {c.masked_out} tokens, all masked out. Sampled: {c.sampled}.")


if __name__ == "__main__":
    main()
