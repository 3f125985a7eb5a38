"""Weights on disk: whole or not there, and never silently different."""

import os

import pytest

from shared import weights
from shared.errors import UserError
from shared.versions import Version


def write(content: bytes):
    return lambda directory: (directory / "model.safetensors").write_bytes(content)


def test_a_published_version_verifies_and_a_changed_one_does_not(tmp_path):
    path, digest, size = weights.publish(tmp_path, Version(0, 3), write(b"abc"))
    assert size == 3 and weights.published(tmp_path) == [Version(0, 3)]
    weights.verify(path, digest)
    (path / "model.safetensors").write_bytes(b"abd")
    with pytest.raises(UserError, match="damaged or replaced"):
        weights.verify(path, digest)
    with pytest.raises(UserError, match="are not there"):
        weights.verify(tmp_path / "v0000-00000009", digest)


def test_a_failed_write_leaves_no_version_behind(tmp_path):
    def fail(directory):
        (directory / "model.safetensors").write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        weights.publish(tmp_path, Version(0, 1), fail)
    assert weights.published(tmp_path) == []


def test_publishing_again_replaces_and_deleting_removes(tmp_path):
    weights.publish(tmp_path, Version(1, 2), write(b"old"))
    path, digest, _ = weights.publish(tmp_path, Version(1, 2), write(b"new"))
    weights.verify(path, digest)
    weights.publish(tmp_path, Version(0, 9), write(b"x"))
    (tmp_path / "vendor").mkdir()
    assert weights.published(tmp_path) == [Version(0, 9), Version(1, 2)]
    weights.delete(tmp_path, Version(1, 2))
    weights.delete(tmp_path, Version(1, 2))
    assert weights.published(tmp_path) == [Version(0, 9)]


def test_a_version_is_replaced_where_what_made_way_before_is_not_gone_yet(tmp_path):
    path, _, _ = weights.publish(tmp_path, Version(0, 1), write(b"old"))
    left = tmp_path / f".old-{path.name}.{os.getpid()}"
    left.mkdir()
    (left / ".nfs01").touch()
    _, digest, _ = weights.publish(tmp_path, Version(0, 1), write(b"new"))
    weights.verify(path, digest)


def test_a_version_that_is_replaced_is_deleted_when_the_new_one_is_there(tmp_path, monkeypatch):
    path, _, _ = weights.publish(tmp_path, Version(0, 1), write(b"old"))
    there = []
    delete = weights.shutil.rmtree

    def look(folder, **options):
        if folder.exists():
            there.append((path / "model.safetensors").read_bytes())
        delete(folder, **options)

    monkeypatch.setattr(weights.shutil, "rmtree", look)
    weights.publish(tmp_path, Version(0, 1), write(b"new"))
    assert there == [b"new"]
    assert [folder.name for folder in tmp_path.iterdir()] == [path.name]


def test_a_byte_of_any_piece_changes_the_digest(tmp_path):
    file, size = tmp_path / "a", 9_000_000
    seen = set()
    for place in (0, 1_048_575, 1_048_576, 8_388_608, size - 1):
        file.write_bytes(bytes(place) + b"x" + bytes(size - place - 1))
        seen.add(weights.digest_of(tmp_path))
    assert len(seen) == 5 and {total for _, total in seen} == {size}
