"""What the last steps told replay, kept to be told again: a server that died may have lost its last second.

Replay says where it stands whenever it has loaded its state (`Sync`). What it holds a batch for and does not know as
trained is told again as it was; where it is further behind it goes on from the learner's `Hello`.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from shared.messages import Sync, Trained
from shared.streams import Keys

KEPT_STEPS = 4  # a step is a second or more, and a server loses about one


class SentSteps:
    """The `Trained` messages of the last steps, with the l_ref that went with each: group id -> float32 bytes."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, tuple[Trained, Mapping[str, bytes]]] = OrderedDict()

    def keep(self, trained: Trained, references: Mapping[str, bytes]) -> None:
        """Remember a step that has been told."""
        self._steps[trained.step] = (trained, references)
        while len(self._steps) > KEPT_STEPS:
            self._steps.popitem(last=False)

    def lacking(self, client: Any, keys: Keys, sync: Sync) -> list[tuple[Trained, dict[str, bytes]]]:
        """What is kept of the steps that replay has sent and not heard of, with l_ref where the payload is there."""
        kept = [self._steps[step] for step in sync.batches if step >= sync.step and step in self._steps]
        return [(trained, _present(client, keys, references)) for trained, references in kept]


def _present(client: Any, keys: Keys, references: Mapping[str, bytes]) -> dict[str, bytes]:
    return {id: data for id, data in references.items() if client.exists(keys.payload(id))}
