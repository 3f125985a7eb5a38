"""A model that cannot be trained is told in a sentence, by one process as by ranks that hold shards."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from services.learner.assemble import assemble
from services.learner.model.policy import load_policy
from services.learner.ranks.members import Ranks
from services.learner.ranks.sharded import load_sharded
from services.learner.stop import Stop
from services.learner.weights.model_files import read_companions
from services.learner.weights.publish import write_model
from shared.config import Config
from shared.errors import UserError

CPU, WEIGHTS = torch.device("cpu"), "model.safetensors"


def cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])


def setting(name: str, value: object) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {name: value}))

    return write


def no_numbers(folder: Path) -> None:
    tensors = {name: t * torch.nan for name, t in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (cut, r"cannot be loaded \(.*incomplete metadata"),
    (lambda folder: (folder / WEIGHTS).write_bytes(b""), r"cannot be loaded \(.*header too small"),
    (setting("hidden_size", "x"), r"cannot be loaded \(.*hidden_size"),
    (setting("num_attention_heads", 0), r"cannot be loaded \("),
    (no_numbers, "give log-probabilities that are not numbers"),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES)
@pytest.mark.parametrize("shards", [False, True])
def test_damage_is_told_in_a_sentence_that_names_the_folder(
    tmp_path: Path,
    policy_dir: Path,
    damage: Callable[[Path], object],
    sentence: str,
    shards: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(policy_dir, folder)
    damage(folder)
    if shards:
        dist.init_process_group("gloo", f"file://{tmp_path}/met", rank=0, world_size=1)
    try:
        with pytest.raises(UserError, match=f"{folder} {sentence}") as told:
            if shards:
                load_sharded(folder, torch.float32, CPU, Ranks(group=dist.group.WORLD), packed=True)
            else:
                load_policy(folder, torch.float32, CPU)
        assert "\n" not in str(told.value)
        assert "Traceback" not in caplog.text
    finally:
        if shards:
            dist.destroy_process_group()


def test_a_kl_reference_with_fewer_tokens_than_the_policy_is_refused(
    tmp_path: Path, policy_dir: Path, config: Config
) -> None:
    small = load_policy(policy_dir, torch.float32, CPU)
    small.resize_token_embeddings(32)
    write_model(small, read_companions(policy_dir), tmp_path)
    measured = {
        "learner": config.learner.model_copy(update={"kl": 0.1}),
        "model": config.model.model_copy(update={"kl_reference": str(tmp_path)}),
    }
    with pytest.raises(UserError, match="has a vocabulary of 32 tokens and the policy one of 64"):
        assemble(config.model_copy(update=measured), Stop())
