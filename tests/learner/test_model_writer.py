"""Files of a model, written a parameter at a time, in the model's type or another."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from services.learner.model.policy import load_policy
from services.learner.ranks.sharded import meeting_all
from services.learner.weights import version_files
from services.learner.weights.canary import canary_of
from services.learner.weights.model_writer import as_written, write_plain
from services.learner.weights.publisher import Publisher
from shared.config import build
from shared.versions import Version
from tests import tiny_model

CPU = torch.device("cpu")


def test_the_files_hold_what_transformers_would_write(tmp_path: Path, model: Any) -> None:
    (tmp_path / "ours").mkdir()
    write_plain(model, tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "ours" / name).read_text() == (tmp_path / "theirs" / name).read_text()


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_is_written_in_another_type_and_stays_what_it_was(tmp_path: Path, tied: bool) -> None:
    model = tiny_model.build_model(3, tied)
    write_plain(model, tmp_path, torch.bfloat16)
    assert model.dtype == torch.float32 and model.config.dtype in (None, torch.float32)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    for (name, a), (_, b) in zip(model.named_parameters(), loaded.named_parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b), name


def test_the_canary_of_rounded_files_is_what_a_model_loaded_from_them_computes(
    tmp_path: Path, policy_dir: Path, model: Any
) -> None:
    config = build(
        {
            "run": {"name": "test", "root": str(tmp_path)},
            "model": {"path": str(policy_dir)},
            "weights": {"dtype": "bfloat16"},
        }
    )
    before = [(p.data_ptr(), p.detach().clone()) for p in model.parameters()]
    publisher = Publisher(config, model, {})
    publisher.publish(Version(0, 1))
    assert [p.data_ptr() for p in model.parameters()] == [at for at, _ in before]
    assert all(torch.equal(p, was) for p, (_, was) in zip(model.parameters(), before, strict=True))

    folder = config.weights_dir / publisher.notice.location
    assert all(t.dtype == torch.bfloat16 for t in load_file(folder / "model.safetensors").values())
    tiny_model.write_tokenizer(folder)
    scores = canary_of(load_policy(folder, torch.float32, CPU), publisher.canary)
    exact = canary_of(model, publisher.canary)
    announced = publisher.notice.canary

    def gap(others: Any) -> float:
        pairs = zip(announced, others, strict=True)
        return max(abs(a - b) for ours, theirs in pairs for a, b in zip(ours.logprobs, theirs.logprobs, strict=True))

    assert gap(scores) < 1e-5 < 1e-3 < gap(exact)


@pytest.mark.parametrize("wrong", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_rank_that_cannot_write_a_file_gathers_the_model_all_the_same(
    tmp_path: Path, sharded: Any, wrong: str
) -> None:
    (tmp_path / wrong).mkdir()
    with pytest.raises(OSError, match=wrong), meeting_all(sharded):
        version_files.write_model(sharded, {"tokenizer.json": b"{}"}, tmp_path)
    assert sharded.headrace_gathered == 1, "as often as the ranks that wait for it"


def test_weights_are_put_back_when_a_forward_fails_and_wider_types_round_nothing(model: Any) -> None:
    before = [p.data_ptr() for p in model.parameters()]
    with pytest.raises(IndexError), as_written(model, torch.bfloat16):
        model(input_ids=torch.tensor([[10**6]]))
    assert [p.data_ptr() for p in model.parameters()] == before
    with pytest.raises(RuntimeError), as_written(model, torch.bfloat16):
        model.base_model.layers[0](torch.zeros(1, 2, 3), position_embeddings=None)
    assert [p.data_ptr() for p in model.parameters()] == before
    with as_written(model, torch.float32):
        assert [p.data_ptr() for p in model.parameters()] == before
