"""The pictures of a study. A line is the mean over seeds, its band the range of the seeds; a dot is one run."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cli.compare.figures import PARTS, RunFigures, counterfactual, learner_value, series, step_seconds, step_value
from cli.compare.intervals import mean_of
from cli.run.curves import BLUE, GREEN, GREY, INK, ORANGE, RED, STYLE, VIOLET

Arms = Mapping[str, Sequence[RunFigures]]  # the runs of each arm
COLOURS = (GREY, BLUE, ORANGE, GREEN, RED, VIOLET, "#0891b2", "#a16207", "#be185d", "#4d7c0f")
PART_COLOURS = {"waiting": "#cbd2d9", "scanning": ORANGE, "training": BLUE, "publishing": GREEN, "other": VIOLET}
WINDOW = 20  # a curve is smoothed over a twentieth of the run


def draw_all(arms: Arms, folder: Path, samples: int) -> dict[str, Path]:
    """Write every picture that the figures allow; name -> file."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Path] = {}
    runs = [run for of_arm in arms.values() for run in of_arm]
    replays = {arm: of_arm for arm, of_arm in arms.items() if any(run.ages for run in of_arm)}
    scans = {arm: of_arm for arm, of_arm in arms.items() if any(run.scalars["scanned"] for run in of_arm)}
    pictures: list[tuple[str, bool, Callable[[], Figure]]] = [
        ("step_time", bool(runs), lambda: _step_time(arms)),
        ("quality", any(run.scalars.get("mean_at_k") is not None for run in runs), lambda: _quality(arms, samples)),
        ("training", bool(runs), lambda: _training(arms)),
        ("replay", bool(replays), lambda: _replay(replays, arms)),
        ("ages", bool(replays), lambda: _ages(replays, arms)),
        ("what_if", bool(scans), lambda: _what_if(scans, arms)),
        ("counterfactual", any(_has_counterfactual(run) for run in runs), lambda: _counterfactual(arms)),
    ]
    for name, possible, picture in pictures:
        path = folder / f"{name}.png"
        path.unlink(missing_ok=True)
        if possible:
            with matplotlib.rc_context(STYLE):
                figure = picture()
                figure.savefig(path, dpi=130, metadata={"Software": None})
                plt.close(figure)
            drawn[name] = path
    return drawn


def _step_time(arms: Arms) -> Figure:
    figure, ax = plt.subplots(figsize=(9, 1.2 + 0.5 * len(arms)), layout="constrained")
    names = list(arms)[::-1]
    left = np.zeros(len(names))
    for part in [*PARTS, "other"]:
        width = np.array([_over_seeds(arms[arm], f"{part}_s") or 0.0 for arm in names])
        ax.barh(names, width, left=left, color=PART_COLOURS[part], label=part, height=0.62)
        left += width
    for y, arm in enumerate(names):
        ax.text(left[y] + 0.01 * left.max(), y, f"{left[y]:.2f} s", va="center", color=INK)
        ticks = [v for run in arms[arm] if (v := run.scalars["step_s"]) is not None]
        ax.plot(ticks, [y] * len(ticks), "|", color=INK, markersize=9)
    ax.set_title("Mean time of a step, by what the learner did; a tick is one run")
    ax.set_xlabel("seconds")
    ax.set_xlim(0, 1.12 * left.max())
    figure.legend(loc="outside lower center", ncols=len(PARTS) + 1)
    return figure


def _quality(arms: Arms, samples: int) -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(11, 1.2 + 0.45 * len(arms)), layout="constrained", sharey=True)
    for ax, key, name in zip(axes, ("mean_at_k", "best_at_k"), ("Mean", "Best"), strict=True):
        for y, (arm, runs) in enumerate(list(arms.items())[::-1]):
            values = [v for run in runs if (v := run.scalars.get(key)) is not None]
            colour = _colour(arms, arm)
            ax.plot(values, [y] * len(values), "o", color=colour, alpha=0.45, markersize=5)
            if interval := mean_of(values):
                ax.plot(interval.value, y, "D", color=colour, markersize=7)
                if interval.low is not None:
                    ax.plot([interval.low, interval.high], [y, y], color=colour, linewidth=2)
        ax.set_yticks(range(len(arms)), list(arms)[::-1])
        ax.set_ylim(-0.6, len(arms) - 0.4)
        ax.set_title(f"{name}@{samples} on held-out questions")
        ax.grid(True, axis="x")
    figure.supxlabel("dots: runs; diamond: mean over seeds with its 95 % interval (Student t)", fontsize=8)
    return figure


def _training(arms: Arms) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for arm, runs in arms.items():
        by_groups = [_against_groups(run) for run in runs]
        by_time = [_against_time(run) for run in runs]
        _band(axes[0], by_groups, _colour(arms, arm), arm)
        _band(axes[1], by_time, _colour(arms, arm), arm)
        _band(axes[2], [series(run, learner_value("entropy")) for run in runs], _colour(arms, arm), arm)
    axes[0].set_title("Right answers in training, by fresh groups")
    axes[0].set_xlabel("fresh groups generated")
    axes[1].set_title("The same, by training time")
    axes[1].set_xlabel("seconds, first step left out")
    axes[2].set_title("Entropy (mean -log p of trained tokens), nats")
    axes[2].set_xlabel("step")
    return _finish(figure, axes)


def _replay(replays: Arms, arms: Arms) -> Figure:
    figure, axes = plt.subplots(2, 3, figsize=(14, 7.4), layout="constrained")
    panels: list[tuple[str, Callable[[Mapping[str, Any]], float | None]]] = [
        ("Acceptance of scanned groups", step_value("acceptance")),
        ("Groups scanned in a step", lambda step: step.get("scanned") or None),
        ("Groups replayed in a step", step_value("replay_groups")),
        ("KL of replayed groups (k3)", lambda step: step["learner"].get("replay_kl") or None),
        ("Headroom of replayed groups", step_value("headroom_mean")),
        ("Distinct ages replayed in a step", lambda step: step.get("distinct_ages") or None),
    ]
    for ax, (title, value) in zip(axes.flat, panels, strict=True):
        for arm, runs in replays.items():
            _band(ax, [series(run, value) for run in runs], _colour(arms, arm), arm)
        ax.set_title(title)
        ax.set_xlabel("step")
        if "KL" in title and ax.has_data():
            ax.set_yscale("log")
    return _finish(figure, axes.flat)


def _ages(replays: Arms, arms: Arms) -> Figure:
    columns = 3  # as wide as the other pictures, however few arms replay
    rows = -(-len(replays) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(14 / 3 * columns, 3.1 * rows), layout="constrained", squeeze=False, sharex=True
    )
    highest = max(max(run.ages, default=1) for runs in replays.values() for run in runs)
    for ax in axes.flat[len(replays) :]:
        ax.set_axis_off()
    for ax, (arm, runs) in zip(axes.flat, replays.items(), strict=False):
        total = sum((run.ages for run in runs), start=type(runs[0].ages)())
        x = np.arange(1, highest + 1)
        share = np.array([total.get(int(age), 0) for age in x]) / max(total.total(), 1)
        ax.bar(x, share, color=_colour(arms, arm), width=0.85)
        ax.set_title(arm)
        ax.set_xlabel("age of replayed groups, versions")
        ax.set_ylabel("share")
        ax.set_xlim(0.4, highest + 0.6)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _what_if(scans: Arms, arms: Arms) -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained")
    for arm, runs in scans.items():
        colour = _colour(arms, arm)
        for ax, key in zip(axes, ("what_if_tau", "what_if_kl"), strict=True):
            values: dict[float, list[float]] = defaultdict(list)
            for step in (step for run in runs for step in run.steps):
                for factor, value in (step.get(key) or {}).items():
                    values[float(factor)].append(value)
            points = sorted((factor, float(np.mean(v))) for factor, v in values.items())
            ax.plot([f for f, _ in points], [v for _, v in points], "o-", color=colour, label=arm)
            ax.set_xscale("log")
            ax.set_xlabel("tau, as a multiple of the run's")
    axes[0].set_title("What another gate would have let in")
    axes[0].set_ylim(0, 1.02)
    axes[1].set_title("Mean KL of what it would have let in")
    axes[1].set_yscale("log")
    return _finish(figure, axes)


def _counterfactual(arms: Arms) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for ax, key, title in zip(
        axes, ("headroom", "drift", "age"), ("Headroom", "Drift", "Age, in versions"), strict=True
    ):
        for arm, runs in arms.items():
            if not any(_has_counterfactual(run) for run in runs):
                continue
            for side, style in (("picked", "-"), ("naive", ":")):
                lines = [series(run, lambda s, side=side: counterfactual(s, side, key)) for run in runs]  # noqa: B023
                _band(ax, lines, _colour(arms, arm), f"{arm}: {side}", style)
        ax.set_title(f"{title}: picked, and what naive would have")
        ax.set_xlabel("step")
        if key == "drift" and ax.has_data():
            ax.set_yscale("log")
    return _finish(figure, axes)


def _has_counterfactual(run: RunFigures) -> bool:
    return any(step.get("counterfactual") for step in run.steps)


def _against_groups(run: RunFigures) -> list[tuple[float, float]]:
    return [(s["groups_generated"], s["correct_share"]) for s in run.steps if s.get("correct_share") is not None]


def _against_time(run: RunFigures) -> list[tuple[float, float]]:
    seconds = np.cumsum([0.0, *(step_seconds(s) or 0.0 for s in run.steps[1:])])
    shares = [step.get("correct_share") for step in run.steps]
    return [(float(t), share) for t, share in zip(seconds, shares, strict=True) if share is not None]


def _band(ax: Axes, lines: Sequence[Sequence[tuple[float, float]]], colour: str, label: str, style: str = "-") -> None:
    """The mean of several smoothed lines over the part of the axis that all of them cover, and their range."""
    lines = [line for line in lines if len(line) > 1]
    if not lines:
        return
    low, high = max(line[0][0] for line in lines), min(line[-1][0] for line in lines)
    if high <= low:
        return
    x = np.linspace(low, high, 200)
    rows = []
    for line in lines:
        at, values = np.array(line, float).T
        rows.append(np.interp(x, at, _smooth(values)))
    y = np.array(rows)
    ax.plot(x, y.mean(0), style, color=colour, label=label, linewidth=1.7)
    if len(rows) > 1:
        ax.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.15, linewidth=0)


def _smooth(values: np.ndarray) -> np.ndarray:
    half = len(values) // (2 * WINDOW)
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])


def _finish(figure: Figure, axes: Any) -> Figure:
    """Grids, and one legend for all panels."""
    handles: dict[str, Any] = {}
    for ax in axes:
        ax.grid(True, axis="y")
        ax.set_axisbelow(True)
        if ax.get_xlabel() == "step":
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if not ax.has_data():
            ax.text(0.5, 0.5, "not measured", ha="center", va="center", color=GREY, transform=ax.transAxes)
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 6), fontsize=9)
    return figure


def _colour(arms: Arms, arm: str) -> str:
    return COLOURS[list(arms).index(arm) % len(COLOURS)]


def _over_seeds(runs: Sequence[RunFigures], key: str) -> float | None:
    interval = mean_of([v for run in runs if (v := run.scalars.get(key)) is not None])
    return None if interval is None else interval.value
