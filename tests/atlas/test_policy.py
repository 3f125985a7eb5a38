"""The committed tokenizer and policy: they read every text of an episode, and load by standard names."""

import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen2ForCausalLM

from examples.atlas import grammar, tokenizer, world
from examples.atlas.rollout import prompt_ids

ATLAS = Path(world.__file__).parent
POLICY = ATLAS / "policy"


@pytest.fixture(scope="module")
def loaded():
    return AutoTokenizer.from_pretrained(POLICY)


def _rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (ATLAS / "data" / name).read_text(encoding="utf-8").splitlines()]


def _joined(text: str) -> str:
    return "".join(text.lower().split())


def test_committed_tokenizer_is_what_the_builder_makes(loaded):
    made = tokenizer.build_tokenizer()
    assert loaded.get_vocab() == made.get_vocab()
    assert loaded.chat_template == made.chat_template
    assert (loaded.eos_token, loaded.pad_token, loaded.unk_token) == ("<|end|>", "<|pad|>", "<|unk|>")


def test_everything_round_trips_without_unknown_words(loaded):
    texts = [r["question"] for name in ("train.jsonl", "heldout.jsonl") for r in _rows(name)]
    for row in _rows("corpus.jsonl"):
        title, body = row["contents"].split("\n", 1)
        texts += [row["contents"], grammar.information([(title.strip('"'), body)] * 3)]
    texts += [grammar.HINT, *grammar.TAGS]
    for text in texts:
        ids = loaded.encode(text, add_special_tokens=False)
        assert loaded.unk_token_id not in ids, text
        assert _joined(loaded.decode(ids)) == _joined(text)


def test_words_of_other_worlds_are_known_too(loaded):
    for body in world.build_world(12345).bodies.values():
        assert loaded.unk_token_id not in loaded.encode(body, add_special_tokens=False)


def test_tags_are_single_visible_tokens(loaded):
    for tag in grammar.TAGS:
        ids = loaded.encode(tag, add_special_tokens=False)
        assert len(ids) == 1
        assert loaded.decode(ids, skip_special_tokens=True) == tag
    text = loaded.decode(
        loaded.encode("<think>a</think><search>Nile Rindok born in</search>"), skip_special_tokens=True
    )
    assert grammar.action(text) == ("search", "Nile Rindok born in")


def test_chat_template_gives_the_short_prompt(loaded):
    longest = 0
    for row in _rows("train.jsonl") + _rows("heldout.jsonl"):
        messages = [{"role": "user", "content": row["question"]}]
        ids = loaded.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
        ids = ids if isinstance(ids, list) else ids["input_ids"]
        assert ids == prompt_ids(loaded, row["question"])
        longest = max(longest, len(ids))
    assert longest <= 32


def test_policy_loads_and_is_small():
    model = AutoModelForCausalLM.from_pretrained(POLICY)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.config.max_position_embeddings == 512
    assert model.config.tie_word_embeddings
    assert {p.dtype.itemsize for p in model.parameters()} == {4}
    assert sum(f.stat().st_size for f in POLICY.iterdir()) < 12e6


def test_generation_config_samples_plainly():
    config = GenerationConfig.from_pretrained(POLICY)
    assert config.eos_token_id == AutoTokenizer.from_pretrained(POLICY).eos_token_id
    assert config.top_k is None and config.top_p is None and config.repetition_penalty is None


@pytest.mark.slow
def test_start_is_between_15_and_45_percent_and_knows_the_grammar():
    from examples.atlas.warm_start import measure

    model = Qwen2ForCausalLM.from_pretrained(POLICY)
    figures = measure(model, AutoTokenizer.from_pretrained(POLICY))
    assert 15 <= figures["greedy"] <= 45
    assert figures["greedy_answered"] >= 97
    assert figures["sampled"] < figures["greedy"]
