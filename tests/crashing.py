"""A service that dies at its n-th durable boundary: before what it was about to make durable, and writes no more.

    write 1 | write 2 | ... | write n       a write: a Redis command or transaction, a rename, a link, a deletion

Between two writes a service changes its memory alone, so to be killed right after the n-th is to be killed right before
the next one. A test that dies at 1, 2, 3, ... until a run ends unharmed has been killed at every moment that matters.
`lost=True` is the other half: the n-th write is carried out, its reply is lost, and the service lives on.

A death here is an exception after which nothing is written; processes that a real SIGKILL ends are in tests/e2e
(test_exact_resume.py, test_interrupt.py, test_faults_of_services.py, test_eval.py).
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

READS = {
    *("GET", "MGET", "HGET", "HGETALL", "HSCAN", "EXISTS", "SMEMBERS", "LRANGE", "SCAN", "KEYS", "STRLEN", "PTTL"),
    *("XREAD", "XREADGROUP", "XRANGE", "XREVRANGE", "XLEN", "XPENDING", "XINFO", "XAUTOCLAIM"),
    *("INFO", "PING", "HELLO", "AUTH", "SELECT", "CLIENT", "WATCH", "UNWATCH", "SCRIPT"),
}


class Killed(BaseException):
    """SIGKILL, as far as a test can: nothing catches it, and nothing is written after it."""


class Death:
    """Of one life. `where` says at which write it came; `writes` are all that were reached."""

    def __init__(self, at: int, *, lost: bool = False) -> None:
        self.at, self.lost = at, lost
        self.writes: list[str] = []
        self.where = ""

    @property
    def dead(self) -> bool:
        """Whether the process is gone."""
        return bool(self.where) and not self.lost

    def before(self, write: str) -> int:
        """The service is about to make this durable; its number."""
        self.alive()
        self.writes.append(write)
        if len(self.writes) == self.at and not self.lost:
            self.where = write
            raise Killed(write)
        return len(self.writes)

    def after(self, number: int) -> None:
        """It is durable."""
        if number == self.at and self.lost:
            self.where = self.writes[number - 1]
            raise redis.ConnectionError(f"the reply to {self.where} was lost")

    def alive(self) -> None:
        """Raise Killed in whatever part of the dead service still runs."""
        if self.dead:
            raise Killed(self.where)


def deaths(*, lost: bool) -> Iterator[Death]:
    """One after another, at 1, 2, 3, ..., until one has not happened."""
    at = 0
    while True:
        at += 1
        death = Death(at, lost=lost)
        yield death
        if not death.where:
            assert at > 3, f"only {death.writes} were found to be written"
            return


def first_and_last(writes: list[str]) -> list[int]:
    """Where in a life each kind of write comes for the first and for the last time, counted from 1."""
    places = {write: [i for i, other in enumerate(writes, start=1) if other == write] for write in writes}
    return sorted({place for found in places.values() for place in (found[0], found[-1])})


def mortal(client: Any, death: Death) -> Any:
    """The client of a service that dies so; of an event loop or of a plain one."""
    waits = isinstance(client, redis.asyncio.Redis)
    wrap = _waiting if waits else _plain
    command, pipeline = client.execute_command, client.pipeline

    def mortal_pipeline(*args: Any, **kwargs: Any) -> Any:
        pipe = pipeline(*args, **kwargs)
        pipe.execute = wrap(pipe.execute, death, lambda *_: "MULTI " + " ".join(_names(pipe.command_stack)))
        return pipe

    client.execute_command = wrap(command, death, lambda name, *_: "" if _first(name) in READS else _first(name))
    client.pipeline = mortal_pipeline
    return client


def mortal_files(
    monkeypatch: pytest.MonkeyPatch, root: Path, death: Callable[[], Death | None], *, each: bool = False
) -> None:
    """What is renamed, linked or deleted below `root` is a write of the life that `death()` gives, if any.

    each: every file and folder that a deletion takes is one too, and every piece of a file that is put into its place.
    """

    def wrap(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            now = death()
            paths = [] if now is None else [_path(a, kwargs.get("dir_fd")) for a in args[:2]]
            if now is None or not any(path.startswith(str(root)) for path in paths):
                return real(*args, **kwargs)
            if not now.lost:
                now.before(f"{name} {paths[0]}")
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    whole = ((os, "rename"), (os, "replace"), (os, "symlink"), (shutil, "rmtree"))
    for module, name in (*whole, *(((os, "pwrite"), (os, "unlink"), (os, "rmdir")) if each else ())):
        wrap(module, name)


def _waiting(real: Callable[..., Any], death: Death, name_of: Callable[..., str]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        death.alive()
        if not (name := name_of(*args)):
            return await real(*args, **kwargs)
        number = death.before(name)
        try:
            return await real(*args, **kwargs)
        finally:  # an answer like BUSYGROUP is lost as well
            death.after(number)

    return call


def _plain(real: Callable[..., Any], death: Death, name_of: Callable[..., str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        death.alive()
        if not (name := name_of(*args)):
            return real(*args, **kwargs)
        number = death.before(name)
        try:
            return real(*args, **kwargs)
        finally:
            death.after(number)

    return call


def _path(named: Any, folder: int | None) -> str:
    """Also of an open file, and of a name in an open folder."""
    if isinstance(named, int):
        return str(Path(f"/proc/self/fd/{named}").readlink())
    return str(named) if folder is None else f"{_path(folder, None)}/{named}"


def _names(stack: Any) -> list[str]:
    return list(dict.fromkeys(_first((getattr(c, "args", None) or c[0])[0]) for c in stack))


def _first(name: Any) -> str:
    return (name.decode() if isinstance(name, bytes) else str(name)).split()[0].upper()
