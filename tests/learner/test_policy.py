"""A model that cannot be trained is told in a sentence, by one process as by ranks that hold shards."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from redis import Redis
from safetensors.torch import load_file, save_file

from services.learner.assemble import assemble, reader
from services.learner.model.policy import load_policy
from services.learner.ranks.members import Ranks
from services.learner.ranks.sharded import load_sharded
from services.learner.stop import Stop
from services.learner.weights.model_files import read_companions
from services.learner.weights.version_files import write_model
from shared.config import Config
from shared.errors import UserError
from shared.payload import encode_payload
from shared.streams import Keys

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


def with_reference(folder: Path, config: Config, rows: int) -> Config:
    """Its KL term is to a model that embeds so many token ids."""
    small = load_policy(Path(config.model.path), torch.float32, CPU)
    small.resize_token_embeddings(rows)
    write_model(small, read_companions(Path(config.model.path)), folder)
    measured = {
        "learner": config.learner.model_copy(update={"kl": 0.1}),
        "model": config.model.model_copy(update={"kl_reference": str(folder)}),
    }
    return config.model_copy(update=measured)


def test_a_kl_reference_with_fewer_tokens_than_the_policys_tokenizer_is_refused(tmp_path: Path, config: Config) -> None:
    with pytest.raises(UserError, match="has a vocabulary of 32 tokens and the policy one of 61"):
        assemble(with_reference(tmp_path, config, 32), Stop())


def test_a_kl_reference_may_have_less_padding_than_the_policy_and_groups_with_a_token_of_it_are_refused(
    tmp_path: Path, config: Config, make_payload: Any
) -> None:
    config = with_reference(tmp_path, config, 61)
    trainer = assemble(config, Stop()).trainer
    client, keys = Redis.from_url(config.redis.url), Keys(config.run.name)
    for id, last in (("words", 60), ("padding", 63)):
        payload = replace(make_payload(id, 1), run=config.run.name, prompt=np.array([4, last], np.int32))
        payload = replace(payload, tokens=payload.tokens.clip(max=60))
        client.set(keys.payload(id), encode_payload(payload))
    fetched = reader(config, client, trainer).fetch(["words", "padding"], reference=False)
    assert [group.id for group in fetched.groups] == ["words"]
    assert "token id 63, and the model knows 61" in fetched.refused["padding"]
