"""Differences and tables of contents: exact, and refused where they cannot be right."""

import numpy as np
import pytest

from shared.errors import UserError
from shared.transports import chunks, delta
from shared.transports.chunks import Base, Contents, File
from shared.versions import Version


def noise(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


def moved(base: bytes, share: float, seed: int) -> bytes:
    """The same with a share of its bytes changed."""
    rng, data = np.random.default_rng(seed), np.frombuffer(base, np.uint8).copy()
    at = rng.random(len(data)) < share
    data[at] ^= rng.integers(1, 256, int(at.sum()), np.uint8)
    return data.tobytes()


@pytest.mark.parametrize("size", [1, 3, 4, 7, 4096, 100_003])
@pytest.mark.parametrize("share", [0.0, 0.02])
def test_a_difference_gives_every_bit_back(size, share):
    base = noise(size, 1)
    new = moved(base, share, 2)
    assert (found := delta.compress(new, base)) is not None or size < 4096
    assert found is None or delta.expand(found, base) == new


def test_few_changes_make_a_small_difference_and_many_none():
    base = noise(2**16, 1)
    few = delta.compress(moved(base, 0.01, 2), base)
    assert few is not None and len(few) < 0.1 * len(base)
    assert delta.compress(moved(base, 1.0, 2), base) is None
    assert delta.compress(base + b"x", base) is None
    assert delta.compress(base, base) == b""


def test_what_is_no_difference_to_this_base_is_refused():
    base = noise(4096, 1)
    found = delta.compress(moved(base, 0.01, 2), base)
    assert found is not None
    for data, before in ((found, base + b"x"), (b"no difference", base), (found[:-3], base)):
        with pytest.raises(ValueError):
            delta.expand(data, before)
    assert delta.expand(found, noise(4096, 9)) != moved(base, 0.01, 2)


def test_contents_come_back_as_they_were_and_say_where_each_chunk_lies(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 100)
    files = [File("a", 250, [b"1", b"2", b"3"]), File("empty", 0, []), File("in/b", 100, [b"4"])]
    contents = Contents("ab12", files, Base(Version(0, 3), "cd34"))
    assert chunks.decode(chunks.encode(contents)) == contents
    assert [(p.number, p.file, p.start, p.size, p.digest) for p in chunks.places(contents)] == [
        (0, "a", 0, 100, b"1"),
        (1, "a", 100, 100, b"2"),
        (2, "a", 200, 50, b"3"),
        (3, "in/b", 0, 100, b"4"),
    ]


@pytest.mark.parametrize(
    "file", [File("/etc/x", 1, [b""]), File("../x", 1, [b""]), File("", 1, [b""]), File("a", 9, [])]
)
def test_contents_that_name_places_elsewhere_or_cannot_be_true_are_refused(file):
    with pytest.raises(UserError, match="cannot be in one"):
        list(chunks.places(Contents("ab12", [file])))


def test_contents_that_are_something_else_are_refused():
    with pytest.raises(UserError, match="cannot be read"):
        chunks.decode(b"\x93\x01\x02\x03")
