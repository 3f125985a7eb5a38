"""Answers to figures: metrics per source, macro and weighted, with intervals; as plain data and as a table.

Every sample counts but those that say nothing of the model (`cli.eval.judged`). A question with fewer that count than k
says nothing about k: it is left out of the metrics at that k and counted as incomplete.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.eval.judged import counted_wrong, judged, left_out
from shared.evaluation.intervals import METHOD, Means, means
from shared.evaluation.metrics import best_at_k, majority_at_k, mean_at_k, pass_at_k
from shared.evaluation.records import Answered, Job
from shared.latency import spoken
from shared.messages import TIMED_OUT, TRUNCATED

OF_SCORES = ("mean@", "best@")  # the others count what is right
TIES = "between answers with equally many votes the one given first wins; a sample without an answer does not vote"
UNSCORED = (
    "a sample that ran out of time, or whose answer could not be scored, counts as wrong; only where the environment "
    "did not answer, or the reward function returned None, is it left out"
)


def report(job: Job, answers: Sequence[Answered], k: Sequence[int], settings: Mapping[str, object]) -> dict[str, Any]:
    """Everything there is to say, as plain data; the same answers give the same report, in whatever order they came."""
    ordered = sorted(answers, key=lambda a: a.number)
    sources: dict[str, list[Answered]] = {}
    for answered in ordered:
        sources.setdefault(answered.source, []).append(answered)
    figures = {
        name: found for name, (need, of) in _metrics(job, k, ordered).items() if (found := _means(sources, need, of))
    }
    return {
        "model": job.shown_model,
        "questions": len(ordered),
        "samples": job.samples,
        "k": list(k),
        "temperature": job.temperature,
        "seed": job.seed,
        "interval": METHOD,
        "majority_ties": TIES,
        "without_a_score": UNSCORED,
        "settings": dict(settings),
        "sources": {
            source: {
                **_counts(group),
                "metrics": {name: asdict(m.sources[source]) for name, m in figures.items() if source in m.sources},
            }
            for source, group in sources.items()
        },
        "macro": {name: asdict(m.macro) for name, m in figures.items()},
        "weighted": {name: asdict(m.weighted) for name, m in figures.items()},
    }


Metric = Callable[[Answered, list[int]], float]


def _metrics(job: Job, k: Sequence[int], answers: Sequence[Answered]) -> dict[str, tuple[int, Metric]]:
    """Each metric's name, how many samples it needs, and its value for a question and its samples that count."""
    named: dict[str, tuple[int, Metric]] = {f"mean@{job.samples}": (1, lambda a, s: mean_at_k(_at(a.scores, s)))}
    for many in k:
        named[f"best@{many}"] = (many, lambda a, s, many=many: best_at_k(_at(a.scores, s), many))
        named[f"majority@{many}"] = (
            many,
            lambda a, s, many=many: majority_at_k([a.votes[i] for i in s], [a.correct[i] for i in s], many),
        )
        named[f"pass@{many}"] = (many, lambda a, s, many=many: pass_at_k([a.correct[i] for i in s], many))
    if all(a.f1 for a in answers):
        named["f1"] = (1, lambda a, s: mean_at_k(_at(a.f1, s)))
    return named


def _at(values: Sequence[float | None], places: Sequence[int]) -> list[float]:
    return [value for i in places if (value := values[i]) is not None]


def _means(sources: Mapping[str, Sequence[Answered]], need: int, metric: Metric) -> Means | None:
    """None where no question has samples enough."""
    values: dict[str, list[float]] = {}
    for source, group in sources.items():
        scored = [(a, [i for i, score in enumerate(a.scores) if score is not None]) for a in map(judged, group)]
        column = [metric(a, s) for a, s in scored if len(s) >= need]
        if column:
            values[source] = column
    return means(values) if values else None


def _counts(group: Sequence[Answered]) -> dict[str, Any]:
    samples = sum(len(a.scores) for a in group)
    statuses = [status for a in group for status in a.statuses]
    return {
        "questions": len(group),
        "samples": samples,
        "answered_samples": sum(answer is not None for a in group for answer in a.answers),
        "correct_samples": sum(correct for a in group for correct in a.correct),
        "truncated_samples": statuses.count(TRUNCATED),
        "timed_out_samples": statuses.count(TIMED_OUT),
        "given_up_samples": sum(given_up for a in group for given_up in a.given_up),
        "counted_wrong_samples": sum(wrong for a in group for wrong in counted_wrong(a)),
        "left_out_samples": sum(out for a in group for out in left_out(a)),
        "incomplete": sum(any(left_out(a)) for a in group),
        "answered_share": sum(answer is not None for a in group for answer in a.answers) / samples,
        "truncated_share": statuses.count(TRUNCATED) / samples,
        "tokens_mean": fmean(tokens for a in group for tokens in a.tokens),
        "searches_mean": fmean(searches for a in group for searches in a.searches),
    }


def print_report(found: Mapping[str, Any], console: Console) -> None:
    """A table for each k, and what must be known to read them."""
    how = "greedy" if found["temperature"] == 0 else f"temperature {found['temperature']:g}"
    samples = f"{found['samples']} sample{'s' if found['samples'] > 1 else ''}"
    what = f": {found['questions']:,} questions, {samples} each, {how}"
    console.print(Text.assemble((str(found["model"]), "bold"), what))
    for k in found["k"]:
        console.print(_table(found, [n for n in found["macro"] if "@" not in n or _speaks_of(n, k, found["samples"])]))
        console.print()
    console.print(_samples(found["sources"]))
    console.print()
    for note in _notes(found):
        console.print(note)


def _speaks_of(name: str, k: int, samples: int) -> bool:
    return name == f"mean@{samples}" or name.endswith(f"@{k}")


def _table(found: Mapping[str, Any], names: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("source", overflow="fold")
    for heading in ("n", *map(_spoken, names)):
        table.add_column(heading, justify="right", no_wrap=True)
    own = _has_rewards(found)

    def cells(metrics: Mapping[str, Any]) -> list[str]:
        return [_cell(metrics.get(name), own and name.startswith(OF_SCORES)) for name in names]

    for source, row in found["sources"].items():
        table.add_row(source, f"{row['questions']:,}", *cells(row["metrics"]))
    if len(found["sources"]) > 1:
        table.add_section()
        table.add_row("macro mean", "", *cells(found["macro"]))
        table.add_row("weighted mean", f"{found['questions']:,}", *cells(found["weighted"]))
    return table


def _has_rewards(found: Mapping[str, Any]) -> bool:
    """Whether scores are rewards of a function, which may be any numbers, and no shares of something right."""
    return bool(found["settings"].get("reward", {}).get("function"))


def _samples(sources: Mapping[str, Mapping[str, Any]]) -> Table:
    """What became of the samples, counted; "too slow" to compare belongs to mathematics."""
    columns = {
        "samples": "samples",
        "answered": "answered_samples",
        "correct": "correct_samples",
        "cut off": "truncated_samples",
        "timed out": "timed_out_samples",
        "too slow": "given_up_samples",
    }
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("source", overflow="fold")
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for source, row in sources.items():
        table.add_row(source, *(f"{row[name]:,}" for name in columns.values()))
    return table


def _notes(found: Mapping[str, Any]) -> list[Text]:
    unit = "Mean and Best are of the reward, the others per cent" if _has_rewards(found) else "Per cent"
    notes = [Text(f"{unit}, with the {found['interval']}.", "dim")]
    if any(k > 1 for k in found["k"]):
        notes.append(Text(f"Majority: {found['majority_ties']}.", "dim"))
    env = found["settings"].get("env", {})
    if env.get("kind") == "search":
        notes.append(Text(f"In its environment {spoken(env['latency'])}.", "dim"))
    samples, wrong, out, incomplete = (
        sum(row[name] for row in found["sources"].values())
        for name in ("samples", "counted_wrong_samples", "left_out_samples", "incomplete")
    )
    if wrong:
        said = f"Counted as wrong: {wrong:,} of {samples:,} samples, which ran out of time or could not be scored."
        notes.append(Text(said, "yellow"))
    if out:
        said = (
            f"Left out: {out:,} of {samples:,} samples, because the environment did not answer, or the reward function "
            f"returned None. Their questions ({incomplete:,}) are in no metric that needs more samples than are left."
        )
        notes.append(Text(said, "yellow"))
    return notes


def _spoken(name: str) -> str:
    what, at, k = name.partition("@")
    return {"mean": "Mean", "best": "Best", "f1": "F1"}.get(what, what) + at + k


def _cell(estimate: Mapping[str, float] | None, is_reward: bool) -> str:
    """The mean, and below it its interval; in per cent unless it is of rewards."""
    if estimate is None:
        return "–"
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    if is_reward:
        return f"{value:.3g}\n{low:.3g} to {high:.3g}"
    return f"{100 * value:.1f}\n{100 * low:.1f}–{100 * high:.1f}"
