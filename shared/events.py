"""What a person would want to read in a log: small records on a bounded stream, for the CLI and the inspector.

A record is {"kind", "time", ...}. Kinds: step (one per training step, the line of metrics.jsonl), eval, rollout, swap,
refused, actor, warning, resumed, finished.
"""

import time
from typing import Any

import msgspec

from shared.streams import EVENTS_KEPT, FIELD, Keys

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def emit(pipe: Any, keys: Keys, kind: str, **fields: Any) -> Any:
    """XADD an event through a client or a pipeline (await the result of an async client)."""
    record = {"kind": kind, "time": time.time(), **fields}
    return pipe.xadd(keys.events, {FIELD: _encode(record)}, maxlen=EVENTS_KEPT, approximate=True)


def parse(reply: Any) -> list[tuple[bytes, dict[str, Any]]]:
    """(id, record) pairs of an XREAD or XRANGE reply of the events stream."""
    items = [item for _, items in reply for item in items] if reply and isinstance(reply[0], list) else reply
    return [(id, _decode(fields[FIELD])) for id, fields in items or []]
