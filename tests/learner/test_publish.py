"""Published versions: files that load, canaries that hold for them, old ones that go when nobody reads them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
import torch
from transformers import AutoModelForCausalLM

from services.learner.step import train_step
from services.learner.weights import version_files
from services.learner.weights.canary import canary_of, sampled_sequences, stored_sequences
from services.learner.weights.model_files import read_companions
from services.learner.weights.publisher import TRIES, Publisher
from shared import weights
from shared.config import Config
from shared.streams import Keys
from shared.versions import Version

KEYS = Keys("test")


def _fill(folder: Path) -> None:
    (folder / "x").write_text("x")


def test_what_is_published_is_what_was_trained_ties_included(
    tmp_path: Path, policy_dir: Path, model: Any, make_group: Any, make_trainer: Any
) -> None:
    train_step(make_trainer(model, lr=1e-2), 0, [], [make_group("g", 1)])
    notice = version_files.publish(tmp_path, Version(0, 1), model, read_companions(policy_dir), [])
    weights.verify(tmp_path / notice.location, notice.digest)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / notice.location, dtype=torch.float32)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    for (name, a), (_, b) in zip(model.named_parameters(), loaded.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    for file in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / notice.location / file).is_file()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_canary_holds_for_the_published_files_and_for_no_others(
    tmp_path: Path, policy_dir: Path, model: Any, make_group: Any, dtype: torch.dtype
) -> None:
    model = model.to(dtype)
    groups = [make_group("a", 1), make_group("b", 2)]
    sequences = stored_sequences(groups, 2, 12) + sampled_sequences(model, 2, 64)
    canary = canary_of(model, sequences)
    notice = version_files.publish(tmp_path, Version(0, 3), model, read_companions(policy_dir), canary)

    def worst(other: Any) -> float:
        gaps = []
        for c in notice.canary:
            logits = other(torch.tensor([c.tokens])).logits[0].float()
            scores = torch.log_softmax(logits, -1)[range(c.start - 1, len(c.tokens) - 1), c.tokens[c.start :]]
            gaps.append(np.abs(scores.detach().numpy() - c.logprobs).max())
        return float(max(gaps))

    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / notice.location)
    assert loaded.dtype == dtype
    assert worst(loaded) < (1e-5 if dtype == torch.float32 else 0.1)
    with torch.no_grad():
        loaded.get_output_embeddings().weight.mul_(1.2)
    assert worst(loaded) > 0.25


def test_stored_sequences_are_the_ends_of_the_newest_groups(make_group: Any) -> None:
    groups = [make_group("a", 1), make_group("b", 2)]
    sequences = stored_sequences(groups, 2, 5)
    assert sequences == [groups[1].canary_tokens[-5:].tolist(), groups[0].canary_tokens[-5:].tolist()]
    assert stored_sequences(groups, 1, 10**6) == [groups[1].canary_tokens.tolist()]
    assert stored_sequences(groups, 0, 5) == []
    assert stored_sequences([], 2, 5) == []


def test_sampled_sequences_are_the_same_every_time(model: Any) -> None:
    first = sampled_sequences(model, 2, 64)
    assert first == sampled_sequences(model, 2, 64)
    assert [len(s) for s in first] == [32, 32]
    assert sampled_sequences(model, 0, 64) == []


def test_a_version_goes_only_when_it_is_old_and_no_live_actor_reports_it(tmp_path: Path, redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    for number in range(5):
        weights.publish(tmp_path, Version(0, number), lambda folder: _fill(folder))
    client.sadd(KEYS.actors, "slow", "dead", "loading")
    client.set(KEYS.actor("slow"), json.dumps({"id": "slow", "version": [0, 1]}))
    client.set(KEYS.actor("loading"), json.dumps({"id": "loading", "version": None, "loading": [0, 2]}))
    in_use = version_files.versions_in_use(client, KEYS)
    assert in_use == {Version(0, 1), Version(0, 2)}
    version_files.delete_unused(tmp_path, in_use)
    assert weights.published(tmp_path) == [Version(0, 1), Version(0, 2), Version(0, 3), Version(0, 4)]
    client.set(KEYS.actor("loading"), json.dumps({"id": "loading", "version": [0, 4], "loading": None}))
    version_files.delete_unused(tmp_path, version_files.versions_in_use(client, KEYS))
    assert weights.published(tmp_path) == [Version(0, 1), Version(0, 3), Version(0, 4)]
    assert version_files.versions_in_use(client, Keys("no-actors")) == set()


def test_an_old_version_that_cannot_be_deleted_stays_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):
        weights.publish(tmp_path, Version(0, number), lambda folder: _fill(folder))
    (tmp_path / ".deleted-v0000-00000000" / "held").mkdir(parents=True)
    version_files.delete_unused(tmp_path, set())
    assert weights.published(tmp_path) == [Version(0, 0), Version(0, 2), Version(0, 3)]
    assert "an old version is not deleted" in caplog.text


def test_each_try_after_a_refusal_has_another_canary_however_few_groups_were_trained(
    config: Config, model: Any, make_group: Any
) -> None:
    publisher, version = Publisher(config, model, {}), Version(0, 1)
    groups = [make_group("a", 1), make_group("b", 2)]
    publisher.trained_on(groups)
    publisher.publish(version)
    announced = [publisher.canary]
    assert announced[0] == stored_sequences(groups, 2, config.weights.canary_tokens)
    while publisher.try_again({version}):
        announced.append(publisher.canary)
    sequences = [tuple(sequence) for canary in announced for sequence in canary]
    assert len(announced) == 1 + TRIES
    assert len(set(sequences)) == len(sequences) == (1 + TRIES) * config.weights.canary_sequences


def test_the_version_just_announced_stays_whatever_an_earlier_life_has_left(config: Config, model: Any) -> None:
    for number in (7, 8):
        weights.publish(config.weights_dir, Version(0, number), lambda folder: _fill(folder))
    publisher = Publisher(config, model, {})
    publisher.publish(Version(0, 1))
    publisher.delete_unused(set())
    assert weights.published(config.weights_dir) == [Version(0, 1), Version(0, 7), Version(0, 8)]


def test_what_a_killed_learner_left_half_written_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".v0000-00000003.77").mkdir()
    (tmp_path / ".old-v0000-00000002.77").mkdir()
    weights.publish(tmp_path, Version(0, 1), lambda folder: _fill(folder))
    version_files.clear_unfinished(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["v0000-00000001"]
