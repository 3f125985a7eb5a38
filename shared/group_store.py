"""The actor's writing end: a group is stored and its task ended in one atomic call, so neither is without the other."""

import asyncio
import time
from dataclasses import dataclass

import redis.asyncio

from shared.redis_client import PAYLOAD_SHARE, SOCKET_TIMEOUT_S
from shared.streams import ACTORS, FIELD, Keys

# A group is written once: the payload, its header and the acknowledgement of its task together, or only the
# acknowledgement when the group is there already (a task reclaimed while its first actor was merely slow). The payload
# is set beside its place in the same transaction, and given its name here: as an argument it would be copied into Lua,
# which takes the server many times as long as the SET. Payloads leave a share of the server's memory to messages: what
# frees memory has to be said first. Returns whether it was stored, and the bytes that were free for payloads (-1: not
# asked, or no limit).
_STORE_GROUP = f"""
local stored, room = 1, -1
if ARGV[3] == '1' then
  if ARGV[4] ~= '' then
    local memory = redis.call('INFO', 'memory')
    local used = tonumber(string.match(memory, 'used_memory:(%d+)'))
    local limit = tonumber(string.match(memory, 'maxmemory:(%d+)'))
    if limit > 0 and used > limit * ARGV[4] and redis.call('EXISTS', KEYS[2]) == 0 then
      redis.call('DEL', KEYS[1])
      return redis.error_reply('OOM no room for a payload')
    end
    if limit > 0 then room = math.floor(limit * ARGV[4] - used) end
  end
  stored = redis.call('RENAMENX', KEYS[1], KEYS[2])
  if stored == 0 then redis.call('DEL', KEYS[1]) end
end
if stored == 1 then redis.call('XADD', KEYS[3], '*', '{FIELD.decode()}', ARGV[1]) end
redis.call('XACK', KEYS[4], '{ACTORS}', ARGV[2])
redis.call('XDEL', KEYS[4], ARGV[2])
return {{stored, room}}
"""
TOGETHER = 16  # groups in one transaction, at most
WAIT_S = SOCKET_TIMEOUT_S  # for those before: on a server that hangs each of them in turn would take the socket's limit
# The server is asked for its memory, which takes it as long as all the rest, once in so long or in so large a share of
# what was free: not even this many actors together fill what is kept for messages in between.
ASK_AGAIN_S, ASK_AGAIN_SHARE = 0.2, 1 / 256


@dataclass(eq=False)
class _Stored:
    group: str
    header: bytes
    payload: bytes
    task_entry: bytes
    outcome: bool | Exception | None = None


class GroupStore:
    """Stores groups, each with the end of its task.

    Groups that come while one is being written go together in the next transaction: most of what a call costs is the
    waiting and the waking of both sides.
    """

    def __init__(self, client: redis.asyncio.Redis, keys: Keys) -> None:
        self._client, self._keys = client, keys
        self._writing, self._waiting = asyncio.Lock(), list[_Stored]()
        self._ask_at, self._unasked = 0.0, 0.0  # the time, and the bytes that may be stored until then

    async def store(self, group: str, header: bytes, payload: bytes, task_entry: bytes) -> bool:
        """True if written, False if the group was there already. An empty payload stores a failure's header alone.

        Raises OutOfMemoryError when payloads have filled their share of the server's memory, TimeoutError where those
        that are written before take longer than WAIT_S.
        """
        own = _Stored(group, header, payload, task_entry)
        self._waiting.append(own)
        try:
            async with asyncio.timeout(WAIT_S) as wait, self._writing:
                wait.reschedule(None)
                if own.outcome is None:  # else whoever wrote before has taken it along
                    await self._write([own, *[other for other in self._waiting if other is not own][: TOGETHER - 1]])
        finally:
            self._waiting.remove(own)
        if isinstance(own.outcome, Exception):
            raise own.outcome
        return bool(own.outcome)

    async def _write(self, groups: list[_Stored]) -> None:
        """Where this fails as a whole, each of the others tries for itself."""
        self._unasked -= sum(len(group.payload) for group in groups)
        share = PAYLOAD_SHARE if time.monotonic() >= self._ask_at or self._unasked < 0 else ""
        beside, evals = self._keys.payload(""), list[int]()
        async with self._client.pipeline(transaction=True) as pipe:
            for group in groups:
                keys = [beside, self._keys.payload(group.group), self._keys.groups, self._keys.tasks]
                if group.payload:
                    pipe.set(beside, group.payload)
                arguments = [group.header, group.task_entry, int(bool(group.payload)), share]
                pipe.eval(_STORE_GROUP, len(keys), *keys, *arguments)
                evals.append(len(pipe) - 1)
            replies = await pipe.execute(raise_on_error=False)
        for group, reply in zip(groups, (replies[i] for i in evals), strict=True):
            group.outcome = reply if isinstance(reply, Exception) else bool(reply[0])
            if share and group.payload and not isinstance(reply, Exception):
                self._ask_at = time.monotonic() + ASK_AGAIN_S
                self._unasked = float("inf") if reply[1] < 0 else reply[1] * ASK_AGAIN_SHARE
