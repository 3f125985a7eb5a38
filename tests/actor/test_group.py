"""A task becomes a header and a payload: what is masked, what fails, what a deadline leaves."""

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest

from services.actor import group as groups
from services.actor.assemble import Origin, assemble
from services.actor.engines.engine import EngineFailed, Generation, Sampling
from services.actor.group import check_task, is_of_one_learner, roll_out
from services.actor.heartbeat import watch_engine
from services.actor.metered import MeteredEngine
from services.actor.observation import Document
from services.actor.retrieval import RetrievalClient
from services.actor.rollout import Budget, Player, Rollout
from services.actor.scoring import PARTS, part_sums
from services.actor.text import Codec, instruction
from services.actor.troubles import Troubles
from shared.errors import UserError
from shared.messages import ENV_FAILED, FINISHED, TIMED_OUT, Task, WeightsNotice, decode, encode
from shared.payload import decode_payload, encode_payload
from shared.prompts import QUESTION
from shared.rewards import Scored
from shared.versions import Version
from tests.actor.scripted_engine import ScriptedEngine
from tests.actor.test_retrieval import Server, right

V0, V1 = Version(0, 0), Version(0, 1)
ORIGIN = Origin(run="test", actor="a", fingerprints={"index": "i"}, version=V1, seconds=1.0)


def make_task(**changes) -> Task:
    fields: dict = {
        "id": "t1",
        "kind": "train",
        "number": 1,
        "attempt": 0,
        "seed": 1,
        "group_size": 3,
        "temperature": 1.0,
        "min_version": 0,
        "data_source": "x",
        "messages": [{"role": QUESTION, "content": "a"}],
        "ground_truth": ["b"],
    }
    return Task(**(fields | changes))


def rollout(status: str = FINISHED, logprob: float = -0.5, version: Version = V0) -> Rollout:
    return Rollout(
        ids=[20, 21, 30, 22],
        mask=[True, True, False, True],
        logprobs=[logprob] * 3,
        version_runs=[(2, version), (1, V1)],
        turns=[(0, 2), (3, 4)],
        documents=[["d"]],
        searches=1,
        status=status,
    )


@pytest.mark.parametrize(
    ("kind", "min_version", "first", "max_lag", "kept"),
    [
        ("train", 1, V1, 0, True),
        ("train", 1, V0, 3, False),  # sampled below what was asked for: a learner went back to its checkpoint
        ("train", 0, V0, 3, True),  # an ordinary swap
        ("train", 0, V0, 0, False),  # at lag 0 there are none
        ("train", 1, Version(1, 1), 0, False),  # the same number of another life
        ("eval", 0, V0, 0, True),  # training does not wait for an evaluation
        ("eval", 1, V0, 0, False),
    ],
)
def test_a_group_is_of_weights_its_task_allows(
    kind: str, min_version: int, first: Version, max_lag: int, kept: bool
) -> None:
    task = make_task(kind=kind, min_version=min_version)
    rollouts = [rollout(version=V1), rollout(version=first), Rollout()]
    assert is_of_one_learner(task, rollouts, max_lag) == kept


def test_an_unscored_rollout_is_masked_out_whole_and_the_others_are_not():
    group = [rollout(), rollout(ENV_FAILED), rollout()]
    header, payload = assemble(make_task(), [3, 4], group, [1.0, None, 0.0], [True, False, False], ORIGIN)
    assert payload is not None
    p = decode_payload(encode_payload(payload), "test")
    assert [p.rollout(i)[1].sum() for i in range(3)] == header.sampled_tokens == [3, 0, 3]
    assert p.lengths.tolist() == header.total_tokens == [4, 4, 4]
    assert header.signs == [1, 0, -1] == np.sign(p.advantages).tolist()
    assert p.version_runs.tolist() == [[2, *V0], [1, *V1]] * 2
    assert (header.version_min, header.version_max) == (V0, V1)
    # half of the tokens at 1 - p, half at p
    assert math.isclose(header.headroom, 0.5, abs_tol=1e-6)
    assert decode(encode(header), type(header)) == header


def test_the_parts_of_a_reward_are_added_up_over_the_scored_rollouts():
    scores = [
        Scored(1.2, True, {"right": 1.0, "form": 0.5}),
        Scored(None, False, {"abstained": 1.0}),
        Scored(0.1, False, {"right": 0.0, "form": math.nan, "length": 1e9}),
    ]
    assert part_sums(scores) == {"right": (1.0, 2), "form": (0.5, 1)}
    assert len(part_sums([Scored(1.0, True, {f"p{i}": 1.0 for i in range(PARTS + 5)})])) == PARTS


def test_one_scored_rollout_is_a_failed_group_without_payload():
    group = [rollout(), rollout(TIMED_OUT), rollout(ENV_FAILED)]
    header, payload = assemble(make_task(), [3], group, [1.0, None, None], [True, False, False], ORIGIN)
    assert payload is None
    assert "1 of 3" in header.failure and "1 timed_out" in header.failure


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_log_probability_that_is_not_finite_is_a_failed_group(bad):
    group = [rollout(), rollout(logprob=bad), rollout()]
    header, payload = assemble(make_task(), [3], group, [1.0, 0.0, 0.0], [True, False, False], ORIGIN)
    assert payload is None and "finite" in header.failure


def test_an_evaluation_is_a_header_only_and_one_rollout_is_enough():
    header, payload = assemble(make_task(kind="eval", group_size=1), [3], [rollout()], [1.0], [True], ORIGIN)
    assert payload is None and header.usable and header.correct == [True]


async def test_a_deadline_keeps_what_has_ended_masks_the_rest_and_says_so(make_config, model_dir, monkeypatch):
    troubles = Troubles()
    monkeypatch.setattr(groups, "TROUBLES", troubles)
    config = make_config(rollout={"deadline_s": 0.3})
    codec = Codec(model_dir)

    class Slow(ScriptedEngine):
        async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
            if len(self.asked) == 1:
                self.asked.append((ids, sampling))
                await asyncio.sleep(60)
            return await super().generate(ids, sampling)

    said = codec.encode("<answer> b </answer>")
    player = Player(
        Slow(lambda i, s: (said, "stop")), codec, Budget(max_tokens=200, max_turn_tokens=20, max_turns=2), no
    )
    group = await roll_out(make_task(), player, config, "a", lambda: V0, marks)
    assert sorted(group.header.statuses) == [FINISHED, FINISHED, TIMED_OUT]
    assert sorted(group.header.rewards, key=str) == [1.0, 1.0, None]
    assert group.payload is not None and not group.payload.advantages.any()
    (told,) = troubles.told()
    assert told.startswith("rollout.deadline_s cut 1 rollouts") and told.endswith("; the last one after 0.3 s.")
    assert group.header.reward_parts == {"em": (2.0, 2), "answered": (2.0, 2), "well_formed": (0.0, 2)}


async def test_a_rollout_with_documents_of_another_index_than_the_groups_is_masked(make_config, model_dir):
    codec = Codec(model_dir)
    search, answer = codec.encode("<search> a </search>"), codec.encode("<answer> b </answer>")
    from_index = iter(["i1", "i2", "i1"])  # a load balancer that takes turns

    async def found(query: str, seed: int) -> list[Document]:
        return [Document("1", "a", "b", next(from_index))]

    async def marked() -> dict[str, str]:
        return {"index": "i1"}

    engine = ScriptedEngine(lambda ids, s: (answer if set(search) <= set(ids) else search, "stop"))
    player = Player(engine, codec, Budget.of(make_config()), found)
    group = await roll_out(make_task(), player, make_config(), "a", lambda: V0, marked)
    assert group.header.statuses == [FINISHED, ENV_FAILED, FINISHED]
    assert [reward is None for reward in group.header.rewards] == [False, True, False]


@pytest.mark.parametrize("index", ["", "v1"])
async def test_a_retriever_of_one_route_makes_whole_groups_from_the_first_on(make_config, model_dir, index):
    codec = Codec(model_dir)
    search, answer = codec.encode("<search> a </search>"), codec.encode("<answer> b </answer>")
    engine = ScriptedEngine(lambda ids, s: (answer if set(search) <= set(ids) else search, "stop"))
    async with Server(right) as server:
        server.health, server.index = (404, ""), index
        config = make_config(env={"url": server.url})
        async with RetrievalClient.of(config) as retriever:

            async def marked() -> dict[str, str]:
                return {"index": await retriever.index()}

            player = Player(engine, codec, Budget.of(config), retriever.search)
            group = await roll_out(make_task(), player, config, "a", lambda: V0, marked)
    assert group.header.statuses == [FINISHED] * 3 and not group.header.failure
    assert group.header.fingerprints == {"index": index}


async def test_a_failing_engine_is_not_a_failed_group(make_config, model_dir):
    class Broken(ScriptedEngine):
        async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
            raise EngineFailed("dead")

    budget = Budget(max_tokens=200, max_turn_tokens=20, max_turns=2)
    player = Player(Broken(lambda i, s: ([], "eos")), Codec(model_dir), budget, no)
    with pytest.raises(EngineFailed):
        await roll_out(make_task(), player, make_config(), "a", lambda: V0, marks)


async def test_an_engine_that_is_stuck_is_noticed_and_an_idle_one_is_not():
    class Stuck(ScriptedEngine):
        async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
            await asyncio.sleep(60)
            raise AssertionError

    engine = MeteredEngine(Stuck(lambda i, s: ([], "eos")))
    watch = asyncio.ensure_future(watch_engine(engine, lambda: engine.busy, 0.1))
    await asyncio.sleep(0.3)
    assert not watch.done()
    request = asyncio.ensure_future(engine.generate([1], Sampling(1.0, 1, 0)))
    with pytest.raises(EngineFailed, match="nothing"):
        await asyncio.wait_for(watch, 5)
    request.cancel()


async def test_an_engine_that_swaps_for_long_is_not_stuck():
    class Slow(ScriptedEngine):
        async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
            return await asyncio.get_running_loop().create_future()

        async def swap(self, notice: WeightsNotice, directory: Path) -> float:
            await asyncio.wait({watch}, timeout=0.5)
            return 0.5

    engine = MeteredEngine(Slow(lambda i, s: ([], "eos")))
    watch = asyncio.ensure_future(watch_engine(engine, lambda: engine.busy, 0.1))
    request = asyncio.ensure_future(engine.generate([1], Sampling(1.0, 1, 0)))
    await asyncio.sleep(0)  # it is under way
    notice = WeightsNotice(version=V0, location="", digest="", size=0, published=0.0, canary=[])
    await engine.swap(notice, Path())
    assert engine.requests == 1 and not watch.done()
    with pytest.raises(EngineFailed, match="nothing"):
        await asyncio.wait_for(watch, 5)
    request.cancel()


@pytest.mark.parametrize(
    "change",
    [
        {"group_size": 1},
        {"kind": "x"},
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"seed": -1},
    ],
)
def test_impossible_tasks_are_refused(change):
    with pytest.raises(UserError):
        check_task(make_task(**change))


def test_a_question_is_wrapped_and_ready_messages_are_not(model_dir):
    codec = Codec(model_dir)
    wrapped = codec.prompt([{"role": QUESTION, "content": "a b"}], "x {question} y")
    ready = codec.prompt([{"role": "user", "content": "a b"}], "x {question} y")
    assert codec.decode(wrapped) == "<|user|> x a b y <|end|> <|assistant|>"
    assert codec.decode(ready) == "<|user|> a b <|end|> <|assistant|>"


GEMMA = (  # the shape of a template that knows no system message and wants the roles to take turns
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ '<|user|>' + m['content'] }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "messages", "why"),
    [
        (GEMMA, [{"role": "system", "content": "b"}, {"role": "user", "content": "a"}], "System role not supported"),
        (GEMMA, [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "roles must alternate"),
        ("{{ messages[0].missing.more }}", [{"role": "user", "content": "a"}], "has no attribute 'missing'"),
        ("{{ 1 + messages[0]['content'] }}", [{"role": "user", "content": "a"}], "unsupported operand"),
        ("{% if %}", [{"role": "user", "content": "a"}], "Expected an expression"),
    ],
)
async def test_a_prompt_that_the_chat_template_refuses_is_a_failed_group_in_its_words(
    make_config, model_dir, template, messages, why
):
    codec = Codec(model_dir)
    codec.tokenizer.chat_template = template
    engine = ScriptedEngine(lambda i, s: ([], "eos"))
    player = Player(engine, codec, Budget(max_tokens=200, max_turn_tokens=20, max_turns=2), no)
    group = await roll_out(make_task(messages=messages), player, make_config(), "a", lambda: V0, marks)
    assert group.header.failure.startswith("the chat template refuses the prompt: ") and why in group.header.failure
    assert group.header.refused and group.payload is None and not engine.asked


def test_a_prompt_that_is_neither_a_template_nor_has_a_place_for_the_question_is_refused():
    with pytest.raises(UserError, match="question"):
        instruction("search-r1", "a")


def test_braces_in_a_question_are_only_text():
    assert instruction("math", "f{x} {question}").endswith("f{x} {question}")


async def no(query: str, seed: int):
    raise AssertionError("nothing is searched here")


async def marks() -> dict[str, str]:
    return {"index": "i"}
