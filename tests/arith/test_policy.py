"""Arith: its problems and traces, its committed tokenizer and policy, and Qwen's prompt as the actor makes it."""

import json
import os
import random
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen2ForCausalLM

from examples.arith import problems, tokenizer, traces
from examples.arith.warm_start import prompt
from services.actor.text import Codec
from shared.prompts import QUESTION
from shared.rewards import score

ARITH = Path(problems.__file__).parent
POLICY = ARITH / "policy"
ASKED = """<|im_start|>system
Please reason step by step, and put your final answer within \\boxed{}.<|im_end|>
<|im_start|>user
What is 358 + 467?<|im_end|>
<|im_start|>assistant
"""


@pytest.fixture(scope="module")
def loaded():
    return AutoTokenizer.from_pretrained(POLICY)


def test_committed_data_is_what_the_generator_writes_and_no_problem_is_in_both():
    made = problems.render()
    for name, content in made.items():
        assert (ARITH / "data" / name).read_text(encoding="utf-8") == content
    train, held_out = (
        {json.loads(line)["question"] for line in made[name].splitlines()} for name in ("train.jsonl", "heldout.jsonl")
    )
    assert (len(train), len(held_out), len(train & held_out)) == (problems.TRAIN, problems.HELD_OUT, 0)
    assert problems.render(1) != made


def test_right_traces_are_right_and_careless_ones_often_are_not():
    rng = random.Random(5)
    drawn = [problems.draw(rng) for _ in range(1000)]

    def right(habits: traces.Habits) -> list[bool]:
        return [score("math", traces.solution(p, habits, rng), p.answer).correct for p in drawn]

    assert all(right(traces.CLEAN))
    assert 0.3 < sum(right(traces.CARELESS)) / len(drawn) < 0.5
    assert sum(right(traces.Habits(unboxed=1.0))) == 0


def test_a_bare_question_gets_qwens_prompt_and_the_warm_start_saw_the_same():
    codec = Codec(POLICY)
    ids = codec.prompt([{"role": QUESTION, "content": "What is 358 + 467?"}], tokenizer.PROMPT)
    assert codec.decode(ids) == ASKED == prompt(codec.tokenizer, "What is 358 + 467?")
    ready = [{"role": "user", "content": "What is 358 + 467?"}]
    assert "system" not in codec.decode(codec.prompt(ready, tokenizer.PROMPT)), "a chat of the data set stays as it is"


def test_committed_tokenizer_is_what_the_builder_makes_and_reads_everything(loaded):
    made = tokenizer.build_tokenizer()
    assert loaded.get_vocab() == made.get_vocab()
    assert loaded.chat_template == made.chat_template
    rng = random.Random(1)
    for _ in range(100):
        text = traces.solution(problems.draw(rng), traces.CARELESS, rng)
        ids = loaded.encode(text, add_special_tokens=False)
        assert loaded.decode(ids) == text
        assert len(ids) <= 40


def test_policy_loads_is_small_and_samples_plainly(loaded):
    model = AutoModelForCausalLM.from_pretrained(POLICY)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.config.tie_word_embeddings
    assert sum(f.stat().st_size for f in POLICY.iterdir()) < 3e6
    config = GenerationConfig.from_pretrained(POLICY)
    assert config.eos_token_id == loaded.eos_token_id
    assert config.top_k is None and config.top_p is None and config.repetition_penalty is None


@pytest.mark.slow
def test_start_knows_the_form_and_is_careless(loaded):
    from examples.arith.warm_start import measure

    figures = measure(Qwen2ForCausalLM.from_pretrained(POLICY), loaded)
    assert 35 <= figures["greedy"] <= 65
    assert 20 <= figures["sampled"] <= 45
    assert figures["sampled_boxed"] >= 80
