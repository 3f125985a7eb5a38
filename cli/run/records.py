"""What a line of a run's record files may be: an event of the stream, or a note of the command's own.

Whoever reads them relies on the fields; a line that lacks one, or holds another's, is left out as one that a crash cut
off is.
"""

from typing import Any, get_args

import msgspec

from shared.events import Count, Number, Said, as_event
from shared.messages import UNREADABLE

STREAM_ID = "stream_id"


class _Session(Said, tag="session", kw_only=True):
    """A command has begun to run the run, or to watch it."""

    steps: Count = 0
    pid: Count = 0
    env_latency: str = ""


class _Stopped(Said, tag="stopped", kw_only=True):
    seconds: Number


class _Restart(Said, tag="restart", kw_only=True):
    pass


class _Ready(Said, tag="ready", kw_only=True):
    seconds: Number


class _Memory(Said, tag="memory", kw_only=True):
    peak_bytes: Count
    measure: str = ""


class _Fault(Said, tag="fault", kw_only=True):
    """Chaos did something."""

    fault: str
    target: str
    seconds: Number
    note: str = ""


_OWN = _Session | _Stopped | _Restart | _Ready | _Memory | _Fault
_KINDS = tuple(note.__struct_config__.tag for note in get_args(_OWN))


def is_record(line: Any) -> bool:
    """Whether a decoded line is one of these."""
    try:
        if isinstance(line, dict) and line.get("kind") in _KINDS:
            msgspec.convert(line, _OWN)
        else:
            as_event({key: value for key, value in line.items() if key != STREAM_ID})
    except (AttributeError, *UNREADABLE):
        return False
    return True
