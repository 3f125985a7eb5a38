"""What the buffer keeps of a group, from its header and the learner's record of its training as a fresh one."""

import numpy as np
from numpy.typing import NDArray

from services.replay.buffer import Row
from shared.messages import GroupHeader, Record


def new_row(
    sequence: int,
    step: int,
    prompt: int,
    header: GroupHeader,
    record: Record | None,
    advantages: NDArray[np.float32],
    responses: list[float],
) -> Row:
    """A group that enters the buffer.

    record: of its first training; prompt: its question's place; advantages: float32[G], as it was trained with;
    responses: what Policy.responses says of each, or none.
    """
    reference = header.headroom if record is None or record.headroom_ref is None else record.headroom_ref
    return Row(
        id=header.id,
        sequence=sequence,
        step=step,
        headroom_ref=reference,
        headroom=reference,
        drift=float("nan"),
        uses=0,
        tokens=sum(header.sampled_tokens),
        bytes=header.payload_bytes,
        prompt=prompt,
        right=header.right,
        scored=len(header.scored),
        reward_mean=float(np.mean(header.scored)),
        reward_std=float(np.std(header.scored, ddof=1)),
        advantage=float(np.abs(advantages).sum()),
        responses=responses,
    )
