"""Everything a run says to its Redis, by MONITOR: no message is missed, whoever reads and deletes it."""

import ast
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import redis

from cli.run.local_redis import stored_url
from shared.messages import Batch, GroupHeader, Scan, Task, Work, decode
from shared.payload import Payload, decode_payload
from shared.streams import Keys

ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"')
SENDER = re.compile(rb"\[\d+ (\S+)\]")


@dataclass
class Traffic:
    """What was seen. Payload keys are counted by group id."""

    payloads: dict[str, Payload] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    written: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    other: list[bytes] = field(default_factory=list)  # commands that touched a payload in any further way
    headers: dict[str, GroupHeader] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    payload_readers: set[bytes] = field(default_factory=set)  # addresses
    task_writers: set[bytes] = field(default_factory=set)

    def uses(self) -> Counter[str]:
        """How often each group was asked for: trained fresh, scanned, replayed."""
        asked = [id for scan in self.scans for id in scan.ids]
        asked += [id for batch in self.batches for id in [*batch.replay, *batch.fresh]]
        return Counter(asked)


class Tap:
    """Follows one run's own server from before its services connect until it is gone."""

    def __init__(self, run_dir: Path) -> None:
        self.seen = Traffic()
        self.error: Exception | None = None
        self._run_dir, self._keys = run_dir, Keys(run_dir.name)
        self._payload = self._keys.payload("").encode()
        self._beside: dict[bytes, bytes] = {}  # what was set and has not got its name yet
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def wait_until_listening(self) -> None:
        """From here on nothing is missed."""
        assert self._listening.wait(60), f"no Redis in {self._run_dir}"

    def close(self) -> Traffic:
        """After the run: what was seen."""
        self._thread.join(20)
        assert not self._thread.is_alive(), "the run's Redis is still there"
        if self.error is not None:
            raise self.error
        return self.seen

    def _follow(self) -> None:
        client = self._connect()  # closes its connections when it is collected, so it is held here
        connection = client.connection_pool.get_connection()
        connection.send_command("MONITOR")
        connection.read_response()
        self._listening.set()
        while True:
            try:
                self._take(connection.read_response(disable_decoding=True))
            except (redis.ConnectionError, OSError):
                connection.disconnect()
                client.close()
                return  # the server has ended with the run
            except Exception as error:  # noqa: BLE001  told by the test's own thread
                self.error = error
                return

    def _connect(self) -> redis.Redis:
        deadline = time.monotonic() + 60
        while True:
            try:
                client = redis.Redis.from_url(stored_url(self._run_dir) or "", socket_timeout=None)
                client.ping()
                return client
            except (redis.RedisError, ValueError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _take(self, line: bytes) -> None:
        quoted = ARGUMENT.findall(line)
        command, sender = quoted[0].upper(), SENDER.search(line)
        assert sender is not None
        if command in (b"EVALSHA", b"EVAL"):
            return  # what the script does is reported on its own
        if command == b"XADD":
            self._entry(_bytes(quoted[1]).decode(), quoted, sender[1])
        elif self._payload in line:
            self._payload_command(command, [_bytes(q) for q in quoted[1:]], sender[1])

    def _payload_command(self, command: bytes, arguments: list[bytes], sender: bytes) -> None:
        seen = self.seen
        if command == b"SET":
            self._beside[arguments[0]] = arguments[1]
        elif command == b"RENAMENX":
            data, id = self._beside.pop(arguments[0]), arguments[1].removeprefix(self._payload).decode()
            seen.payloads[id] = decode_payload(data, self._run_dir.name)
            seen.sizes[id] = len(data)
            seen.written[id] += 1
        elif command in (b"GET", b"MGET"):
            seen.read.update(key.removeprefix(self._payload).decode() for key in arguments)
            seen.payload_readers.add(sender)
        elif command not in (b"UNLINK", b"DEL"):
            seen.other.append(command)

    def _entry(self, stream: str, quoted: list[bytes], sender: bytes) -> None:
        seen, keys = self.seen, self._keys
        if stream not in (keys.tasks, keys.groups, keys.work):
            return
        data = _bytes(quoted[-1])
        if stream == keys.tasks:
            seen.tasks.append(decode(data, Task))
            seen.task_writers.add(sender)
        elif stream == keys.groups:
            header = decode(data, GroupHeader)
            seen.headers[header.id] = header
        else:
            work = decode(data, Work)
            if isinstance(work, Scan):
                seen.scans.append(work)
            elif isinstance(work, Batch):
                seen.batches.append(work)


def _bytes(quoted: bytes) -> bytes:
    """Redis escapes as Python does."""
    return ast.literal_eval('b"' + quoted.decode("ascii") + '"')
