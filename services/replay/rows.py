"""What the buffer keeps of a group, from its header and the learner's record of its training as a fresh one."""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import StoredGroup
from shared.config import Config
from shared.messages import LARGEST, GroupHeader, Record

REFERENCE_BYTES = 4  # a sampled token


def bytes_of(config: Config, header: GroupHeader) -> int:
    """What a group that was trained takes in Redis: its payload, and its l_ref where that is kept."""
    return header.payload_bytes + (REFERENCE_BYTES * sum(header.sampled_tokens) if config.keeps_references else 0)


def new_row(
    sequence: int,
    step: int,
    prompt: int,
    header: GroupHeader,
    bytes: int,
    record: Record | None,
    advantages: NDArray[np.float32],
    responses: list[float],
) -> StoredGroup:
    """A group that enters the buffer.

    bytes: `bytes_of` it; record: of its first training; prompt: its question's place;
    advantages: float32[G], as it was trained with; responses: what Policy.responses says of each, or none.
    """
    reference = header.headroom
    if record is not None and record.headroom_ref is not None and abs(record.headroom_ref) <= LARGEST:
        reference = record.headroom_ref
    return StoredGroup(
        id=header.id,
        sequence=sequence,
        step=step,
        headroom_ref=reference,
        headroom=reference,
        drift=float("nan"),
        uses=0,
        tokens=sum(header.sampled_tokens),
        bytes=bytes,
        prompt=prompt,
        right=header.right,
        scored=len(header.scored),
        reward_mean=float(np.mean(header.scored)),
        reward_std=float(np.std(header.scored, ddof=1)),
        advantage=float(np.abs(advantages).sum()),
        responses=responses,
    )
