"""What a person would want to read in a log: small records on a bounded stream, for the CLI and the inspector.

A record is {"kind", "time", ...}. Kinds: step (one per training step, the line of metrics.jsonl), eval, rollout, swap,
refused, actor, warning, resumed, finished. Whoever reads them may rely on the fields below; what is no such record is
read as a warning that says so.
"""

import time
from typing import Annotated, Any

import msgspec

from shared.messages import UNREADABLE, Malformed
from shared.streams import EVENTS_KEPT, FIELD, Keys

LATEST = 2.0**36  # unix seconds: beyond, a clock cannot show them

Count = Annotated[int, msgspec.Meta(ge=-1, lt=2**62)]
Number = Annotated[int, msgspec.Meta(ge=-(2**62), lt=2**62)] | Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
Figure = Number | None  # not finite: null in JSON
Figures = dict[str, Figure]


class Said(msgspec.Struct, tag_field="kind", kw_only=True):
    """Any record."""

    time: Annotated[float, msgspec.Meta(ge=0, le=LATEST)]
    service: str = ""
    actor: str = ""
    text: str = ""
    reason: str = ""


class _Step(Said, tag="step", kw_only=True):
    """All other fields are figures."""

    step: Count
    steps: Count | None = None
    version: Any = None
    learner: Figures = {}
    ages: list[Number] = []
    reuse: Figures | None = None
    reward_parts: Figures = {}
    what_if_tau: Figures = {}
    what_if_kl: Figures = {}
    counterfactual: dict[str, Figure | Figures] = {}


class _Eval(Said, tag="eval", kw_only=True):
    """All other fields are figures."""

    round: Count
    per_source: Figures = {}
    version_min: Any = None
    version_max: Any = None


class _Rollout(Said, tag="rollout", kw_only=True):
    round: Count = -1
    reward: Figure = None
    task_kind: str = ""


class _Swap(Said, tag="swap", kw_only=True):
    seconds: Number = 0.0
    stall_s: Number = 0.0


class _Finished(Said, tag="finished", kw_only=True):
    step: Count
    elapsed_s: Figure = None


class _Refused(Said, tag="refused", kw_only=True):
    pass


class _Actor(Said, tag="actor", kw_only=True):
    pass


class _Warning(Said, tag="warning", kw_only=True):
    """Of a damaged checkpoint with the trained steps that are lost: from one step on, to below another."""

    lost_from: Count = 0
    lost_to: Count = 0


class _Resumed(Said, tag="resumed", kw_only=True):
    pass


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_Record = _Step | _Eval | _Rollout | _Swap | _Finished | _Refused | _Actor | _Warning | _Resumed


def emit(pipe: Any, keys: Keys, kind: str, /, **fields: Any) -> Any:
    """XADD an event through a client or a pipeline (await the result of an async client)."""
    record = {"kind": kind, "time": time.time(), **fields}
    return pipe.xadd(keys.events, {FIELD: _encode(record)}, maxlen=EVENTS_KEPT, approximate=True)


def parse(reply: Any) -> list[tuple[bytes, dict[str, Any]]]:
    """(id, record) pairs of an XREAD or XRANGE reply of the events stream."""
    items = [item for _, items in reply for item in items] if reply and isinstance(reply[0], list) else reply
    return [(id, _read(id, fields.get(FIELD, b""))) for id, fields in items or []]


def check_step(fields: dict[str, Any]) -> None:
    """Raise Malformed where a step with these fields would not be read."""
    try:
        data = _encode({"kind": "step", "time": 0.0, "step": 0} | fields)
        if not isinstance(as_event(_decode(data)), _Step):
            raise Malformed("figures that are not a step's")
    except (TypeError, *UNREADABLE) as error:
        raise Malformed(str(error)) from None


def as_event(record: dict[str, Any]) -> Said:
    """What readers rely on of a record. Raises one of UNREADABLE where it is none, whatever else it is."""
    known = msgspec.convert(record, _Record)
    if isinstance(known, _Step | _Eval):
        named = ("kind", *known.__struct_fields__)
        msgspec.convert({name: value for name, value in record.items() if name not in named}, Figures)
    return known


def _read(id: bytes, data: bytes) -> dict[str, Any]:
    try:
        as_event(record := _decode(data))
        return record
    except UNREADABLE as error:
        text = f"an event cannot be read, and is left out: {plain(str(error))}."
        return {"kind": "warning", "time": said_at(id), "service": "somebody", "text": text}


def said_at(id: bytes) -> float:
    """When an entry of this id was written, as the server has it: unix seconds. Ids may be made up."""
    return min(int(id.partition(b"-")[0]) / 1000, LATEST)


def plain(text: str, most: int = 200) -> str:
    """What may quote a stranger: its beginning, without what would move a terminal's cursor."""
    return "".join(filter(str.isprintable, text[:most]))
