"""A version's way to the actors: sent, and once more where it is damaged, gone or refused; old ones deleted.

The notice of a new version is the caller's to send, in one transaction with what else is said of it.
"""

from collections.abc import Sequence
from typing import Any

from services.learner.executor import Executor
from services.learner.groups.group import Group
from services.learner.stop import Stop
from services.learner.talk.outbox import Outbox
from services.learner.weights import version_files
from services.learner.weights.publisher import TRIES, Publisher
from services.learner.weights.room import until_written
from services.learner.weights.save_time import SaveTime, timed
from services.learner.weights.transports import make_sender
from shared import heartbeats
from shared.config import Config
from shared.messages import WeightsNotice, encode
from shared.streams import FIELD
from shared.versions import Version


class Delivery:
    """Of one version at a time, the last that was published. Waits for Redis and for room, and raises Stopped."""

    def __init__(
        self,
        config: Config,
        stop: Stop,
        outbox: Outbox,
        executor: Executor,
        save_time: SaveTime,
        publisher: Publisher,
    ) -> None:
        """save_time: hears how long versions take to write."""
        self._root, self._stop, self._outbox = config.weights_dir, stop, outbox
        self._executor, self._publisher, self._save_time = executor, publisher, save_time
        self._sender = make_sender(config, outbox, stop)

    @property
    def notice(self) -> WeightsNotice:
        """Of the last version."""
        return self._publisher.notice

    def publish(self, version: Version, trained_on: Sequence[Group] = ()) -> None:
        """Write and send the weights as they stand. trained_on: the next canaries are of these, where they have any."""
        self._publisher.trained_on(trained_on)
        write = timed(lambda: self._executor.publish(version))
        seconds = until_written(self._stop, self._root, write, self._outbox.warn)
        self._save_time.published(seconds, self.notice.size)
        self._send()

    def send_again_if_gone(self) -> None:
        """For a server that was emptied of it."""
        if not self._sender.has(self.notice):
            self._send()

    def is_announced(self) -> bool:
        """Whether its notice is the newest that Redis has."""
        client, weights = self._outbox.client, self._outbox.keys.weights
        newest: Any = self._outbox.patiently("read the newest notice", lambda: client.xrevrange(weights, count=1))
        return bool(newest) and newest[0][1].get(FIELD) == encode(self.notice)

    def mend(self) -> None:
        """Write and announce the version again where its files are not what they were, or an actor refuses it.

        Where no actor takes a version, no group for a step comes.
        """
        version, has = self.notice.version, self._sender.has
        if not (self._publisher.is_whole() and has(self.notice)):
            why = f"the files of version {version} were damaged or gone, and are written again."
        elif tries := self._publisher.try_again(self._named(["refused"])):
            told = f"announced again with another canary, {tries} of at most {TRIES} times"
            why = f"weights {version} are refused by an actor, and are {told}."
        else:
            return
        self.publish(version)
        with self._outbox.transaction("announce the version again") as tx:
            tx.notice(self.notice)
            tx.event("warning", text=why)

    def delete_unused(self) -> None:
        """Versions that no live actor has or reads, but for the newest."""
        self._publisher.delete_unused(self._named(heartbeats.VERSIONS))

    def _send(self) -> None:
        self._sender.send(self.notice, self._root / self.notice.location)

    def _named(self, fields: Sequence[str]) -> set[Version]:
        """The versions that live actors name in these fields of their heartbeats."""
        client, keys = self._outbox.client, self._outbox.keys
        return self._outbox.patiently("read heartbeats", lambda: version_files.versions_in_use(client, keys, fields))
