"""What the learner says to Redis: a transaction at a time, made again until the server has taken it.

A transaction whose reply was lost is sent again, so a reader may see an entry twice and goes by its step and version.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import redis

from services.learner.stop import Stop
from services.learner.talk.lineage import lives_key, refuse_if_replaced
from services.learner.talk.patience import patiently
from shared import events, streams
from shared.messages import Message, Trained, WeightsNotice, encode
from shared.streams import LEARNER, Keys

NOTICES_KEPT = 16
T = TypeVar("T")


class Outbox:
    """The learner's connection to Redis. Every wait is for the server, or ends with a Stopped.

    A transaction of a learner that another has replaced raises UserError.
    """

    def __init__(self, client: redis.Redis, keys: Keys, stop: Stop) -> None:
        self.client, self.keys, self._stop = client, keys, stop
        self.lineage: int | None = None  # of this life, once it is open: from then on only the newest may write

    def patiently(self, what: str, call: Callable[[], T]) -> T:
        """The result of `call`, which must bear being repeated."""
        return patiently(self._stop, what, call)

    @contextmanager
    def transaction(self, what: str) -> Iterator["Transaction"]:
        """Everything that is queued on it takes effect together, when the block ends."""
        with self.client.pipeline(transaction=True) as pipe:
            yield Transaction(pipe, self.keys)
            commands = list(pipe.command_stack)

            self.patiently(what, lambda: self._execute(pipe, commands))

    def _execute(self, pipe: Any, commands: list[Any]) -> None:
        """What is checked holds while it is written: between the two no other life of the learner has begun.

        The number of lives is written too: an older transaction whose connection broke under way may still arrive, and
        fails once the key was touched.
        """
        while True:
            pipe.reset()
            try:
                if self.lineage is not None:
                    pipe.watch(lives_key(self.keys))
                    refuse_if_replaced(pipe, self.keys, self.lineage)
                    pipe.multi()
                    pipe.set(lives_key(self.keys), self.lineage + 1)
                pipe.command_stack += commands
                pipe.execute()
                return
            except redis.WatchError:
                continue  # the next look finds who it was, or that the connection was lost

    def warn(self, text: str) -> None:
        """Tell people at once."""
        self.patiently("warn", lambda: events.emit(self.client, self.keys, "warning", service="learner", text=text))


class Transaction:
    """One transaction in the making."""

    def __init__(self, pipe: Any, keys: Keys) -> None:
        self.pipe, self._keys = pipe, keys

    def result(self, message: Message) -> None:
        """For replay."""
        streams.add(self.pipe, self._keys.results, encode(message))

    def trained(self, trained: Trained, references: Mapping[str, bytes]) -> None:
        """A step's result, with the l_ref of its fresh groups (group id -> float32 bytes) in front of it."""
        for id, data in references.items():
            self.pipe.set(self._keys.reference(id), data)
        self.result(trained)

    def notice(self, notice: WeightsNotice) -> None:
        """For every actor."""
        streams.add(self.pipe, self._keys.weights, encode(notice), keep=NOTICES_KEPT)

    def ack(self, *ids: bytes) -> None:
        """These entries of `work` are done with."""
        streams.ack(self.pipe, self._keys.work, LEARNER, *ids)

    def event(self, kind: str, **fields: Any) -> None:
        """For people."""
        events.emit(self.pipe, self._keys, kind, service="learner", **fields)
