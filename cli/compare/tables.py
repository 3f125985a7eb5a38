"""The words and tables of a report, from the figures of its runs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cli.compare.document import Block, Table, Text
from cli.compare.figures import PARTS
from cli.compare.intervals import ENOUGH, LEVEL, Interval, difference, mean_of, ratio, verdict
from cli.compare.results import Results
from cli.run.progress import DASH, clock
from shared.latency import spoken

BUSY = 0.15  # share of all cores
PER_CENT, SECONDS, PLAIN, SMALL = "{:.1f} %", "{:.2f} s", "{:.2f}", "{:.2g}"
FEW = (
    f"**Fewer than {ENOUGH} seeds**: an interval can be absurdly narrow by chance, since the spread is guessed from as "
    "few values. With two seeds it is below a tenth of its true width in one study of 13, with three in one of 100. "
    "Take a verdict of such a row as a hint, and add seeds."
)
COMPARED = (
    # figure, what it is called, whether it is compared as a ratio, unit
    ("step_s", "step time", True, PLAIN),
    ("mean_at_k", "Mean@{k}", False, "{:.4f}"),
    ("best_at_k", "Best@{k}", False, "{:.4f}"),
    ("correct_late", "right in training, last third", False, "{:.4f}"),
)


@dataclass(frozen=True)
class Difference:
    """One figure of one arm against another arm's, over the seeds of both."""

    HEAD: ClassVar[tuple[str, ...]] = ("arm", "against", "figure", "as", "value", "low", "high", "seeds", "verdict")

    arm: str
    against: str
    figure: str
    name: str
    is_ratio: bool
    unit: str
    interval: Interval | None

    @property
    def verdict(self) -> str:
        """In words."""
        return verdict(self.interval, 1.0 if self.is_ratio else 0.0)

    def row(self) -> list[str | float | int | None]:
        """Of differences.csv, in the order of HEAD."""
        i = self.interval or Interval(float("nan"), None, None, 0)
        kind = "ratio" if self.is_ratio else "difference"
        return [self.arm, self.against, self.figure, kind, i.value, i.low, i.high, i.n, self.verdict]


def all_differences(results: Results) -> Iterator[Difference]:
    """Every pair of the study, every compared figure that both arms have."""
    for arm, against in results.study.pairs:
        for figure, name, as_ratio, unit in COMPARED:
            a, b = results.of(arm, figure), results.of(against, figure)
            interval = (ratio if as_ratio else difference)(a, b)
            if interval is not None:
                name = name.format(k=results.study.head.samples)
                yield Difference(arm, against, figure, name, as_ratio, unit, interval)


def opening(results: Results) -> list[Block]:
    """What was compared, in a paragraph, and what is missing."""
    head = results.study.head
    k = f"and was then asked held-out questions, {head.samples} times each" if head.samples else "and was not evaluated"
    blocks: list[Block] = [
        Text(
            f"{len(results.study.arms)} arms, {_seeds(len(head.seeds))}. Every run generated {head.fresh_groups} fresh "
            f"groups unless the table says otherwise, {k}. Replayed groups come on top of the fresh ones. Intervals "
            "are 95 %, over seeds, paired where two arms are compared; **a difference whose interval holds no "
            "difference is called noise**."
        )
    ]
    if results.missing:
        blocks.append(Text(f"**Not complete**: {len(results.missing)} runs are missing: {', '.join(results.missing)}."))
    busy = [name for name in results.notes if _busy(results, name) > BUSY]
    if busy:
        blocks.append(
            Text(
                f"**The machine was not idle** just before or after {len(busy)} of {len(results.notes)} runs (see the "
                "table of runs): their step times hold other programs' work too."
            )
        )
    return blocks


def _busy(results: Results, name: str) -> float:
    """The share of all cores that other programs took just before or after a run."""
    return max(results.notes[name]["busy_before"], results.notes[name]["busy_after"])


def headline(results: Results) -> Table:
    """One row an arm: time, quality, and what was paid in responses."""
    k = results.study.head.samples
    columns = [
        ("step time", "step_s", SECONDS, 1.0),
        (f"Mean@{k}", "mean_at_k", "{:.4f}", 1.0),
        (f"Best@{k}", "best_at_k", "{:.4f}", 1.0),
        ("right in training, first step", "correct_first", PER_CENT, 100.0),
        ("right in training, last third", "correct_late", PER_CENT, 100.0),
        ("steps", "steps", "{:.0f}", 1.0),
        ("fresh responses", "fresh_responses", "{:,.0f}", 1.0),
        ("trained on", "trained_responses", "{:,.0f}", 1.0),
        ("replayed", "replayed_responses", "{:,.0f}", 1.0),
        ("groups dropped", "filtered_groups", "{:,.0f}", 1.0),
        ("asked again", "regenerated_groups", "{:,.0f}", 1.0),
    ]
    return _by_arm(results, columns)


def step_parts(results: Results) -> Table:
    """One row an arm: what the learner does in a step."""
    columns = [(part, f"{part}_s", SECONDS, 1.0) for part in (*PARTS, "other")]
    return _by_arm(results, [("waiting, of a step", "waiting_share", PER_CENT, 100.0), *columns])


def by_source(results: Results) -> Table | None:
    """Mean@k and Best@k of each source of questions; None where there is one source."""
    k = results.study.head.samples
    keys = dict.fromkeys(
        key for runs in results.arms.values() for run in runs for key in run.scalars if "_at_k:" in key
    )
    columns = [(f"{key.partition('_')[0].title()}@{k} {key.partition(':')[2]}", key, "{:.4f}", 1.0) for key in keys]
    return _by_arm(results, columns) if columns else None


def replayed(results: Results) -> Table:
    """One row an arm that replays: the gate, how deep it scans, ages, reuse, KL."""
    columns = [
        ("acceptance", "acceptance", PER_CENT, 100.0),
        ("scanned a step", "scanned", "{:.1f}", 1.0),
        ("of the buffer", "scan_depth", PER_CENT, 100.0),
        ("of K filled", "filled", PER_CENT, 100.0),
        ("mean age", "age", PLAIN, 1.0),
        ("oldest", "age_max", "{:.0f}", 1.0),
        ("aged 3 or more", "age_3_share", PER_CENT, 100.0),
        ("distinct ages a step", "distinct_ages", PLAIN, 1.0),
        ("Headroom", "headroom", "{:.3f}", 1.0),
        ("Drift", "drift", SMALL, 1.0),
        ("replay KL", "replay_kl", SMALL, 1.0),
        ("last third", "replay_kl_late", SMALL, 1.0),
        ("scan exposed", "scan_exposed_s", "{:.3f} s", 1.0),
    ]
    columns += [
        ("most uses of a group", "reuse_max", "{:.1f}", 1.0),
        ("Gini of uses", "reuse_gini", PLAIN, 1.0),
        ("uses of the top tenth", "reuse_top_tenth", PER_CENT, 100.0),
    ]
    return _by_arm(results, columns, only=[arm for arm, runs in results.arms.items() if any(run.ages for run in runs)])


def differences(results: Results) -> list[Block]:
    """How far to trust the verdicts, and the paired differences with them."""
    rows = []
    for d in all_differences(results):
        assert d.interval is not None
        value = f"x {d.interval.value:.3f}" if d.is_ratio else f"{d.interval.value:+.4f}"
        rows.append((d.arm, d.against, d.name, value, _range(d.interval, "{:.3f}" if d.is_ratio else "{:+.4f}"),
                     str(d.interval.n), d.verdict))  # fmt: skip
    if not rows:
        return [Text("There is nothing to compare yet.")]
    alone = (
        f'Each interval is taken alone: of {len(rows)}, about {(1 - LEVEL) * len(rows):.1f} would leave out "no '
        'difference" by chance. They are over seeds, and say nothing of other questions: all runs answer the same.'
    )
    few = any(1 < int(seeds) < ENOUGH for *_, seeds, _ in rows)
    return [
        Text(alone),
        *([Text(FEW)] if few else []),
        Table(("arm", "against", "figure", "value", "95 % interval", "seeds", "which is"), rows),
    ]


def method(results: Results) -> Iterator[str]:
    """How the figures came about, a sentence or two each."""
    study = results.study
    first = study.runs[0].config
    latency = {run.config.env.latency for run in study.runs}
    yield (
        "**Step time** is the learner's clock from the end of one training step to the end of the next, over steps 2 "
        "to the last. The first step, which holds the start of all processes and the first generation, the final "
        "checkpoint and the evaluation are in no step. Waiting is for fresh groups or for the selection; a scan made "
        "while fresh groups were awaited takes time from waiting, so only the exposed part makes a step longer."
    )
    steps = ", ".join(f"'{arm}' {results.steps_of(arm)} steps" for arm in study.arms)
    yield (
        f"**Matched on fresh groups**: {steps}. An arm that throws fresh groups away ends with the step at which it "
        "has generated as many as the others. Arms of one seed see the same questions in the same order."
    )
    if study.head.samples:
        k = study.head.samples
        asked = "all" if not study.head.questions else f"the first {study.head.questions}"
        yield (
            f"**Mean@{k}** is the mean score of the samples of a question, **Best@{k}** the best of them, each then "
            f"averaged over {asked} held-out questions; sampled at temperature {first.rollout.temperature:g} from the "
            "last weights."
        )
    yield (
        "**Environment**: "
        + "; ".join(spoken(text) for text in sorted(latency))
        + ", drawn per call with a seed of its own, the same for all arms. The evaluation adds none."
    )
    yield (
        "Runs were made one after the other, seed by seed, each with a server and processes of its own; a run that was "
        "cut off was made anew from its beginning."
    )


def runs(results: Results) -> Table:
    """One row a run."""
    rows = []
    for arm_runs in results.arms.values():
        for run in arm_runs:
            planned = next(r for r in results.study.runs if (r.arm, r.seed) == (run.arm, run.seed))
            note, s = results.notes[planned.name], run.scalars
            rows.append(
                (
                    run.arm,
                    str(run.seed),
                    f"{s['steps']:.0f}" + (" (budget)" if note["stopped_at_budget"] else ""),
                    _shown(s["step_s"], SECONDS),
                    _shown(s.get("mean_at_k"), "{:.4f}"),
                    _shown(s.get("best_at_k"), "{:.4f}"),
                    _shown(s["correct_late"], PER_CENT, 100),
                    clock(note["seconds"]),
                    f"{100 * _busy(results, planned.name):.0f} %",
                    f"{s['restarts'] or 0:.0f}",
                )
            )
    k = results.study.head.samples
    if not k:
        rows = [row[:4] + row[6:] for row in rows]
        head = ("arm", "seed", "steps", "step time", "right, last third", "took", "other work", "restarts")
        return Table(head, rows)
    head = ("arm", "seed", "steps", "step time", f"Mean@{k}", f"Best@{k}", "right, last third", "took",
            "other work", "restarts")  # fmt: skip
    return Table(head, rows)


def _by_arm(results: Results, columns: list[tuple[str, str, str, float]], only: list[str] | None = None) -> Table:
    """The mean over seeds and half of its interval, for the columns in which anything but zero was measured."""
    arms = [arm for arm in results.arms if only is None or arm in only]
    columns = [c for c in columns if any(any(results.of(arm, c[1]).values()) for arm in arms)]
    rows = [
        (
            arm,
            *(_with_half(mean_of(list(results.of(arm, key).values())), unit, scale) for _, key, unit, scale in columns),
        )
        for arm in arms
    ]
    return Table(("arm", *(name for name, *_ in columns)), rows)


def _with_half(interval: Interval | None, unit: str, scale: float) -> str:
    if interval is None:
        return DASH
    text = unit.format(scale * interval.value)
    half = 0.0 if interval.high is None else scale * (interval.high - interval.value)
    if half <= 1e-12 * abs(scale * interval.value):
        return text
    number, space, suffix = text.partition(" ")
    return f"{number} ± {unit.format(half).partition(' ')[0]}{space}{suffix}"


def _range(interval: Interval, unit: str) -> str:
    if interval.low is None or interval.high is None:
        return DASH
    return f"{unit.format(interval.low)} to {unit.format(interval.high)}"


def _shown(value: float | None, unit: str, scale: float = 1.0) -> str:
    return DASH if value is None else unit.format(scale * value)


def _seeds(n: int) -> str:
    return "one seed" if n == 1 else f"{n} seeds"
