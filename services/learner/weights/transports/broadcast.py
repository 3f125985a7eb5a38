"""Versions by broadcast to all actors at once; `shared/transports/broadcast.py` has the form.

A thread answers whoever wants a version, from the weights folder, beside whatever the learner does. A round is of those
who have asked by then: everyone who lacks the version, or who asks within GATHER_S of the first.
"""

import atexit
import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import redis

from shared import heartbeats, weights
from shared.config import Config
from shared.errors import UserError
from shared.messages import WeightsNotice
from shared.streams import Keys
from shared.transports import broadcast, chunks
from shared.transports.broadcast import Carrier, Round, RoundBroken, Wanted
from shared.versions import Version

log = logging.getLogger("headrace")

GATHER_S = 2.0
LOOK_AGAIN_S = 0.05
RETRY_S = 1.0
CLOSE_S = 2.0
KEPT_S = 60  # what an actor is told of its round, where it does not read it


class BroadcastSender:
    """See `services.learner.weights.transports.Sender`."""

    def __init__(self, config: Config, client: redis.Redis) -> None:
        self._root, self._client, self._keys = config.weights_dir, client, Keys(config.run.name)
        redis_host = urlsplit(config.redis.url).hostname or "127.0.0.1"
        self._address = config.weights.address or broadcast.own_address(redis_host)
        broadcast.listener(self._address).close()
        self._device = "cpu" if config.learner.device == "cpu" else "cuda:0"
        self._carrier = Carrier(self._device)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="broadcasts", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def send(self, notice: WeightsNotice, folder: Path) -> None:
        """It is sent when actors ask for it."""

    def has(self, notice: WeightsNotice) -> bool:
        """The folder is looked at by who wrote it."""
        return True

    def close(self) -> None:
        """End the thread and its process; a round that is under way is broken."""
        self._closed.set()
        self._carrier.kill()
        self._thread.join(CLOSE_S)

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                asked = self._gathered()
                for version in sorted({(w.location, w.digest) for w in asked}, reverse=True):  # the newest first
                    self._round(*version, [w for w in asked if (w.location, w.digest) == version])
            except redis.RedisError as error:
                log.debug("nobody can ask for weights: %s", error)  # the learner's own calls say so
                self._closed.wait(RETRY_S)
            except Exception:  # whatever it was, whoever asks again must find somebody
                log.exception("a broadcast of weights failed")
                self._closed.wait(RETRY_S)

    def _gathered(self) -> list[Wanted]:
        """Who wants a version, by the time a round may begin; nobody, after a second."""
        key = broadcast.wanted_key(self._keys)
        first: Any = self._client.blpop([key], timeout=1)
        came = [first[1]] if first else []
        asked: dict[str, Wanted] = {}
        deadline = time.monotonic() + GATHER_S
        while came or asked:
            asked |= {wanted.actor: wanted for wanted in _readable(came)}
            beats = heartbeats.known(self._client, self._keys)
            asked = {actor: wanted for actor, wanted in asked.items() if beats.get(actor)}  # the others have died
            rest: Any = self._client.lpop(key, 1024)
            came = rest or []
            if not came and (time.monotonic() > deadline or _all_there(asked, beats)):
                break
            self._closed.wait(0 if came else LOOK_AGAIN_S)
        return list(asked.values())

    def _round(self, location: str, digest: str, asked: list[Wanted]) -> None:
        folder = self._root / location
        if not chunks.is_inside(location) or weights.digest_in(folder) != digest:
            self._tell(asked, [b""] * len(asked))
            return
        if not self._carrier.alive():  # it died between two rounds
            self._renew()
        carrier, invited = self._carrier, False
        try:
            port = carrier.ask({"meet": self._address}, broadcast.PATIENCE_S)["port"]
            leader = Round(
                address=self._address,
                port=port,
                rank=0,
                world=len(asked) + 1,
                backend=broadcast.backend_for([carrier.gpu, *(w.gpu for w in asked)]),
                location=location,
                digest=digest,
                files=chunks.files_in(folder),
                bucket=broadcast.BUCKET,
                patience_s=broadcast.PATIENCE_S,
            )
            members = [msgspec.structs.replace(leader, rank=rank) for rank in range(1, leader.world)]
            self._tell(asked, map(msgspec.msgpack.encode, members))
            invited = True
            began = time.monotonic()
            whole = carrier.take_part(leader, str(folder))["whole"]
        except (RoundBroken, OSError) as error:
            log.warning("the broadcast of %s to %d actors was broken: %s", location, len(asked), error)
            if not invited:
                self._tell(asked, [b""] * len(asked))
            self._renew()
            return
        took = f"{time.monotonic() - began:.2f} s by {leader.backend}"
        log.info("the broadcast of %s came to %d of %d actors in %s", location, whole, len(asked), took)

    def _renew(self) -> None:
        self._carrier.kill()
        if not self._closed.is_set():
            self._carrier = Carrier(self._device)

    def _tell(self, asked: Iterable[Wanted], letters: Iterable[bytes]) -> None:
        with self._client.pipeline(transaction=True) as pipe:
            for wanted, letter in zip(asked, letters, strict=True):
                key = broadcast.round_key(self._keys, wanted.actor)
                pipe.rpush(key, letter)
                pipe.expire(key, KEPT_S)
            pipe.execute()


def _readable(entries: Iterable[bytes]) -> Iterable[Wanted]:
    for entry in entries:
        try:
            yield broadcast.decode(entry, Wanted)
        except UserError as error:
            log.warning("%s", error)


def _all_there(asked: dict[str, Wanted], beats: dict[str, heartbeats.Beat | None]) -> bool:
    """Whether somebody of every machine has asked whose actors lack the newest version that is asked for.

    Actors of one machine may share what they receive: one asks, and the others wait for it.
    """
    newest = max((wanted.location for wanted in asked.values()), default="")
    lacking = {
        beat.get("host")
        for beat in beats.values()
        if beat and beat.get("state") == "running" and not (beat.get("version") and _location(beat) >= newest)
    }
    return lacking <= {beat.get("host") for actor in asked if (beat := beats.get(actor))}


def _location(beat: heartbeats.Beat) -> str:
    return Version(*beat["version"]).directory
