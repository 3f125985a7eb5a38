"""`headrace eval` before and after the processes: what is refused, which weights are meant."""

import fcntl
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.eval import folder as eval_folder
from cli.eval import model as eval_model
from cli.eval import plan as eval_plan
from cli.eval.model import Vanished, find_target, hold
from cli.eval.plan import Request, make_plan
from cli.eval.progress import Progress
from cli.eval.session import EvalSession
from cli.eval.suites import GROUPS, SUITES, Suite, check_words, questions_of, task_of
from cli.main import main
from services.actor.engines.engine import threads_of
from shared import weights
from shared.adapters import digest_of_base
from shared.cores import available
from shared.errors import UserError
from shared.evaluation.records import (
    ANSWERS_LOCK,
    read_job,
    read_questions,
    weights_of,
)
from shared.prompts import open_prompts
from shared.versions import Version


@pytest.fixture
def ask(model_dir: Path, data_file: Path, tmp_path: Path) -> Callable[..., Request]:
    """A request that can be planned; keyword arguments change it."""

    def make(**changes: Any) -> Request:
        values: dict[str, Any] = {
            "model": str(model_dir),
            "suites": [str(data_file)],
            "task": "math",
            "out": str(tmp_path / "e"),
        }
        return Request(**(values | changes))

    return make


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name what is evaluated"),
        (["{model}"], "no question is named"),
        (["{model}", "--suite", "gsm-8"], "did you mean 'gsm8k'?"),
        (["{model}", "--suite", "gone.jsonl"], "gone.jsonl is not a file here"),
        (["{model}", "--suite", "aime24", "nq"], "two kinds, search and math"),
        (["{model}", "--suite", "{data}"], "--task search or --task math"),
        (["{model}", "--suite", "{data}", "--task", "math", "--k", "4", "--samples", "3"], "less than --k 4"),
        (["{model}", "--suite", "{data}", "--task", "math", "--k", "4", "--greedy"], "the same answer 4 times"),
        (["{model}", "--suite", "{data}", "--task", "math", "--greedy", "--temperature", "1"], "leave one away"),
        (["{model}", "--suite", "{data}", "--task", "math", "--rollout.tau", "1"], "did you mean 'replay.tau'"),
        (["no-such-model", "--suite", "{data}"], "neither a folder nor in the local model cache"),
        (["{empty}", "--suite", "{data}"], "lacks config.json and a tokenizer"),
        (["{model}", "--suite", "{data}", "--task", "search"], "no retriever answers at env.url"),
        (["{model}", "--suite", "{data}", "--config", "gone.toml"], "no configuration file gone.toml"),
    ],
)
def test_what_cannot_be_evaluated_is_told_in_a_sentence(
    words: list[str],
    sentence: str,
    model_dir: Path,
    data_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    known = {"model": model_dir, "data": data_file, "empty": tmp_path / "empty"}
    if "search" in words:
        words = [*words, "--env.url=http://127.0.0.1:9", "--rollout.max_prompt_tokens=200"]
        words += ["--rollout.max_turn_tokens=64", "--rollout.max_tokens=264"]
    assert main(["eval", *(word.format(**known) for word in words)]) == 2
    assert sentence in capsys.readouterr().err


def test_every_named_suite_has_a_kind_and_belongs_to_its_group():
    assert GROUPS["search"] == ["nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"]
    assert GROUPS["math"] == ["aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench", "gsm8k"]
    assert task_of(["MATH-500", "gsm8k"]) == "math"
    assert task_of(["search"]) == "search"
    assert task_of(["some.jsonl", "owner/name"]) is None
    check_words([*SUITES, *GROUPS, "owner/name", "owner/name/part:test"])


def test_a_file_of_that_name_comes_before_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nq").write_text('{"question": "q", "answer": "a"}\n')
    assert task_of(["nq"]) is None


def test_questions_keep_their_sources_apart(tmp_path: Path):
    rows = [json.dumps({"question": f"q{i}", "answer": "a", "data_source": s}) for i, s in enumerate("xyx")]
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    suites = [Suite(name, open_prompts(str(tmp_path / f"{name}.jsonl")), None) for name in ("one", "two")]
    found = questions_of(suites, limit=0)
    assert [q.source for q in found] == ["x", "y", "x", "two:x", "two:y", "two:x"]
    assert [q.index for q in found] == [0, 0, 1, 0, 0, 1]
    assert [q.number for q in found] == list(range(6))
    assert len(questions_of(suites, limit=2)) == 4


def test_samples_and_temperature_come_from_options_then_from_the_settings(ask: Callable[..., Request]):
    assert (make_plan(ask()).job.samples, make_plan(ask()).job.temperature) == (1, 0.0)
    several = make_plan(ask(k=[2, 8, 4]))
    assert (several.k, several.job.samples, several.job.temperature) == ([2, 4, 8], 8, 1.0)
    warm = make_plan(ask(k=[2], overrides=["--eval.temperature", "0.7", "--rollout.temperature", "0.9"]))
    assert warm.job.temperature == 0.7
    assert make_plan(ask(overrides=["--eval.samples", "3"])).job.samples == 3
    assert make_plan(ask(k=[2], samples=16, temperature=0.5)).job.samples == 16
    greedy = make_plan(ask(temperature=0.0, overrides=["--eval.samples", "3"]))
    assert (greedy.k, greedy.job.samples) == ([1], 1)


def test_the_same_command_has_the_same_folder_and_another_one_another(
    ask: Callable[..., Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    plain = make_plan(ask(out=None))
    assert make_plan(ask(out=None)).folder == plain.folder
    assert plain.folder.parent == tmp_path / "evals"
    others = [ask(out=None, seed=1), ask(out=None, limit=1), ask(out=None, k=[2]), ask(out=None, temperature=0.5)]
    others.append(ask(out=None, overrides=["--rollout.max_turn_tokens", "7"]))
    assert len({make_plan(other).folder for other in [ask(out=None), *others]}) == 6


def test_a_run_is_the_same_however_and_from_wherever_it_is_named(
    run_dir: Path, data_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "link").symlink_to(run_dir.parent)
    plans = []
    for folder, word in [
        (tmp_path, "runs/test"),
        (tmp_path, "link/test@step_1"),
        (run_dir.parent, "test"),
        (run_dir / "checkpoints", "latest"),
        (run_dir, "../test/checkpoints/step_1"),
    ]:
        monkeypatch.chdir(folder)
        plans.append(make_plan(Request(model=word, suites=[str(data_file)], task="math")))
    assert all(plan == plans[0] for plan in plans)
    (run_dir / "checkpoints" / "step_2").mkdir()
    _copy(run_dir / "checkpoints" / "step_1", run_dir / "checkpoints" / "step_2")
    (run_dir / "checkpoints" / "latest").unlink()
    (run_dir / "checkpoints" / "latest").symlink_to("step_2")
    newest = make_plan(Request(model="checkpoints/latest", suites=[str(data_file)], task="math"))
    assert newest.folder != plans[0].folder, "another checkpoint is another evaluation, whatever it is called"


def test_mathematics_gets_the_room_that_the_model_has(ask: Callable[..., Request], model_dir: Path):
    positions = json.loads((model_dir / "config.json").read_text())["max_position_embeddings"]
    rollout = make_plan(ask()).config.rollout
    assert rollout.max_tokens == min(4096, positions)
    assert rollout.max_prompt_tokens + rollout.max_turn_tokens <= rollout.max_tokens


@pytest.fixture
def run_dir(tmp_path: Path, model_dir: Path, write_config: Callable[..., Path]) -> Path:
    """A run with versions 0.1 and 0.2 published and a checkpoint of step 1, stopped."""
    run = tmp_path / "runs" / "test"
    run.mkdir(parents=True)
    (run / "config.toml").write_text(write_config().read_text())
    for number in (1, 2):
        weights.publish(run / "weights", Version(0, number), lambda folder: _copy(model_dir, folder))
    (run / "checkpoints" / "step_1").mkdir(parents=True)
    _copy(model_dir, run / "checkpoints" / "step_1")
    (run / "checkpoints" / "step_1" / "trainer_state.pt").write_bytes(b"large")
    (run / "checkpoints" / "latest").symlink_to("step_1")
    return run


def _copy(source: Path, target: Path) -> None:
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())


def test_a_stopped_run_means_its_checkpoint_and_a_training_one_what_it_published(run_dir: Path):
    assert find_target(str(run_dir)).shown == f"{run_dir}@step_1"
    with (run_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        training = find_target(str(run_dir))
    assert (training.shown, training.training) == (f"{run_dir}@0.2", True)
    assert find_target(f"{run_dir}@0.1").directory == run_dir / "weights" / "v0000-00000001"
    for folder in (run_dir / "checkpoints" / "latest", run_dir / "checkpoints" / "step_1"):
        assert find_target(str(folder)).shown == f"{run_dir}@step_1"
    with pytest.raises(UserError, match="'newest' is no version"):
        find_target(f"{run_dir}@newest")


@pytest.fixture
def adapted(run_dir: Path, model_dir: Path) -> Path:
    """The checkpoint of the run, of adapters beside the model."""
    checkpoint = run_dir / "checkpoints" / "step_1"
    for file in model_dir.iterdir():
        (checkpoint / file.name).unlink()
    (checkpoint / "adapter_config.json").write_text('{"r": 3, "lora_alpha": 6, "target_modules": ["v_proj", "q_proj"]}')
    (checkpoint / "adapter_model.safetensors").write_bytes(b"adapters")
    made_for = {"base": str(model_dir), "digest": digest_of_base(model_dir)}
    (checkpoint / "base.json").write_text(json.dumps(made_for))
    return checkpoint


def test_adapters_are_evaluated_beside_their_base(adapted: Path, run_dir: Path, model_dir: Path, data_file: Path):
    for word in (str(run_dir), str(adapted), f"{run_dir}@step_1"):
        plan = make_plan(Request(model=word, suites=[str(data_file)], task="math"))
        learner = plan.config.learner
        assert (plan.config.model.path, plan.target.directory) == (str(model_dir), adapted)
        assert (learner.lora_rank, learner.lora_alpha, learner.lora_targets) == (3, 6, "q_proj,v_proj")
        assert plan.target.held and plan.folder.parent == run_dir / "evals"
    plan.folder.mkdir(parents=True)
    eval_folder.claim(plan.folder, plan.job, plan.questions, fresh=False)
    held = hold(plan.target, plan.folder)
    assert weights_of(plan.folder, plan.job) == held and (held / "adapter_model.safetensors").is_file()
    for file in adapted.iterdir():
        file.unlink()
    adapted.rmdir()
    again = make_plan(Request(model=f"{run_dir}@step_1", suites=[str(data_file)], task="math"))
    assert again == plan, "a checkpoint that is gone is the one that is held"


def test_adapters_are_not_evaluated_beside_another_base(adapted: Path, run_dir: Path, tmp_path: Path):
    made_for = json.loads((adapted / "base.json").read_text())
    (adapted / "base.json").write_text(json.dumps(made_for | {"digest": "0"}))
    with pytest.raises(UserError, match="are not those beside which"):
        find_target(str(run_dir))
    (adapted / "base.json").write_text(json.dumps(made_for | {"base": str(tmp_path / "gone")}))
    with pytest.raises(UserError, match=r"base.json = '.*gone' is neither a folder"):
        find_target(str(run_dir))


def test_held_weights_outlive_the_version_and_leave_the_trainers_state(run_dir: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    target = find_target(f"{run_dir}@0.2")
    held = hold(target, tmp_path / "out")
    before = (held / "model.safetensors").read_bytes()
    assert (held / "model.safetensors").stat().st_ino == (target.directory / "model.safetensors").stat().st_ino
    weights.delete(run_dir / "weights", Version(0, 2))
    assert hold(target, tmp_path / "out") == held
    assert (held / "model.safetensors").read_bytes() == before
    (tmp_path / "other").mkdir()
    with pytest.raises(Vanished, match="is not there"):
        hold(target, tmp_path / "other")
    checkpoint = hold(find_target(str(run_dir)), tmp_path / "other")
    assert not (checkpoint / "trainer_state.pt").exists()


def test_a_version_that_is_gone_is_asked_mathematics_while_an_evaluation_holds_it(run_dir: Path, data_file: Path):
    request = Request(model=f"{run_dir}@0.2", suites=[str(data_file)], task="math")
    plan = make_plan(request)
    plan.folder.mkdir(parents=True)
    eval_folder.claim(plan.folder, plan.job, plan.questions, fresh=False)
    hold(plan.target, plan.folder)
    weights.delete(run_dir / "weights", Version(0, 2))
    assert make_plan(request) == plan
    eval_model.release(plan.folder)
    with pytest.raises(Vanished, match="is not there"):
        make_plan(request)


def test_a_version_whose_files_a_power_failure_damaged_is_not_evaluated(run_dir: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    target = find_target(f"{run_dir}@0.2")
    file = target.directory / "model.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(UserError, match="damaged or replaced"):
        hold(target, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_where_files_cannot_be_linked_they_are_copied(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "out").mkdir()
    held = hold(find_target(str(run_dir)), tmp_path / "out")
    assert (held / "config.json").read_bytes() == (run_dir / "checkpoints/step_1/config.json").read_bytes()


def test_stopped_while_holding_leaves_nothing_behind(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", stop)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(KeyboardInterrupt):
        hold(find_target(str(run_dir)), out)
    assert list(out.iterdir()) == []


def test_a_run_is_asked_as_it_was_trained(run_dir: Path, data_file: Path):
    plan = make_plan(Request(model=str(run_dir), suites=[str(data_file)]))
    assert (plan.config.env.prompt, plan.config.rollout.max_turn_tokens) == ("plain", 64)
    assert plan.folder.parent == run_dir / "evals"
    assert eval_plan.make_plan(Request(model=str(run_dir), suites=[str(data_file)])).folder == plan.folder


def test_the_evaluating_process_takes_the_cores_of_one_actor_however_many_the_run_had(ask: Callable[..., Request]):
    plan = make_plan(ask(overrides=["--actor.count=8"]))
    session = EvalSession(plan.config, plan.job, plan.folder, plan.questions, Progress(1, io.StringIO()))
    plan.folder.mkdir()
    program = session._program("evaluate", "services.actor.evaluate")
    one = threads_of(plan.config.model_copy(update={"actor": plan.config.actor.model_copy(update={"count": 1})}))
    assert program.environment["OMP_NUM_THREADS"] == str(one) == str(max(1, len(available()) // 2))
    assert threads_of(plan.config) == one, "as the engine itself takes them"


@pytest.mark.parametrize("fresh", [False, True])
def test_the_folder_of_a_run_is_not_taken_for_an_evaluation(ask: Callable[..., Request], fresh: bool):
    plan = make_plan(ask())
    plan.folder.mkdir()
    (plan.folder / eval_folder.CONFIG).write_text("a run's")
    with pytest.raises(UserError, match="name another --out"):
        eval_folder.claim(plan.folder, plan.job, plan.questions, fresh=fresh)
    assert [file.name for file in plan.folder.iterdir()] == [eval_folder.CONFIG]


def test_a_folder_belongs_to_one_evaluation(ask: Callable[..., Request]):
    plan = make_plan(ask())
    with eval_folder.lock(plan.folder):
        eval_folder.claim(plan.folder, plan.job, plan.questions, fresh=False)
        eval_folder.claim(plan.folder, plan.job, plan.questions, fresh=False)
        assert read_job(plan.folder) == plan.job
        assert read_questions(plan.folder) == plan.questions
        with pytest.raises(UserError, match=r"made with: remove job\.json, questions\.jsonl, answers\.jsonl and"):
            eval_folder.claim(plan.folder, plan.job, plan.questions[:1], fresh=False)
        other = make_plan(ask(k=[2]))
        with pytest.raises(UserError, match="another samples"):
            eval_folder.claim(plan.folder, other.job, other.questions, fresh=False)
        eval_folder.claim(plan.folder, other.job, other.questions, fresh=True)
        with pytest.raises(UserError, match="is running already"):
            eval_folder.lock(plan.folder)


def test_to_begin_anew_waits_for_who_still_answers(ask: Callable[..., Request], monkeypatch: pytest.MonkeyPatch):
    plan = make_plan(ask())
    plan.folder.mkdir()
    eval_folder.claim(plan.folder, plan.job, plan.questions, fresh=False)
    monkeypatch.setattr(eval_folder, "LEAVES_S", 0.2)
    with (plan.folder / ANSWERS_LOCK).open("a") as orphan:
        fcntl.flock(orphan, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is answering"):
            eval_folder.claim(plan.folder, plan.job, plan.questions, fresh=True)
        assert read_job(plan.folder) == plan.job
    eval_folder.claim(plan.folder, plan.job, plan.questions, fresh=True)


def test_weights_are_given_up_when_the_evaluation_is_over(run_dir: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    hold(find_target(str(run_dir)), tmp_path / "out")
    eval_model.release(tmp_path / "out")
    assert not (tmp_path / "out" / "model").exists()
    assert (run_dir / "checkpoints" / "step_1" / "model.safetensors").exists()


def test_the_environment_is_heeded_unless_the_caller_says_otherwise(
    ask: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HEADRACE_EVAL__SAMPLES", "3")
    assert make_plan(ask()).job.samples == 3
    assert make_plan(ask(environ={})).job.samples != 3
