"""Model folders, checkpoints, published weights and indexes that carry code: refused in a sentence, never run."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.actor.engines.engine import CanaryRefused
from services.actor.engines.torch_model import TorchModel
from services.actor.engines.vllm_setup import engine_arguments
from services.actor.text import Codec
from services.env_search.backend import IndexSpec
from services.env_search.index import build_index, open_index
from services.learner.model.policy import load_policy
from services.learner.weights import checkpoint
from shared.checkpoints import STATE
from shared.config import build
from shared.errors import UserError
from shared.model_files import find_model
from shared.weights import MANIFEST, digest_of
from tests import tiny_model

CPU = torch.device("cpu")


class Malice:
    """Writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.mark, "ran")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that malice would write."""
    return tmp_path / "mark"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose weights are a pickle that runs code."""
    made = tiny_model.write_model(tmp_path / "model", seed=0)
    for file in made.glob("*.safetensors*"):
        file.unlink()
    (made / "pytorch_model.bin").write_bytes(pickle.dumps(Malice(tmp_path / "mark")))
    return made


def test_the_pickle_of_these_tests_does_run_where_it_is_unpickled(folder: Path, mark: Path):
    pickle.loads((folder / "pytorch_model.bin").read_bytes())
    assert mark.read_text() == "ran"


LOADERS: dict[str, Callable[[Path], Any]] = {
    "whoever starts": lambda folder: find_model(str(folder)),
    "the learner": lambda folder: load_policy(folder, torch.float32, CPU),
    "the torch engine": lambda folder: TorchModel(folder, "cpu", torch.float32),
}


@pytest.mark.parametrize("loader", LOADERS)
def test_weights_that_are_a_pickle_are_refused(folder: Path, mark: Path, loader: str):
    with pytest.raises(UserError) as refused:
        LOADERS[loader](folder)
    assert str(folder) in str(refused.value) and not mark.exists()


@pytest.mark.parametrize("loader", ["the learner", "the torch engine"])
def test_a_pickle_beside_a_file_that_is_called_safetensors_is_refused(folder: Path, mark: Path, loader: str):
    (folder / "notes.safetensors").write_bytes(b"")  # what makes a folder look right at first
    with pytest.raises(UserError) as refused:
        LOADERS[loader](folder)
    assert str(folder) in str(refused.value) and not mark.exists()


def test_published_weights_that_are_a_pickle_are_refused(folder: Path, mark: Path, tmp_path: Path):
    model = TorchModel(tiny_model.write_model(tmp_path / "loaded", seed=0), "cpu", torch.float32)
    with pytest.raises(CanaryRefused, match="no safetensors"):
        model.read(folder, digest_of(folder)[0])
    assert not mark.exists()


def test_vllm_is_told_to_read_safetensors_and_to_run_no_code(tmp_path: Path):
    model = tiny_model.write_model(tmp_path / "model", seed=0)
    arguments = engine_arguments(build({"model": {"path": str(model)}}), model, on_cpu=True)
    assert (arguments["load_format"], arguments["trust_remote_code"]) == ("safetensors", False)


@pytest.mark.parametrize("loader", ["the learner", "the torch engine"])
def test_python_files_of_a_model_are_not_run(tmp_path: Path, mark: Path, loader: str):
    model = tiny_model.write_model(tmp_path / "model", seed=0)
    (model / "modeling_evil.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).write_text('ran')\n")
    settings = json.loads((model / "config.json").read_text())
    settings |= {
        "model_type": "evil",
        "auto_map": {n: f"modeling_evil.{n}" for n in ("AutoConfig", "AutoModelForCausalLM")},
    }
    (model / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError) as refused:
        LOADERS[loader](model)
    assert str(model) in str(refused.value) and not mark.exists()


def test_python_files_of_a_tokenizer_are_not_run(tmp_path: Path, mark: Path):
    model = tiny_model.write_model(tmp_path / "model", seed=0)
    (model / "tok.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).write_text('ran')\n")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["tok.Evil", "tok.Evil"]}}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    try:
        Codec(model)
    except UserError as error:
        assert str(model) in str(error)
    assert not mark.exists()


def test_a_checkpoint_whose_state_carries_code_stops_the_resume(tmp_path: Path, mark: Path):
    root = tmp_path / "checkpoints"
    saved = checkpoint.save(root, 3, lambda d: tiny_model.write_model(d, 0) and None, {"step": 3})
    assert checkpoint.newest(root) is not None
    torch.save({"step": 3, "optimiser": Malice(mark)}, saved / STATE)
    digest, size = digest_of(saved)  # whoever can write the state can write its digest
    (saved / MANIFEST).write_text(json.dumps({"step": 3, "digest": digest, "size": size}))
    with pytest.raises(UserError, match="more than tensors and plain values"):
        checkpoint.newest(root)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["offsets.npy", "scores.npy", "documents.npy", "bounds.npy"])
def test_an_index_that_carries_objects_is_refused(tmp_path: Path, mark: Path, name: str):
    corpus, index = tmp_path / "corpus.jsonl", tmp_path / "index"
    corpus.write_text('{"id": "0", "contents": "\\"Mill\\"\\nwater"}\n')
    build_index(corpus, index, IndexSpec())
    (file,) = index.rglob(name)
    np.save(file, np.array([Malice(mark)], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="damaged"):
        open_index(corpus, index, IndexSpec())
    assert not mark.exists()


def test_a_folder_without_weights_is_no_model_to_evaluate(folder: Path):
    shutil.rmtree(folder)
    with pytest.raises(UserError):
        find_model(str(folder))
