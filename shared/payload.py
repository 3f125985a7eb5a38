"""The token arrays of a group: one msgpack map of raw little-endian bytes under one Redis key.

Written once by an actor, read by the learner; the replay service never imports this module.

    prompt         int32[P]      the prompt all G rollouts share
    lengths        int32[G]      tokens after the prompt, sampled and retrieved
    tokens         int32[sum]    those tokens, rollout after rollout
    mask           bits[sum]     1 where the policy sampled the token and it is trained on
    l_gen          float32[T]    the engine's log-probability of each masked-in token, T = number of ones in mask
    advantages     float32[G]
    version_runs   int32[k, 3]   (how many, lineage, number): weights of the masked-in tokens, run-length coded
    turns          int32[m, 3]   (rollout, start, end): the pieces the policy sampled, within the rollout's tokens
    documents      ids of the retrieved documents: per rollout, per search, in rank order
"""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.messages import LARGEST, SCHEMA, UNREADABLE, Malformed


class _Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema: int
    id: str
    run: str
    prompt: bytes
    lengths: bytes
    tokens: bytes
    mask: bytes
    l_gen: bytes
    advantages: bytes
    version_runs: bytes
    turns: bytes
    documents: list[list[list[str]]]


@dataclass(frozen=True)
class Payload:
    """The decoded arrays, as in the module docstring; mask is bool[sum]."""

    id: str
    run: str
    prompt: NDArray[np.int32]
    lengths: NDArray[np.int32]
    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    l_gen: NDArray[np.float32]
    advantages: NDArray[np.float32]
    version_runs: NDArray[np.int32]
    turns: NDArray[np.int32]
    documents: list[list[list[str]]]

    @property
    def group_size(self) -> int:
        """G."""
        return len(self.lengths)

    def rollout(self, i: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Tokens and mask of rollout i, prompt excluded."""
        end = int(self.lengths[: i + 1].sum())
        start = end - int(self.lengths[i])
        return self.tokens[start:end], self.mask[start:end]


def encode_payload(p: Payload) -> bytes:
    """The bytes of a payload; whether they are those of a sound group is checked by who decodes them."""
    wire = _Wire(
        schema=SCHEMA,
        id=p.id,
        run=p.run,
        prompt=p.prompt.astype("<i4").tobytes(),
        lengths=p.lengths.astype("<i4").tobytes(),
        tokens=p.tokens.astype("<i4").tobytes(),
        mask=np.packbits(p.mask).tobytes(),
        l_gen=p.l_gen.astype("<f4").tobytes(),
        advantages=p.advantages.astype("<f4").tobytes(),
        version_runs=p.version_runs.astype("<i4").tobytes(),
        turns=p.turns.astype("<i4").tobytes(),
        documents=p.documents,
    )
    return msgspec.msgpack.encode(wire)


def decode_payload(data: bytes, run: str) -> Payload:
    """Views into `data` (read-only, nothing is copied but the mask). Raises Malformed for anything inconsistent."""
    try:
        w = msgspec.msgpack.decode(data, type=_Wire)
    except UNREADABLE as error:
        raise Malformed(f"not a valid payload: {error}") from None
    if w.schema != SCHEMA:
        raise Malformed(f"payload {w.id}: schema {w.schema}, and this version reads schema {SCHEMA}")
    if w.run != run:
        raise Malformed(f"payload {w.id} belongs to run '{w.run}', not '{run}'")
    lengths, tokens = _ints(w.lengths, w.id), _ints(w.tokens, w.id)
    if len(lengths) < 1 or lengths.min() < 0 or lengths.astype(np.int64).sum() != len(tokens):
        raise Malformed(f"payload {w.id}: lengths do not add up to its {len(tokens)} tokens")
    if len(w.mask) != (len(tokens) + 7) // 8:
        raise Malformed(f"payload {w.id}: {len(w.mask)} mask bytes for {len(tokens)} tokens")
    mask = np.unpackbits(np.frombuffer(w.mask, np.uint8), count=len(tokens)).view(np.bool_)
    p = Payload(
        id=w.id,
        run=w.run,
        prompt=_ints(w.prompt, w.id),
        lengths=lengths,
        tokens=tokens,
        mask=mask,
        l_gen=_floats(w.l_gen, w.id),
        advantages=_floats(w.advantages, w.id),
        version_runs=_ints(w.version_runs, w.id, columns=3),
        turns=_ints(w.turns, w.id, columns=3),
        documents=w.documents,
    )
    _check(p)
    return p


def _ints(data: bytes, group: str, columns: int = 0) -> NDArray[np.int32]:
    if len(data) % (4 * max(columns, 1)):
        raise Malformed(f"payload {group}: {len(data)} bytes are not whole int32 rows")
    array = np.frombuffer(data, "<i4")
    return array.reshape(-1, columns) if columns else array


def _floats(data: bytes, group: str) -> NDArray[np.float32]:
    if len(data) % 4:
        raise Malformed(f"payload {group}: {len(data)} bytes are not whole float32")
    array = np.frombuffer(data, "<f4")
    if not np.isfinite(array).all():
        raise Malformed(f"payload {group}: a number that is not finite")
    return array


def _check(p: Payload) -> None:
    trained = int(np.count_nonzero(p.mask))
    if trained == 0:
        raise Malformed(f"payload {p.id}: no token to train on")
    if len(p.prompt) == 0:
        raise Malformed(f"payload {p.id}: the prompt is empty")
    if len(p.l_gen) != trained:
        raise Malformed(f"payload {p.id}: {len(p.l_gen)} log-probabilities for {trained} trained tokens")
    if p.l_gen.max() > 1e-3 or p.l_gen.min() < -LARGEST:
        raise Malformed(f"payload {p.id}: a log-probability above 0 or below -{LARGEST:g}")
    if len(p.advantages) != p.group_size or len(p.documents) != p.group_size:
        raise Malformed(f"payload {p.id}: {len(p.advantages)} advantages for {p.group_size} rollouts")
    if np.abs(p.advantages).max() > LARGEST:
        raise Malformed(f"payload {p.id}: an advantage beyond {LARGEST:g}")
    if (p.prompt.min() < 0) or (len(p.tokens) and p.tokens.min() < 0):
        raise Malformed(f"payload {p.id}: a negative token id")
    runs = p.version_runs
    if len(runs) and (runs[:, 0].min() < 1 or runs[:, 1:].min() < 0):
        raise Malformed(f"payload {p.id}: version runs with a negative number")
    if runs[:, 0].sum(dtype=np.int64) != trained:
        raise Malformed(f"payload {p.id}: version runs cover {runs[:, 0].sum(dtype=np.int64)} of {trained} tokens")
    for rollout, start, end in p.turns.tolist():
        if not (0 <= rollout < p.group_size and 0 <= start <= end <= p.lengths[rollout]):
            raise Malformed(f"payload {p.id}: a turn outside its rollout")
