"""curves.png: six panels that say whether a run learned, and whether replay and asynchrony behaved."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from cli.run.summary import last_of_each_step

Records = Sequence[dict[str, Any]]
INK, GREY = "#1f2933", "#9aa5b1"
BLUE, ORANGE, GREEN, RED, VIOLET = "#2563eb", "#ea580c", "#16a34a", "#dc2626", "#7c3aed"
PARTS = (
    ("wait_s", "waiting", GREY),
    ("scan_s", "scanning", ORANGE),
    ("reference_s", "reference", VIOLET),
    ("train_s", "training", BLUE),
    ("publish_s", "publishing", GREEN),
    ("checkpoint_s", "checkpoint", RED),
)
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "grid.color": "#e4e7eb",
}


def draw(records: Records, path: Path, name: str) -> None:
    """Write the picture; a panel whose figures were never measured says so."""
    steps = last_of_each_step(records)
    evals = sorted((r for r in records if r["kind"] == "eval"), key=lambda r: r["round"])
    with matplotlib.rc_context(STYLE):
        figure, axes = plt.subplots(2, 3, figsize=(13, 7), layout="constrained")
        figure.suptitle(name, x=0.01, ha="left", fontsize=12, fontweight="bold")
        panels: list[Callable[[Axes], None]] = [
            lambda ax: _em(ax, evals, steps),
            lambda ax: _reward(ax, steps),
            lambda ax: _gate(ax, steps),
            lambda ax: _drift(ax, steps),
            lambda ax: _lag(ax, steps),
            lambda ax: _time(ax, steps),
        ]
        for ax, panel in zip(axes.flat, panels, strict=True):
            panel(ax)
            ax.grid(True, axis="y")
            ax.set_axisbelow(True)
            ax.set_xlabel("step")
            if not ax.has_data():
                ax.text(0.5, 0.5, "not measured", ha="center", va="center", color=GREY, transform=ax.transAxes)
            elif ax.get_legend_handles_labels()[0]:
                _make_room(ax)
                ax.legend(loc="upper left", ncols=2)
        figure.savefig(path, dpi=120)
        plt.close(figure)


def _make_room(ax: Axes) -> None:
    """Space for the legend above the curves."""
    low, high = ax.get_ylim()
    if ax.get_yscale() == "log":
        ax.set_ylim(low, high * (high / low) ** 0.25)
    else:
        ax.set_ylim(0, 1.3 * high)


def _em(ax: Axes, evals: Records, steps: Records) -> None:
    ax.set_title("Exact match, %")
    _line(ax, steps, "correct_share", GREY, "sampled, training", scale=100)
    scored = [e for e in evals if e["em"] is not None]  # a round whose retriever was away may have scored nothing
    if scored:
        ax.plot([e["round"] for e in scored], [100 * e["em"] for e in scored], "o-", color=BLUE, label="held-out")


def _reward(ax: Axes, steps: Records) -> None:
    ax.set_title("Reward in training")
    _line(ax, steps, "reward_mean", GREEN, None)


def _gate(ax: Axes, steps: Records) -> None:
    ax.set_title("Replay: groups of a step")
    _line(ax, steps, "scanned", GREY, "scanned")
    _line(ax, steps, "accepted", ORANGE, "accepted")
    _line(ax, steps, "replay_groups", BLUE, "replayed")
    _line(ax, steps, "mixed_groups", GREEN, "fresh with mixed outcome", raw=False)


def _drift(ax: Axes, steps: Records) -> None:
    ax.set_title("How far the policy is from the data")
    learner = [{"step": s["step"], **s.get("learner", {})} for s in steps]
    _line(ax, learner, "replay_kl", VIOLET, "KL of replayed groups")
    _line(ax, steps, "drift_mean", ORANGE, "drift of replayed groups")
    _line(ax, steps, "headroom_mean", BLUE, "headroom of replayed groups")
    if any(np.any(np.asarray(line.get_ydata()) > 0) for line in ax.get_lines()):
        ax.set_yscale("log")


def _lag(ax: Axes, steps: Records) -> None:
    ax.set_title("Versions between sampling and training")
    _line(ax, steps, "lag_mean", BLUE, "lag of fresh groups")
    _line(ax, steps, "age_mean", ORANGE, "age of replayed groups")


def _time(ax: Axes, steps: Records) -> None:
    ax.set_title("The learner's time, s a step")
    measured = [s for s in steps if s.get("learner")]
    if measured:
        x = [s["step"] for s in measured]
        parts = [_smooth(np.array([s["learner"].get(key, 0.0) for s in measured])) for key, _, _ in PARTS]
        ax.stackplot(x, parts, labels=[label for _, label, _ in PARTS], colors=[c for _, _, c in PARTS], alpha=0.85)


def _line(
    ax: Axes, rows: Records, key: str, colour: str, label: str | None, scale: float = 1, raw: bool = True
) -> None:
    """A smoothed line over the faint raw values."""
    points = [(r["step"], scale * r[key]) for r in rows if isinstance(r.get(key), int | float) and np.isfinite(r[key])]
    if not points:
        return
    x, y = np.array(points, float).T
    if raw:
        ax.plot(x, y, color=colour, alpha=0.25, linewidth=0.8)
    ax.plot(x, _smooth(y), color=colour, label=label, linewidth=1.6)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Mean over a centred window of a twentieth of the run, shorter at both ends."""
    half = len(values) // 40
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (total[high] - total[low]) / (high - low)
