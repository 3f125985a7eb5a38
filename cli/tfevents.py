"""Scalars in the form that TensorBoard reads: a file of Event messages, each framed with two checksums.

    length (8 bytes)   masked CRC-32C of it (4)   Event (protobuf)   masked CRC-32C of that (4)
    Event    1: wall time (double)   2: step   3: "brain.Event:2", in the first one alone   5: Summary
    Summary  1: a value, repeated    1: tag   2: number (float)

Written here, since this is all of the format that scalars need, and TensorBoard's own package brings thirty others
into the environment of a run. Source: tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto,
tensorflow/core/lib/io/record_writer.h.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

VERSION = b"brain.Event:2"
MASK = 0xA282EAD8
_DOUBLE, _VARINT, _BYTES, _FLOAT = 1, 0, 2, 5  # protobuf's wire types


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32 with Castagnoli's polynomial (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class EventFile:
    """Appends to `path`, which begins with this."""

    def __init__(self, path: Path, wall_time: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self._write(_field(1, _DOUBLE, struct.pack("<d", wall_time)) + _text(3, VERSION))

    def add(self, step: int, wall_time: float, scalars: Mapping[str, float]) -> None:
        """One event with all scalars of a step (0 or more), and on the disk with it."""
        values = b"".join(
            _text(1, _text(1, tag.encode(errors="replace")) + _field(2, _FLOAT, struct.pack("<f", value)))
            for tag, value in scalars.items()
        )
        event = _field(1, _DOUBLE, struct.pack("<d", wall_time)) + _field(2, _VARINT, _varint(step)) + _text(5, values)
        self._write(event)

    def close(self) -> None:
        """The file is whole at any time; this gives it back."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked(length) + event + _masked(event))
        self._file.flush()


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF)


def _field(number: int, wire: int, data: bytes) -> bytes:
    return _varint(number << 3 | wire) + data


def _text(number: int, data: bytes) -> bytes:
    return _field(number, _BYTES, _varint(len(data)) + data)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
