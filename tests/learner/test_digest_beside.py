"""The digest of what is written, made meanwhile: always that of the files as they lie there in the end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from services.learner.ranks.sharded import trains_shards
from services.learner.weights import digest_beside, version_files
from services.learner.weights.digest_beside import DigestBeside
from services.learner.weights.model_writer import written
from shared import weights
from shared.versions import Version

SHAPES = {"a": ((700, 300), torch.float32), "b": ((), torch.bfloat16), "none": ((0, 3), torch.float32)}


def write_weights(folder: Path, digest: DigestBeside, tensors: int = len(SHAPES)) -> None:
    writing = written(folder / "model.safetensors", SHAPES, digest)
    next(writing)
    for shape, dtype in list(SHAPES.values())[:tensors]:
        writing.send(torch.randn(shape or (1,)).to(dtype))
    writing.close()


def nothing(folder: Path) -> None: ...


def one_more_before(folder: Path) -> None:
    (folder / "added_tokens.json").write_text("{}")


def one_less_before(folder: Path) -> None:
    (folder / "config.json").unlink()


def another_length_before(folder: Path) -> None:
    (folder / "config.json").write_text("{ }")


def the_weights_are_longer(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"x")


CHANGES = [nothing, one_more_before, one_less_before, another_length_before, the_weights_are_longer]


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_is_changed_afterwards_it_is_the_digest_of_the_folder(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("config.json", weights.MANIFEST, "deep/model.bin"):
        (tmp_path / name).write_text("{}")
    digest = DigestBeside()
    write_weights(tmp_path, digest)
    (tmp_path / "tokenizer.json").write_text("[]")
    change(tmp_path)
    assert digest.of(tmp_path) == weights.digest_of(tmp_path)


def test_of_weights_that_were_not_written_to_the_end_too(tmp_path: Path) -> None:
    digest = DigestBeside()
    write_weights(tmp_path, digest, tensors=0)
    assert digest.of(tmp_path) == weights.digest_of(tmp_path)


@pytest.mark.parametrize("held", ["model", "sharded"])
def test_of_a_published_model_all_is_read_but_its_weights(
    tmp_path: Path, held: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = request.getfixturevalue(held)
    assert trains_shards(model) == (held == "sharded")
    read: list[str] = []

    def update_from(hasher: Any, file: Path) -> None:
        read.append(file.name)
        weights.update_from(hasher, file)

    monkeypatch.setattr(digest_beside, "update_from", update_from)
    names = ("added_tokens.json", "chat_template.jinja", "generation_config.json", "merges.txt", "tokenizer.json")
    notice = version_files.publish(tmp_path, Version(0, 1), model, dict.fromkeys(names, b"{}"), [])
    weights.verify(tmp_path / notice.location, notice.digest)
    assert sorted(read) == sorted([*names, "config.json"])
    assert (tmp_path / notice.location / "generation_config.json").read_bytes() == b"{}"
