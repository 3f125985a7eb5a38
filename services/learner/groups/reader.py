"""Groups by id: read from Redis once, checked, kept while they may be asked for again.

A group is usually scanned and then replayed in the same step; the cache (least recently used goes first, bounded in
groups and in bytes) makes that one read of its payload. l_ref lies under a key of its own, written when the group is
first trained.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from services.learner.groups.group import Group, group_from_payload
from services.learner.groups.parts import part_of
from shared import streams
from shared.messages import Malformed, Part
from shared.payload import decode_payload
from shared.streams import Keys

Refusals = dict[str, tuple[str, bytes]]  # id -> why, and what was read

CHUNK = 16  # groups per MGET: large replies would hold up every other client of the server


@dataclass
class Fetched:
    """`groups` in the order asked for; `refused` has the reason for each id that is not among them."""

    groups: list[Group] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


class GroupReader:
    """Counts until `lap` what it reads (payloads only), and what it and its owner refuse into `dead_letters`."""

    def __init__(
        self, client: Any, keys: Keys, run: str, *, cache_groups: int, cache_bytes: int, vocabulary: int, context: int
    ) -> None:
        self._client, self._keys, self._run = client, keys, run
        self._most, self._room = cache_groups, cache_bytes
        self._vocabulary, self._context = vocabulary, context
        self._cache: OrderedDict[str, Group] = OrderedDict()
        self._held = 0
        self._reads = self._bytes = self.dead_letters = 0

    def fetch(self, ids: Sequence[str], *, reference: bool, parts: Mapping[str, Part] | None = None) -> Fetched:
        """The groups, with l_ref when `reference`; of those in `parts` these rollouts.

        What cannot be used is buried with a reason, not raised: at the end, since all is asked again where Redis fails.
        """
        found: dict[str, Group] = {}
        refused: Refusals = {}
        used, absent = [], []
        for id in dict.fromkeys(ids):
            if cached := self._cache.get(id):
                self._cache.move_to_end(id)
                found[id] = cached
            else:
                absent.append(id)
        for at in range(0, len(absent), CHUNK):
            self._read_payloads(absent[at : at + CHUNK], found, refused)
        if reference:
            self._read_references([g for g in found.values() if g.l_ref is None], found, refused)
        for group in [found[id] for id in dict.fromkeys(ids) if id in found]:
            try:
                used.append(part_of(group, parts[group.id]) if parts and group.id in parts else group)
            except Malformed as error:
                refused[group.id] = str(error), b""
        self._bury(refused)
        return Fetched(used, {id: reason for id, (reason, _) in refused.items()})

    def reference_bytes(self, group: Group) -> bytes:
        """l_ref as it is stored."""
        assert group.l_ref is not None
        return group.l_ref.numpy().astype("<f4").tobytes()

    def read_elsewhere(self, size: int, payloads: int, dead_letters: int) -> None:
        """Count what another rank says of its lap."""
        self._bytes += size
        self._reads += payloads
        self.dead_letters += dead_letters

    def lap(self) -> tuple[int, int, int]:
        """(payload bytes, payloads) read since the last lap, and the dead letters meanwhile."""
        out = self._bytes, self._reads, self.dead_letters
        self._bytes = self._reads = self.dead_letters = 0
        return out

    def _read_payloads(self, ids: list[str], found: dict[str, Group], refused: Refusals) -> None:
        for id, data in zip(ids, self._client.mget([self._keys.payload(id) for id in ids]), strict=True):
            if data is None:
                refused[id] = "its payload is gone", b""
                continue
            self._reads += 1
            self._bytes += len(data)
            try:
                payload = decode_payload(data, self._run)
                if payload.id != id:
                    raise Malformed(f"the payload under {id} calls itself {payload.id}")
                group = group_from_payload(payload, self._vocabulary, self._context)
            except Malformed as error:
                refused[id] = str(error), data
                continue
            found[id] = group
            self._keep(group)

    def _read_references(self, groups: list[Group], found: dict[str, Group], refused: Refusals) -> None:
        for at in range(0, len(groups), CHUNK):
            chunk = groups[at : at + CHUNK]
            for group, data in zip(chunk, self._client.mget([self._keys.reference(g.id) for g in chunk]), strict=True):
                reason = _reference_fault(group, data)
                if reason:
                    del found[group.id]
                    refused[group.id] = reason, data or b""
                else:
                    group.l_ref = torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))

    def _bury(self, refused: Refusals) -> None:
        if refused:
            with self._client.pipeline() as pipe:
                for id, (reason, data) in refused.items():
                    streams.bury(pipe, self._keys, f"learner:{id}", reason, data)
                pipe.execute()
            self.dead_letters += len(refused)

    def _keep(self, group: Group) -> None:
        self._cache[group.id] = group
        self._held += group.bytes
        while self._held > self._room or len(self._cache) > self._most:
            _, old = self._cache.popitem(last=False)
            self._held -= old.bytes


def _reference_fault(group: Group, data: bytes | None) -> str:
    if data is None:
        return "its reference log-probabilities are gone"
    if len(data) != 4 * group.tokens:
        return f"{len(data)} bytes of reference log-probabilities for {group.tokens} trained tokens"
    return "" if np.isfinite(np.frombuffer(data, "<f4")).all() else "a reference log-probability that is not finite"
