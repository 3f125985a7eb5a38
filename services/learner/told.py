"""What the last steps told replay, kept to be told again: a server that died may have lost its last second.

Replay says where it stands whenever it has loaded its state (`Sync`). What it holds a batch for and does not know as
trained is told again as it was; where it is further behind it goes on from the learner's `Hello`.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from shared import streams
from shared.messages import Sync, Trained, encode
from shared.streams import Keys

KEPT_STEPS = 4  # a step is a second or more, and a server loses about one


class Told:
    """The `Trained` messages of the last steps, with the l_ref that went with each: group id -> float32 bytes."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, tuple[Trained, Mapping[str, bytes]]] = OrderedDict()

    def keep(self, trained: Trained, references: Mapping[str, bytes]) -> None:
        """Remember a step that has been told."""
        self._steps[trained.step] = (trained, references)
        while len(self._steps) > KEPT_STEPS:
            self._steps.popitem(last=False)

    def lacking(self, sync: Sync) -> list[Trained]:
        """What is kept of the steps that replay has sent and not heard of."""
        wanted = [step for step in sync.batches if step >= sync.step]
        return [self._steps[step][0] for step in wanted if step in self._steps]

    def references(self, client: Any, keys: Keys, steps: Sequence[Trained]) -> dict[str, bytes]:
        """l_ref of those steps' groups whose payload is still there."""
        every = {id: data for trained in steps for id, data in self._steps[trained.step][1].items()}
        return {id: data for id, data in every.items() if client.exists(keys.payload(id))}


def add_trained(pipe: Any, keys: Keys, trained: Trained, references: Mapping[str, bytes]) -> None:
    """Queue a step's result, with the l_ref of its fresh groups in front of it."""
    for id, data in references.items():
        pipe.set(keys.reference(id), data)
    streams.add(pipe, keys.results, encode(trained))
