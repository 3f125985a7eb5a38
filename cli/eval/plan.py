"""From what the user wrote to an evaluation that can start: settings, questions, identity, folder; cheap checks first.

Settings come, later ones winning, from --config or the run's own configuration, else from the task (search or math);
then from HEADRACE_* variables and dotted overrides. [eval] gives what no option says: samples and temperature.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cli.eval.model import Target, find_target, present, run_config
from cli.eval.suites import Task, check_words, open_suites, questions_of, task_of
from cli.run import plan
from cli.run.prompt_lengths import PromptTokens
from shared.adapters import settings_of
from shared.config import Config, load
from shared.engine_choice import has_vllm
from shared.errors import UserError
from shared.evaluation.records import Job, Question
from shared.model_files import positions_of
from shared.prompts import QUESTION, Example
from shared.rewards import own

SEARCH_TASK = {"env.kind": "search", "env.prompt": "search_r1", "reward.kind": "em"}
MATH_TASK = {"env.kind": "single", "env.prompt": "math", "reward.kind": "math"}
MATH_TOKENS = {"rollout.max_prompt_tokens": 1024, "rollout.max_turn_tokens": 3072, "rollout.max_tokens": 4096}
NO_SUITE = "no question is named: add --suite FILE_OR_NAME; `headrace eval --list` shows the names."
_ASKS = ("env.kind", "env.prompt", "env.topk", "env.max_turns", "env.max_observation_tokens", "reward.kind")
_PASSAGES = ("search.corpus", "search.backend", "search.encoder")
_LIMITS = ("rollout.max_turn_tokens", "rollout.max_tokens", "model.dtype")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for; None: not said."""

    model: str
    suites: Sequence[str] = ()
    k: Sequence[int] = ()
    samples: int | None = None
    config: str | None = None
    task: Task | None = None
    temperature: float | None = None
    limit: int = 0
    seed: int | None = None
    texts: int = 4
    out: str | None = None
    overrides: Sequence[str] = field(default=())
    environ: Mapping[str, str] | None = None  # None: this process's own


@dataclass(frozen=True)
class Plan:
    """An evaluation that may start. `config` names the weights and paths as they are used."""

    target: Target
    config: Config
    job: Job
    questions: list[Question]
    k: list[int]
    folder: Path


def make_plan(request: Request) -> Plan:
    """Check everything that can be checked before the weights are held. Raises UserError in a sentence."""
    target = find_target(request.model, request.out)
    check_words(request.suites)
    if not request.suites and not (request.config or target.run_dir):
        raise UserError(NO_SUITE)
    config = _settings(request, target)
    k, samples, temperature = _sampling(request, config)
    words = request.suites or ([config.data.eval] if config.data.eval else [])
    if not words:
        raise UserError(NO_SUITE)
    questions = questions_of(open_suites(words, bool(config.reward.function)), request.limit)
    seed = config.run.seed if request.seed is None else request.seed
    identity = _identity(target, config, words, questions)
    job = Job(
        identity=identity,
        model=str(target.directory),
        shown_model=target.shown,
        samples=samples,
        temperature=temperature,
        seed=seed,
        texts=request.texts,
    )
    folder = Path(request.out) if request.out else _folder(target, words, job)
    whole = target.base or target.directory
    if whole.is_dir():  # of a version that is held already only the copy is left
        _check_lengths(config, whole, questions)
    return Plan(target, config, job, questions, k, folder.absolute())


def _settings(request: Request, target: Target) -> Config:
    task, overrides = request.task or task_of(request.suites), list(request.overrides)
    named = task_of(request.suites)
    if request.task and named and request.task != named:
        raise UserError(f"--task {request.task} does not fit the suites, which are of the kind {named}.")
    file = request.config or (str(target.run_dir / "config.toml") if target.run_dir else None)
    if file is None and task is None and not any(word.startswith("--env.") for word in overrides):
        raise UserError(
            f"how are the questions asked? {request.model} belongs to no run, so name the configuration it was trained "
            "with (--config RUN.toml), or --task search or --task math."
        )
    preset = _preset(task, target, request.out) if file is None or request.task else []
    if named:  # a benchmark is scored in its own way
        overrides.append("--reward.function=")
    config = load(file, [*preset, *overrides], environ=request.environ)
    if task and (task == "math") != (config.reward.kind == "math"):
        raise UserError(
            f"the suites are of the kind {task}, and {file} scores by reward.kind = '{config.reward.kind}': add "
            f"--task {task} to ask them in their own way."
        )
    if config.actor.engine == "vllm" and not has_vllm():
        raise UserError("actor.engine = 'vllm', and vLLM is not installed here: add --actor.engine torch.")
    return _placed(config, target, request.out)


def _preset(task: Task | None, target: Target, out: str | None) -> list[str]:
    """How questions of this kind are asked where no configuration says it, as overrides."""
    if task is None:
        return []
    values: dict[str, object] = {**SEARCH_TASK} if task == "search" else {**MATH_TASK}
    if task == "math":
        values |= _math_tokens(target.base or present(target, out))
    return [f"--{key}={value}" for key, value in values.items()]


def _placed(config: Config, target: Target, out: str | None) -> Config:
    """With absolute paths, the weights to evaluate, and one actor, whose share of the cores the evaluation has."""
    adapters = settings_of(present(target, out)) if target.base else {"learner.lora_rank": 0}
    values: dict[str, object] = {"model.path": str(target.base or target.directory), "actor.count": 1, **adapters}
    if target.run_dir is not None and config.run.name == run_config(target.run_dir).run.name:
        values["run.root"] = str(target.run_dir.resolve().parent)
    return plan.absolute_paths(plan.with_values(config, values))


def _math_tokens(directory: Path) -> dict[str, int]:
    """Room for a worked solution, as far as the model's positions go."""
    positions = positions_of(directory) or MATH_TOKENS["rollout.max_tokens"]
    if positions >= MATH_TOKENS["rollout.max_tokens"]:
        return MATH_TOKENS
    prompt = positions // 2
    return {
        "rollout.max_prompt_tokens": prompt,
        "rollout.max_turn_tokens": positions - prompt,
        "rollout.max_tokens": positions,
    }


def _sampling(request: Request, config: Config) -> tuple[list[int], int, float]:
    """(every k, samples per question, temperature)."""
    k = sorted(set(request.k)) or [config.eval.samples]
    if request.temperature == 0 and not request.k and request.samples is None:
        k = [1]  # every further answer would be the same
    samples = k[-1] if request.samples is None else request.samples
    if samples < k[-1]:
        raise UserError(f"--samples {samples} is less than --k {k[-1]}: an estimate at k needs k samples or more.")
    temperature = config.eval_temperature(samples) if request.temperature is None else request.temperature
    if temperature == 0 and samples > 1:
        raise UserError(
            f"greedy decoding gives the same answer {samples} times: leave --k away, or give a --temperature."
        )
    return k, samples, temperature


def _identity(target: Target, config: Config, words: Sequence[str], questions: Sequence[Question]) -> dict[str, str]:
    """What the answers depend on beside the job's own numbers."""
    dumped = config.model_dump()
    keys = (*_ASKS, *_LIMITS, *(_PASSAGES if config.env.kind == "search" else ()))
    settings = {key: dumped[key.partition(".")[0]][key.partition(".")[2]] for key in keys}
    if config.reward.function:
        settings["reward.function"] = own.fingerprint_of(config.reward.function)
    asked = hashlib.sha256(b"".join(map(msgspec.json.encode, questions))).hexdigest()[:16]
    return {
        "model": target.shown if target.held else f"{target.directory.resolve()} {_print_of(target.directory)}",
        "settings": json.dumps(settings),
        "suites": f"{' '.join(map(_label, words))} ({len(questions)} questions, {asked})",
    }


def _print_of(directory: Path) -> str:
    """Changes when a file of the model does; the weights are not read."""
    files = [f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in sorted(directory.iterdir()) if f.is_file()]
    return hashlib.sha256("\n".join(files).encode()).hexdigest()[:16]


def _folder(target: Target, words: Sequence[str], job: Job) -> Path:
    """Where the answers go: the same command finds the same folder, another one another."""
    digest = hashlib.sha256(msgspec.json.encode([job.identity, job.samples, job.temperature, job.seed])).hexdigest()
    suites = "+".join(map(_label, words[:3])) + (f"+{len(words) - 3}" if len(words) > 3 else "")
    name = target.shown.rpartition("@")[2] if target.run_dir else target.directory.resolve().name
    how = "greedy" if job.temperature == 0 else f"k{job.samples}"
    root = target.run_dir / "evals" if target.run_dir else Path("evals")
    return root / re.sub(r"[^A-Za-z0-9._+-]", "_", f"{name}-{suites}-{how}-{digest[:6]}")


def _label(word: str) -> str:
    return Path(word).name.removesuffix(".jsonl").removesuffix(".parquet")


class _Prompts:
    """Questions as a source of prompts."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self._questions = questions

    def __len__(self) -> int:
        return len(self._questions)

    def __getitem__(self, index: int) -> Example:
        q = self._questions[index]
        bare = q.messages[0]["role"] == QUESTION
        return Example(
            id=q.id,
            data_source=q.source,
            messages=None if bare else q.messages,
            question=q.messages[-1]["content"],
            ground_truth=q.ground_truth,
        )


def _check_lengths(config: Config, directory: Path, questions: Sequence[Question]) -> None:
    limits, positions = config.rollout, positions_of(directory)
    if positions and limits.max_tokens > positions:
        raise UserError(
            f"rollout.max_tokens = {limits.max_tokens} exceeds the {positions} positions of the model in {directory}: "
            f"add --rollout.max_tokens {positions} (or less)."
        )
    try:
        longest = PromptTokens(directory, config.env.prompt).longest(_Prompts(questions))
    except FileNotFoundError:
        return  # without a fast tokenizer the lengths are not known before the model is loaded
    except ValueError as error:
        raise UserError(str(error)) from None
    if longest.tokens > limits.max_prompt_tokens:
        question = questions[longest.index]
        raise UserError(
            f"question {question.id} of {question.source} has a prompt of {longest.tokens} tokens, and the limit is "
            f"{limits.max_prompt_tokens}: add --rollout.max_prompt_tokens {longest.tokens}."
        )
