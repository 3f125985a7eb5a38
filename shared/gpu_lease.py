"""One process on one GPU: a lease per device in Redis, held by a heartbeat and taken before torch is imported.

    learner: claims, and says that it has chosen          actors of its run: wait for that, then claim theirs
             (or, where it claims none, says just that: shared/learner_mark.py)
    held -> renewed every 5 s -> released at the end | expired 30 s after its holder died -> free
    held -> not renewed for 25 s -> its holder ends itself, before anybody else can claim it

All or nothing: a process that needs several GPUs gets them in one script call. Leases are of the Redis, not of a run,
so two runs on one server share a machine as well. It is safe to end at any moment, and two on one GPU are not: so a
process ends at once when it cannot know that it still holds its lease, whether it is cut off from Redis or Redis is
down, and one that was stopped for longer ends as soon as it goes on. An emptied server forgets leases: until they are
renewed, for up to 5 s, only the memory in use on a GPU keeps others off it.
"""

import asyncio
import logging
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import redis

from shared import events
from shared.cancellation import raise_if_cancelled
from shared.config import Config
from shared.errors import UserError
from shared.gpus import VISIBLE_VARIABLE, visible_gpus
from shared.outage import raise_if_refused
from shared.redis_client import connect
from shared.streams import Keys

log = logging.getLogger("headrace")

LEASE_S = 30.0
RENEWALS = 6  # in the time a lease lasts; the last sixth is the margin in which a holder that was cut off ends
RETRY_S = 3.0
SAY_AGAIN_S = 60.0
LEAVE_S = 2.0
PREFIX = "headrace:{gpus}:"  # one slot, whatever the run: the scripts touch several of these keys

Role = Literal["learner", "actor"]

# KEYS: the learner's mark, then a key per device. Returns the places of those claimed, or what is in the way.
_CLAIM = """
if ARGV[4] == 'after learner' and redis.call('EXISTS', KEYS[1]) == 0 then return {'learner'} end
local free = {}
for i = 2, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[1] then redis.call('DEL', KEYS[i]) end -- by a claim whose reply was lost
  if redis.call('EXISTS', KEYS[i]) == 0 then free[#free + 1] = i - 2 end
end
local count = tonumber(ARGV[3])
if #free < count then return {'free', #free} end
local taken = {'claimed'}
for i = 1, count do
  redis.call('SET', KEYS[free[i] + 2], ARGV[1], 'PX', ARGV[2])
  taken[i + 1] = free[i]
end
if ARGV[4] == 'learner' then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return taken
"""

# A key that is gone (the server was away longer than a lease lasts) is taken again, unless another holds it. A full
# server refuses SET, and takes PEXPIRE.
RENEW = """
for i = 1, #KEYS do
  local holder = redis.call('GET', KEYS[i])
  if holder and holder ~= ARGV[1] then return 0 end
end
for i = 1, #KEYS do
  if redis.call('PEXPIRE', KEYS[i], ARGV[2]) == 0 then redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2]) end
end
return 1
"""

RELEASE = """
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[1] then redis.call('DEL', KEYS[i]) end
end
"""


def _end_now() -> None:
    """Without any cleaning up, and not without the processes that hold memory on the GPU for this one."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(1)


class GpuLease:
    """The GPUs of one process; `devices` is empty until `try_claim` was true, and for ever where none is needed."""

    def __init__(
        self,
        config: Config,
        role: Role,
        count: int,
        *,
        lease_s: float = LEASE_S,
        on_lost: Callable[[], None] = _end_now,
    ) -> None:
        """`count` devices, all or none. `on_lost` is called from a thread when another process holds one of them, or
        could soon.
        """
        self.devices: list[str] = []
        self.owner = owner_name(role)
        self._config, self._role, self._count = config, role, count
        self._lease_s, self._on_lost = lease_s, on_lost
        self._keys: list[str] = []
        self._mark = mark_of(config.run.name)
        self._said, self._next_say, self._since = "", 0.0, 0.0
        self.waiting_for = ""  # what a person should know of a claim that is not granted yet
        self._over = threading.Event()
        self._leaving = threading.Lock()
        self._sure_until = 0.0  # on the monotonic clock: until then nobody else can have claimed
        self._thread: threading.Thread | None = None
        self._client: redis.Redis | None = None
        self.needed = self._is_needed()  # None: not known yet

    def try_claim(self) -> bool:
        """Claim, set CUDA_VISIBLE_DEVICES and begin to renew; False when not enough are free, which is logged."""
        claimed = self._claim()
        if claimed:
            self.waiting_for = ""
        return claimed

    @property
    def waiting_s(self) -> float:
        """How long it has been waiting by now; 0: it does not."""
        return time.monotonic() - self._since if self.waiting_for else 0.0

    def _claim(self) -> bool:
        if self.needed is None:
            self.needed = self._is_needed()
        if self.needed is False:
            return True
        gpus = visible_gpus()
        if gpus is None or self.needed is None:
            self._say("nvidia-smi fails, so it is not known which GPUs there are")
            return False
        if len(gpus) < self._count:
            raise UserError(
                f"this {self._role} needs {self._count} GPUs and sees {len(gpus)}: give the machine or container more, "
                "lower actor.tensor_parallel, or set run.gpus = 'share'."
            )
        idle = [gpu.uuid for gpu in gpus if not gpu.busy]
        asked = time.monotonic()
        try:
            answer = self._script(_CLAIM, [self._mark, *map(_lease_key, idle)], [self._count, self._order()])
        except (redis.RedisError, OSError) as error:
            raise_if_refused(error)
            self._say(f"Redis does not answer ({error})")
            return False
        if answer[0] != b"claimed":
            self._say(self._why_not(answer, len(gpus), len(idle)))
            return False
        self.devices = [idle[place] for place in answer[1:]]
        self._keys = [*map(_lease_key, self.devices)] + ([self._mark] if self._role == "learner" else [])
        os.environ[VISIBLE_VARIABLE] = ",".join(self.devices)
        log.info("claimed %s", ", ".join(self.devices))
        self._is_sure_from(asked)
        self._thread = threading.Thread(target=self._renew_until_over, name="gpu-lease", daemon=True)
        self._thread.start()
        threading.Thread(target=self._end_before_expiry, name="gpu-lease-end", daemon=True).start()
        return True

    def release(self) -> None:
        """Give the devices back; without Redis they are free when the lease expires."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=LEAVE_S)
            try:
                self._script(RELEASE, self._keys, [])
            except (redis.RedisError, OSError) as error:
                log.warning("the GPUs are free again in %g s (%s)", self._lease_s, error)
        self.devices, self._thread = [], None
        if self._client is not None:
            self._client.close()

    def _is_needed(self) -> bool | None:
        how = self._config.run.gpus
        if how == "share" or (self._role == "learner" and self._config.learner.device == "cpu"):
            return False
        gpus = visible_gpus()
        if gpus is None:
            return None
        count = len(gpus)
        if how == "lease" and count == 0:
            raise UserError(
                "run.gpus = 'lease', and nvidia-smi shows no GPU here: mend the driver or the container's GPU "
                "reservation, or set run.gpus = 'share'."
            )
        return how == "lease" or count > 1

    def _order(self) -> str:
        if self._role == "learner":
            return "learner"
        return "" if self._config.learner.device == "cpu" else "after learner"

    def _why_not(self, answer: Sequence[Any], seen: int, idle: int) -> str:
        if answer[0] == b"learner":
            return f"the learner of run '{self._config.run.name}' has not claimed its GPU yet, and it goes first"
        foreign = f"; {seen - idle} are in use by processes without a lease" if idle < seen else ""
        return f"{answer[1]} of {seen} GPUs are free, and this {self._role} needs {self._count}{foreign}"

    def _say(self, why: str) -> None:
        """At once when the reason is new, then once a minute; in the run's events the first time."""
        self._since = self._since or time.monotonic()
        self.waiting_for = f"a GPU: {why}"
        if why == self._said and time.monotonic() < self._next_say:
            return
        text = f"waiting for a GPU: {why}; asking again every {RETRY_S:g} s."
        log.info("%s", text)
        if not self._said:
            try:
                events.emit(self._connected(), Keys(self._config.run.name), "warning", service=self._role, text=text)
            except (redis.RedisError, OSError):
                log.debug("nobody could be told")
        self._said, self._next_say = why, time.monotonic() + SAY_AGAIN_S

    def _renew_until_over(self) -> None:
        pause = self._lease_s / RENEWALS
        while not self._over.wait(pause):
            asked = time.monotonic()
            try:
                held = self._script(RENEW, self._keys, [])
            except (redis.RedisError, OSError) as error:
                log.debug("the lease on GPUs was not renewed: %s", error)
                continue
            if not held:
                self._leave("another process has claimed {} while this one was cut off from Redis")
                return
            self._is_sure_from(asked)

    def _is_sure_from(self, asked: float) -> None:
        """The server, asked then, has kept the lease: it lasts from then at least."""
        self._sure_until = asked + self._lease_s * (1 - 1 / RENEWALS)

    def _end_before_expiry(self) -> None:
        """In a thread of its own: a request to a server that is cut off can hang longer than the lease lasts."""
        while not self._over.wait(max(0.0, self._sure_until - time.monotonic())):
            if time.monotonic() >= self._sure_until:
                return self._leave(
                    "the lease on {} could not be renewed and is about to end, since Redis is out of reach"
                )
        return None

    def _leave(self, why: str) -> None:
        with self._leaving:
            if not self._over.is_set():
                self._over.set()
                log.error("%s: this process ends at once.", why.format(", ".join(self.devices)))
                self._on_lost()

    def _connected(self) -> redis.Redis:
        if self._client is None:
            self._client = connect(self._config.redis.url, answer_s=self._lease_s / RENEWALS)
        return self._client

    def _script(self, script: str, keys: Sequence[str], more: Sequence[str | int]) -> Any:
        return self._connected().eval(script, len(keys), *keys, self.owner, int(self._lease_s * 1000), *more)


def owner_name(role: Role) -> str:
    """Unique to a process's life on any machine."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"


def mark_of(run: str) -> str:
    """The key that says that the run's learner has chosen."""
    return PREFIX + "learner:" + run


def _lease_key(uuid: str) -> str:
    return f"{PREFIX}lease:{uuid}"


async def until_claimed(lease: GpuLease, check: Callable[[], Awaitable[None]]) -> None:
    """Wait for it on an event loop; `check` raises when there is nothing to wait for any more."""
    while True:
        raise_if_cancelled()
        await check()
        if await asyncio.to_thread(lease.try_claim):
            return
        await asyncio.sleep(RETRY_S)


def wait_until_claimed(lease: GpuLease, wait: Callable[[float], None]) -> None:
    """Wait for it in a plain process; `wait` sleeps, and raises when the process is told to stop."""
    while not lease.try_claim():
        wait(RETRY_S)
