"""The turns of a rollout, played by a scripted engine over a real tokenizer."""

import pytest

from services.actor.observation import Document
from services.actor.retrieval import RetrievalFailed
from services.actor.rollout import Budget, Player, Rollout
from services.actor.tags import HINT
from services.actor.text import Codec
from shared.messages import ENV_FAILED, FINISHED, TRUNCATED
from shared.seeds import derive
from tests.actor.scripted_engine import ScriptedEngine

PROMPT = [3, 20, 2, 4]
BUDGET = Budget(max_tokens=200, max_turn_tokens=20, max_turns=2, max_observation_tokens=30)


@pytest.fixture
def codec(model_dir):
    return Codec(model_dir)


async def found(query: str, seed: int) -> list[Document]:
    return [Document("d" + query, "t", "x y z")]


async def play(codec, turns, budget=BUDGET, search=found) -> tuple[Rollout, ScriptedEngine]:
    """`turns`: (text, finish) for each."""
    lines = iter(turns)

    def say(ids, sampling):
        text, finish = next(lines)
        said = codec.encode(text)
        return (said, finish) if len(said) <= sampling.max_tokens else (said[: sampling.max_tokens], "length")

    engine = ScriptedEngine(say)
    rollout = Rollout()
    await Player(engine, codec, budget, search).play(rollout, PROMPT, 1.0, lambda turn: derive(5, 0, turn))
    return rollout, engine


async def test_search_then_answer(codec):
    r, engine = await play(
        codec, [("<think> a </think> <search> b </search>", "stop"), ("<answer> c </answer>", "stop")]
    )
    assert r.status == FINISHED
    assert r.searches == 1
    assert r.documents == [["db"]]
    assert r.sampled_text == "<think> a </think> <search> b </search><answer> c </answer>"
    observed = "<information> Doc 1 ( Title : t ) x y z </information>"
    assert codec.decode(r.ids) == f"<think> a </think> <search> b </search> {observed} <answer> c </answer>"
    trained = [i for i, m in zip(r.ids, r.mask, strict=True) if m]
    assert codec.decode(trained) == "<think> a </think> <search> b </search> <answer> c </answer>"
    assert len(r.logprobs) == len(trained) == sum(n for n, _ in r.version_runs)
    assert r.turns == [(0, 6), (len(r.ids) - 3, len(r.ids))]
    assert engine.asked[1][0] == PROMPT + r.ids[: r.turns[1][0]]


async def test_ids_are_carried_verbatim_even_where_encoding_their_text_would_differ(codec):
    odd = [7, 1, 1, 20, 9]  # unknown tokens decode to text that encodes otherwise
    engine = ScriptedEngine(
        lambda ids, s: (odd, "stop") if len(ids) == 4 else (codec.encode("<answer> a </answer>"), "stop")
    )
    rollout = Rollout()
    await Player(engine, codec, BUDGET, found).play(rollout, PROMPT, 1.0, lambda turn: turn)
    assert rollout.ids[:5] == odd


async def test_every_turn_has_a_seed_of_its_own(codec):
    _, engine = await play(codec, [("<search> b </search>", "stop")] * 3)
    assert len({s.seed for _, s in engine.asked}) == 3


async def test_an_invalid_turn_gets_the_hint_and_costs_a_turn(codec):
    r, engine = await play(codec, [("a b", "eos"), ("c </search>", "stop"), ("<answer> d </answer>", "stop")])
    assert r.status == FINISHED
    assert r.searches == 0
    assert len(engine.asked) == BUDGET.max_turns + 1
    hint = codec.encode(HINT)
    assert r.ids[2 : 2 + len(hint)] == hint
    assert not any(r.mask[2 : 2 + len(hint)])


async def test_a_search_in_the_last_generation_is_not_made(codec):
    asked = []

    async def search(query, seed):
        asked.append(query)
        return await found(query, seed)

    r, _ = await play(codec, [(f"<search> {c} </search>", "stop") for c in "abc"], search=search)
    assert r.status == TRUNCATED
    assert asked == ["a", "b"]
    assert r.mask[-1]


async def test_running_out_of_a_turn_ends_the_rollout_as_truncated(codec):
    r, engine = await play(codec, [("a " * 20, "length")])
    assert r.status == TRUNCATED
    assert engine.asked[0][1].max_tokens == 20


async def test_a_turn_is_clipped_to_what_is_left_of_the_rollout(codec):
    budget = Budget(max_tokens=32, max_turn_tokens=20, max_turns=2, max_observation_tokens=30)
    r, engine = await play(codec, [("<search> b </search>", "stop"), ("<answer> c </answer>", "stop")], budget)
    assert engine.asked[1][1].max_tokens == 32 - len(engine.asked[1][0])
    assert len(PROMPT) + len(r.ids) <= 32


@pytest.mark.parametrize("max_tokens", range(7, 40))
async def test_no_budget_is_ever_exceeded(codec, max_tokens):
    budget = Budget(max_tokens=max_tokens, max_turn_tokens=20, max_turns=2, max_observation_tokens=12)
    r, _ = await play(codec, [("<search> b </search>", "stop")] * 3, budget)
    assert r.status == TRUNCATED
    assert len(PROMPT) + len(r.ids) <= max_tokens
    assert len(r.ids) == len(r.mask)


async def test_a_retriever_that_fails_ends_the_rollout_as_env_failed(codec):
    async def search(query, seed):
        raise RetrievalFailed("down")

    r, _ = await play(codec, [("<search> b </search>", "stop")], search=search)
    assert r.status == ENV_FAILED
    assert not r.scored


@pytest.mark.parametrize(("finish", "status"), [("eos", FINISHED), ("length", TRUNCATED)])
async def test_a_single_turn_task_ends_with_eos_or_its_budget(codec, finish, status):
    r, engine = await play(codec, [("a b", finish)], search=None)
    assert r.status == status
    assert engine.asked[0][1].stop == ()
