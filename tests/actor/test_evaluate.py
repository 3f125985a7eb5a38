"""The evaluating process over a scripted engine: what is asked again, what is written, what its samples depend on."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from services.actor import evaluate, heartbeat
from services.actor.engines.engine import EngineFailed, Finish, Generation, Sampling
from services.actor.evaluate import ATTEMPTS, serve
from services.actor.observation import Document
from services.actor.retrieval import RetrievalClient, RetrievalFailed
from services.actor.rollout import Rollout
from services.actor.scoring import score_rollouts
from services.actor.text import Codec
from shared.config import Config
from shared.errors import UserError
from shared.evaluation.records import HELD, Answered, AnswersFile, Job, Question, write_questions
from shared.messages import ENV_FAILED, FINISHED, TIMED_OUT, TRUNCATED, WeightsNotice
from shared.rewards.own import Asked
from tests.actor.scripted_engine import ScriptedEngine

Say = Callable[[list[int], Sampling], tuple[list[int], Finish]]


def question(number: int, target: str = "b", source: str = "s") -> Question:
    messages = [{"role": "question", "content": "a ?"}]
    return Question(
        number=number, source=source, index=number, id=f"q{number}", messages=messages, ground_truth=[target]
    )


def write_job(
    folder: Path, questions: list[Question], *, samples: int, temperature: float = 1.0, seed: int = 0
) -> None:
    folder.mkdir(exist_ok=True)
    identity = {"model": "m"}
    job = Job(
        identity=identity,
        model="m",
        shown_model="m",
        samples=samples,
        temperature=temperature,
        seed=seed,
        texts=1,
    )
    write_questions(folder, job, questions)


def answers_of(folder: Path) -> list[Answered]:
    return sorted(AnswersFile(folder).read(), key=lambda a: a.number)


@pytest.fixture
def single(make_config: Callable[..., Config]) -> Config:
    """One turn, no retriever."""
    return make_config(env={"kind": "single"}, actor={"groups": 1}, rollout={"group_size": 2})


async def test_every_sample_is_scored_and_votes(single: Config, model_dir: Path, tmp_path: Path):
    codec = Codec(model_dir)
    texts = ["<answer> b </answer>", "<answer> b . </answer>", "<answer> c </answer>", "b"]

    def say(ids: list[int], sampling: Sampling) -> tuple[list[int], Finish]:
        return codec.encode(texts[len(engine.asked) - 1]), "eos"

    engine = ScriptedEngine(say)
    write_job(tmp_path / "e", [question(0)], samples=4)
    await serve(single, tmp_path / "e", engine)
    (answered,) = answers_of(tmp_path / "e")
    assert sorted(s for s in answered.scores if s is not None) == [0.0, 0.0, 1.0, 1.0]
    assert len({vote for vote, right in zip(answered.votes, answered.correct, strict=True) if right}) == 1
    assert answered.answers.count(None) == answered.votes.count(None) == 1
    assert answered.f1 == answered.scores
    assert answered.statuses == [FINISHED] * 4
    assert [len(t) > 0 for t in answered.texts] == [True] * 4


@pytest.mark.parametrize(
    ("listing", "visible", "said"),
    [
        ("GPU-a, 70000, 81559\nGPU-b, 3, 81559\nGPU-c, 900, 81559\nGPU-d, 0, 81559\n", "GPU-c", "INFO"),
        ("GPU-a, 70000, 81559\nGPU-b, 40780, 81559\nGPU-c, 50000, 81559\n", "GPU-b", "WARNING"),
        ("GPU-a, 70000, 81559\n", "0,1,2", ""),
    ],
)
async def test_of_several_gpus_it_takes_one_that_nobody_works_on(
    single: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    listing: str,
    visible: str,
    said: str,
):
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\ncat <<END\n{listing}END\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")  # the fourth is another's
    monkeypatch.delenv("HEADRACE_GPUS", raising=False)
    caplog.set_level(logging.INFO, "headrace")
    write_job(tmp_path / "e", [question(0)], samples=1)
    await serve(single, tmp_path / "e")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
    assert len(answers_of(tmp_path / "e")) == 1
    assert [r.levelname for r in caplog.records if f"takes {visible}" in r.message] == ([said] if said else [])


async def test_seeds_depend_on_the_question_and_the_sample_alone(single: Config, model_dir: Path, tmp_path: Path):
    codec = Codec(model_dir)

    async def seeds(folder: Path, questions: list[Question], seed: int = 0) -> dict[int, set[int]]:
        asked: dict[int, set[int]] = {}
        for q in questions:
            engine = ScriptedEngine(lambda ids, sampling: (codec.encode("b"), "eos"))
            write_job(folder / str(q.number), [q], samples=3, seed=seed)
            await serve(single, folder / str(q.number), engine)
            asked[q.number] = {sampling.seed for _, sampling in engine.asked}
        return asked

    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    one = await seeds(tmp_path / "one", [question(0), question(1), question(2)])
    two = await seeds(tmp_path / "two", [question(2), question(0)])
    other = await seeds(tmp_path / "three", [question(0)], seed=1)
    assert all(len(found) == 3 for found in one.values())
    assert (two[2], two[0]) == (one[2], one[0])
    assert len(one[0] | one[1] | one[2] | other[0]) == 12


async def test_what_is_answered_is_not_asked_again(single: Config, model_dir: Path, tmp_path: Path):
    codec, folder = Codec(model_dir), tmp_path / "e"
    write_job(folder, [question(i) for i in range(4)], samples=2)
    await serve(single, folder, ScriptedEngine(lambda ids, sampling: (codec.encode("b"), "eos")))
    lines = (folder / "answers.jsonl").read_text().splitlines(keepends=True)
    (folder / "answers.jsonl").write_text("".join(lines[:2]) + lines[2][:20])  # killed while it wrote the third
    engine = ScriptedEngine(lambda ids, sampling: (codec.encode("b"), "eos"))
    await serve(single, folder, engine)
    assert len(engine.asked) == 2 * 2
    assert [a.number for a in answers_of(folder)] == [0, 1, 2, 3]
    idle = ScriptedEngine(lambda ids, sampling: (codec.encode("b"), "eos"))
    await serve(single, folder, idle)
    assert idle.asked == []


async def test_adapters_are_put_beside_their_base_before_anything_is_asked(
    single: Config, model_dir: Path, tmp_path: Path
):
    class Swapped(ScriptedEngine):
        async def swap(self, notice: WeightsNotice, directory: Path) -> float:
            swapped.append((directory, len(self.asked)))
            return await super().swap(notice, directory)

    swapped: list[tuple[Path, int]] = []
    config = single.model_copy(update={"learner": single.learner.model_copy(update={"lora_rank": 4})})
    for name in ("its own", "held"):
        write_job(tmp_path / name, [question(0)], samples=1)
    (tmp_path / "held" / HELD).mkdir()
    for name in ("its own", "held"):
        await serve(config, tmp_path / name, Swapped(lambda ids, sampling: (Codec(model_dir).encode("b"), "eos")))
    assert swapped == [(Path("m"), 0), (tmp_path / "held" / HELD, 0)], "those of the job, or those that are held"
    write_job(tmp_path / "whole", [question(0)], samples=1)
    await serve(single, tmp_path / "whole", Swapped(lambda ids, sampling: (Codec(model_dir).encode("b"), "eos")))
    assert len(swapped) == 2, "a whole model is what the engine started with"


@pytest.mark.parametrize("stage", ["start", "swap"])
async def test_an_engine_that_hangs_before_the_first_question_is_given_up(
    single: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
):
    class Hangs(ScriptedEngine):
        async def start(self) -> None:
            await asyncio.sleep(1000 * (stage == "start"))

        async def swap(self, notice: WeightsNotice, directory: Path) -> float:
            await asyncio.sleep(1000)
            return 0.0

    monkeypatch.setattr(heartbeat.start_engine, "__defaults__", (0.3,))
    learner = single.learner.model_copy(update={"lora_rank": 4})
    weights = single.weights.model_copy(update={"swap_timeout_s": 0.3})
    write_job(tmp_path / "e", [question(0)], samples=1)
    (tmp_path / "e" / HELD).mkdir()
    said = {
        "start": "the scripted engine has not loaded the model within 0.3 s",
        "swap": f"{HELD} were not put beside their base within weights.swap_timeout_s = 0.3 s",
    }
    async with asyncio.timeout(20):
        with pytest.raises(EngineFailed, match=said[stage]):
            await serve(
                single.model_copy(update={"learner": learner, "weights": weights}),
                tmp_path / "e",
                Hangs(lambda ids, sampling: ([], "eos")),
            )


async def test_a_greedy_sample_says_so_to_the_engine(single: Config, model_dir: Path, tmp_path: Path):
    engine = ScriptedEngine(lambda ids, sampling: (Codec(model_dir).encode("b"), "length"))
    write_job(tmp_path / "e", [question(0)], samples=1, temperature=0.0)
    await serve(single, tmp_path / "e", engine)
    assert [sampling.temperature for _, sampling in engine.asked] == [0.0]
    assert answers_of(tmp_path / "e")[0].statuses == [TRUNCATED]


@pytest.fixture
def searching(make_config: Callable[..., Config]) -> Config:
    return make_config(env={"url": "http://127.0.0.1:9"}, actor={"groups": 1}, rollout={"group_size": 2})


def search_then_answer(codec: Codec) -> Say:
    def say(ids: list[int], sampling: Sampling) -> tuple[list[int], Finish]:
        searched = codec.encode("</search>")[0] in ids
        return codec.encode("<answer> b </answer>" if searched else "<search> a </search>"), "stop"

    return say


async def test_a_sample_whose_environment_failed_is_tried_again(
    searching: Config, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[int] = []

    async def search(self: RetrievalClient, query: str, seed: int = 0) -> list[Document]:
        calls.append(seed)
        if len(calls) == 1:
            raise RetrievalFailed("once")
        return [Document("d", "t", "b")]

    monkeypatch.setattr(RetrievalClient, "search", search)
    write_job(tmp_path / "e", [question(0)], samples=1)
    await serve(searching, tmp_path / "e", ScriptedEngine(search_then_answer(Codec(model_dir))))
    (answered,) = answers_of(tmp_path / "e")
    assert (answered.scores, answered.searches, answered.statuses) == ([1.0], [1], [FINISHED])
    assert len(set(calls)) == 2, "another seed"


async def test_a_sample_that_ran_out_of_time_is_not_replaced_by_a_shorter_draw(
    single: Config, model_dir: Path, tmp_path: Path
):
    class Slow(ScriptedEngine):
        async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
            said = await super().generate(ids, sampling)
            await asyncio.Event().wait()
            return said

    config = single.model_copy(update={"rollout": single.rollout.model_copy(update={"deadline_s": 0.01})})
    write_job(tmp_path / "e", [question(0)], samples=1)
    engine = Slow(lambda ids, sampling: (Codec(model_dir).encode("b"), "eos"))
    await serve(config, tmp_path / "e", engine)
    (answered,) = answers_of(tmp_path / "e")
    assert (answered.scores, answered.statuses) == ([None], [TIMED_OUT])
    assert len(engine.asked) == ATTEMPTS
    assert len({sampling.seed for _, sampling in engine.asked}) == 1


async def test_a_retriever_that_is_gone_ends_it_with_a_sentence(
    searching: Config, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def search(self: RetrievalClient, query: str, seed: int = 0) -> list[Document]:
        raise RetrievalFailed("gone")

    monkeypatch.setattr(RetrievalClient, "search", search)
    write_job(tmp_path / "e", [question(i) for i in range(50)], samples=1)
    with pytest.raises(UserError, match="has not answered for 7 rollouts in a row"):
        await serve(searching, tmp_path / "e", ScriptedEngine(search_then_answer(Codec(model_dir))))


async def test_one_question_that_the_environment_refuses_is_left_unscored(
    searching: Config, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def search(self: RetrievalClient, query: str, seed: int = 0) -> list[Document]:
        raise RetrievalFailed("refused")

    monkeypatch.setattr(RetrievalClient, "search", search)
    write_job(tmp_path / "e", [question(0)], samples=1)
    engine = ScriptedEngine(search_then_answer(Codec(model_dir)))
    await serve(searching, tmp_path / "e", engine)
    (answered,) = answers_of(tmp_path / "e")
    assert (answered.scores, answered.votes, answered.statuses) == ([None], [None], [ENV_FAILED])
    assert len(engine.asked) == ATTEMPTS


async def test_a_folder_without_a_job_is_none(single: Config, tmp_path: Path):
    with pytest.raises(UserError, match="holds no evaluation"):
        await serve(single, tmp_path, ScriptedEngine(lambda ids, sampling: ([], "eos")))


async def test_two_processes_do_not_answer_the_same_questions(
    single: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(evaluate, "LEAVES_S", 0.4)
    write_job(tmp_path / "e", [question(0)], samples=1)
    engine = ScriptedEngine(lambda ids, sampling: ([], "eos"))
    with await evaluate._alone(tmp_path / "e"), pytest.raises(UserError, match="another process is answering"):
        await serve(single, tmp_path / "e", engine)
    await serve(single, tmp_path / "e", engine)
    assert len(answers_of(tmp_path / "e")) == 1


def test_evaluations_draw_other_seeds_than_training():
    assert evaluate._SEED not in (0, 1)


@pytest.mark.slow
async def test_slow_mathematics_ends_with_the_deadline_and_spares_the_others(make_config: Callable[..., Config]):
    pytest.importorskip("math_verify")
    config = make_config(env={"kind": "single"}, reward={"kind": "math"})

    def wrote(text: str) -> Rollout:
        rollout = Rollout(status=FINISHED)
        rollout.pieces.append(("policy", rf"\boxed{{{text}}}"))
        return rollout

    slow = [wrote(f"9^{{9^{{9^{{9^{i}}}}}}}") for i in range(2, 10)]
    began = time.monotonic()
    scores = await score_rollouts(
        [*slow, wrote("7"), wrote("8")], Asked(ground_truth=["7"]), config, time.monotonic() + 0.1
    )
    assert time.monotonic() - began < 20, "two comparisons of 5 s at once, and none after the deadline"
    assert [s.correct for s in scores[-2:]] == [True, False]
    assert all(s.reward in (0.0, None) for s in scores[:8])
    assert sum(s.reward is None for s in scores[:8]) >= 4
