"""The held-out questions after a run: k samples of each at the training temperature, through `headrace eval`.

The environment answers at once here, whatever `env.latency` says: a delay changes no answer. Runs of one seed are asked
with one seed.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cli.compare.study import Run, Study
from cli.eval import command as evaluating
from cli.eval.plan import Request
from cli.eval.suites import open_suites, questions_of
from shared.errors import UserError
from shared.evaluation.records import QUESTIONS, REPORT, Question, read_questions
from shared.messages import UNREADABLE

METRICS = {"mean_at_k": "mean@{k}", "best_at_k": "best@{k}", "majority_at_k": "majority@{k}"}


def is_due(study: Study, run: Run) -> bool:
    """Whether the questions of this run are still to be asked."""
    return bool(study.head.samples) and _report(study, run) is None


def refuse_nothing_to_ask(run: Run) -> None:
    """Raise UserError for a run without held-out questions."""
    if not run.config.data.eval:
        raise UserError(
            f"arm '{run.arm}': data.eval is empty, so nothing can be asked after a run: name a file, or set "
            "samples = 0."
        )


def refuse_absent_questions(study: Study) -> None:
    """Raise UserError where the questions of any run, if they are still to be asked, are not here.

    Files that are here were read when the study was checked, whose preflight leaves out what it does not find.
    """
    due = [run.config for run in study.runs if is_due(study, run)]
    for source, whole_rows in dict.fromkeys((config.data.eval, bool(config.reward.function)) for config in due):
        if not Path(source).exists():
            open_suites([source], whole_rows)


def refuse_other_questions(study: Study, runs: Sequence[Run]) -> None:
    """Raise UserError where one of these runs was asked other questions than the study names now.

    A run that was asked all of its questions stays as it is where they cannot be read any more.
    """
    named: dict[tuple[str, bool], list[Question] | UserError] = {}
    for run in runs if study.head.samples else ():
        folder, config = _folder(study, run), run.config
        if not (folder / QUESTIONS).is_file():
            continue
        source, whole_rows = config.data.eval, bool(config.reward.function)
        if (source, whole_rows) not in named:
            named[source, whole_rows] = _questions(source, whole_rows, study.head.questions)
        wanted = named[source, whole_rows]
        if isinstance(wanted, UserError):
            if is_due(study, run):
                raise wanted
        elif read_questions(folder) != wanted:
            raise UserError(
                f"the run in {config.run_dir} was asked other questions than those of data.eval = '{source}': give the "
                f"study another name, or remove {folder} to have them asked."
            )


def evaluate(study: Study, run: Run, weights: Path) -> bool:
    """Ask them, going on where a stopped evaluation was. False when the user stopped it."""
    refuse_nothing_to_ask(run)
    config = run.config
    request = Request(
        model=str(weights),
        suites=[config.data.eval],
        k=[study.head.samples],
        config=str(config.run_dir / "config.toml"),
        temperature=config.rollout.temperature,
        limit=study.head.questions,
        seed=run.seed,
        out=str(_folder(study, run)),
        overrides=["--env.latency="],
        environ={},  # the file is all there is to a study
    )
    return evaluating.evaluate(request) is not None


def quality_of(study: Study, run: Run) -> dict[str, float | None]:
    """Mean@k, Best@k and majority@k over all questions, and Mean@k by source; empty where nothing was asked."""
    report = _report(study, run) if study.head.samples else None
    if report is None:
        return {}
    names = {key: name.format(k=study.head.samples) for key, name in METRICS.items()}
    quality = {key: _value(report.weighted, name) for key, name in names.items()}
    if len(report.sources) > 1:
        for source, row in report.sources.items():
            quality[f"mean_at_k:{source}"] = _value(row.metrics, names["mean_at_k"])
            quality[f"best_at_k:{source}"] = _value(row.metrics, names["best_at_k"])
    return quality


class _Estimate(msgspec.Struct):
    value: float


class _Source(msgspec.Struct):
    metrics: dict[str, _Estimate]


class _Report(msgspec.Struct):
    """As much of eval.json as is looked at."""

    weighted: dict[str, _Estimate]
    sources: dict[str, _Source]


def _report(study: Study, run: Run) -> _Report | None:
    """None where there is none, or it cannot be read: it is made again of the answers that are there."""
    try:
        return msgspec.json.decode((_folder(study, run) / REPORT).read_bytes(), type=_Report)
    except (FileNotFoundError, *UNREADABLE):
        return None


def _questions(source: str, whole_rows: bool, limit: int) -> list[Question] | UserError:
    try:
        return questions_of(open_suites([source], whole_rows), limit)
    except UserError as error:
        return error


def _folder(study: Study, run: Run) -> Path:
    asked = f"-{study.head.questions}" if study.head.questions else ""
    return run.config.run_dir / "evals" / f"k{study.head.samples}{asked}"


def _value(metrics: dict[str, _Estimate], name: str) -> float | None:
    return metrics[name].value if name in metrics else None
