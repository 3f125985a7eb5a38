"""One frame of `headrace top`: the four metrics, curves, the scatter in characters, actors, notices. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from cli.glance import Glance, left, spoken_time
from cli.run.progress import DASH, clock, number, percent, version
from cli.run.view import tokens_per_s

BARS = "▁▂▃▄▅▆▇█"
RECENT = 10  # steps that a figure is averaged over
HIGH = 12  # lines of the scatter
DOTS = "·○●"  # not scanned last, scanned in vain, replayed
NOTICES = 3
ACCENT = "cyan"


def frame(glance: Glance, width: int, note: str = "") -> Group:
    """Everything, for a terminal of `width` columns, 80 or more. `note` says that the figures are not of now."""
    wide, curve = (60, 24) if width >= 116 else (38, 12)  # characters of the scatter, and of a curve
    parts: list[Any] = [_head(glance, curve), _state(glance, note), Text(), _metrics(glance, 2 * curve), Text()]
    side = Table.grid(padding=(0, 2))
    side.add_row(_scatter(glance, wide), _figures(glance, curve))
    parts += [side, Text(), _actors(glance)]
    parts += _notices(glance)
    return Group(*parts)


def sparkline(values: Sequence[float | None], low: float | None = None, high: float | None = None) -> str:
    """A character per value; a gap where there is none. The range is the values' own unless it is given."""
    there = [v for v in values if v is not None]
    if not there:
        return ""
    bottom = min(there) if low is None else low
    top = max(there) if high is None else high
    scale = (len(BARS) - 1) / (top - bottom) if top > bottom else 0.0
    return "".join(" " if v is None else BARS[round((min(max(v, bottom), top) - bottom) * scale)] for v in values)


def scatter(
    headroom: Sequence[float], drift: Sequence[float | None], mark: Sequence[int], tau: float | None, wide: int
) -> list[str]:
    """HIGH lines of `wide` characters: Drift (log) to the right, Headroom upwards, the gate a column of bars.

    The first column holds the groups whose Drift was never measured. Where several fall together the most telling one
    shows.
    """
    logs = [math.log10(d) for d in [*drift, tau] if d is not None and d > 0]
    low, high = (min(logs) - 0.1, max(logs) + 0.1) if logs else (-4.0, 0.0)
    cells = [[" "] * wide for _ in range(HIGH)]

    def place(d: float) -> int:
        share = (math.log10(d) - low) / (high - low) if d > 0 else 0.0
        return 2 + min(wide - 3, max(0, int(share * (wide - 2))))

    for line in cells:
        line[1] = "│"
        if tau is not None and tau > 0:
            line[place(tau)] = "┊"
    for h, d, m in sorted(zip(headroom, drift, mark, strict=True), key=lambda point: point[2]):
        x = 0 if d is None else place(d)
        cells[HIGH - 1 - min(HIGH - 1, max(0, int(h * HIGH)))][x] = DOTS[m]
    return ["".join(line) for line in cells]


def _head(glance: Glance, bar_width: int) -> Table:
    steps = glance.steps
    grid = _grid(5)
    name = Text.assemble(("headrace ", "bold"), (glance.name, f"bold {ACCENT}"))
    done = f"{glance.step} of {steps} steps" if steps else f"step {glance.step}"
    bar = ProgressBar(total=steps or 1, completed=min(glance.step, steps or 1), width=bar_width, complete_style=ACCENT)
    seconds = left(glance)
    rest = f"{clock(seconds)} left" if seconds and not glance.finished else ""
    grid.add_row(name, done, bar, rest, f"weights {glance.version or DASH}")
    return grid


def _state(glance: Glance, note: str) -> Text:
    if note:
        return Text(note, style="bold")
    if glance.finished:
        return Text("The run has finished.", style="bold")
    if not glance.waiting_for:
        return Text("")
    since = f", since {clock(glance.waiting_s)}" if glance.waiting_s >= 2 else ""
    return Text(f"Replay waits for {glance.waiting_for}{since}.", style="dim")


def _metrics(glance: Glance, curve: int) -> Table:
    c = glance.columns
    idle = [_ratio(w, s) for w, s in zip(c.get("wait_s", []), c.get("step_s", []), strict=True)]
    share = _ratio(_mean(c.get("wait_s", [])), _mean(c.get("step_s", [])))
    table = _grid(4)
    gate = "no gate" if glance.tau is None else f"τ {glance.tau:g}"
    rows = [
        ("learner idle", percent(share), idle, (0, 1), f"last {RECENT} steps"),
        ("acceptance", percent(_mean(c.get("acceptance", []))), c.get("acceptance", []), (0, 1), gate),
        ("lag", number(_mean(c.get("lag_mean", [])), 2), c.get("lag_mean", []), (0, None), "versions"),
        ("replay KL", _small(_mean(c.get("replay_kl", []))), c.get("replay_kl", []), (0, None), "flat is healthy"),
        ("engine gap", _small(_last(c.get("engine_gap", []))), c.get("engine_gap", []), (0, None), _gap(glance)),
    ]
    for name, value, values, (low, high), note in rows:
        table.add_row(
            Text(name, style="dim"),
            Text(value, style="bold", justify="right"),
            Text(sparkline(values[-curve:], low, high), style=ACCENT),
            Text(note, style="dim"),
        )
    return table


def _scatter(glance: Glance, wide: int) -> Table:
    groups = glance.groups
    table = _grid(1)
    if not groups.get("headroom"):
        empty = "no group is stored yet" if not glance.buffer else "the buffer is too large to be drawn here"
        table.add_row(Text(f"Headroom against Drift: {empty}", style="dim"))
        return table
    lines = scatter(groups["headroom"], groups["drift"], groups["mark"], glance.tau, wide)
    for i, line in enumerate(lines):
        label = {0: "1.0 ", HIGH // 2: "0.5 ", HIGH - 1: "0.0 "}.get(i, "    ")
        text = Text(label, style="dim")
        for character in line:
            text.append(
                character, style={"●": f"bold {ACCENT}", "┊": ACCENT, "│": "dim", "·": "dim"}.get(character, "")
            )
        table.add_row(text)
    table.add_row(Text("    Headroom over Drift, ● replayed, ┊ τ", style="dim"))
    return table


def _figures(glance: Glance, curve: int) -> Table:
    c = glance.columns
    table = _grid(3)
    ems = [e["em"] for e in glance.evals if e.get("em") is not None]
    em = f"{100 * ems[0]:.1f} → {percent(ems[-1])}" if len(ems) > 1 else percent(_last(ems))
    rows = [
        ("reward", number(_mean(c.get("reward_mean", []))), sparkline(c.get("reward_mean", [])[-curve:])),
        ("held-out EM", em, sparkline(ems[-curve:])),
        ("replay age", number(_mean(c.get("age_mean", [])), 1), sparkline(c.get("age_mean", [])[-curve:], 0)),
        ("drift", _small(_mean(c.get("drift_mean", []))), sparkline(c.get("drift_mean", [])[-curve:], 0)),
        ("step", f"{number(_mean(c.get('seconds', [])), 2)} s", sparkline(c.get("seconds", [])[-curve:], 0)),
        ("tokens/s", number(_rate(c), 0), sparkline(c.get("tokens_per_s", [])[-curve:], 0)),
        ("buffer", f"{glance.buffer} groups", ""),
        ("fresh", f"{glance.fresh} groups", ""),
        ("tasks", f"{glance.running} running", ""),
    ]
    for name, value, line in rows:
        table.add_row(Text(name, style="dim"), Text(value), Text(line, style=ACCENT))
    return table


def _actors(glance: Glance) -> Table:
    table = Table("actor", "state", "weights", "groups", "tokens/s", box=box.SIMPLE_HEAD, padding=(0, 1))
    for actor in glance.actors[:8]:
        table.add_row(
            Text(str(actor["id"])),
            str(actor.get("state", DASH)),
            version(actor.get("version")),
            str(actor.get("groups_running", DASH)),
            number(actor.get("tokens_per_s"), 0),
        )
    if len(glance.actors) > 8:
        table.add_row(f"and {len(glance.actors) - 8} more", *[""] * 4)
    if not glance.actors:
        table.add_row("none is alive", *[""] * 4)
    return table


def _notices(glance: Glance) -> list[Any]:
    if not glance.notices:
        return []
    lines: list[Any] = [Rule(style="dim")]
    for notice in glance.notices[-NOTICES:]:
        said = ", ".join(filter(None, (notice["kind"], notice["who"])))
        text = f": {notice['text']}" if notice["text"] else ""
        lines.append(Text.assemble((f"{spoken_time(notice['time'])} ", "dim"), f"{said}{text}"))
    return lines


def _grid(columns: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    for _ in range(columns):
        grid.add_column(no_wrap=True, overflow="crop")
    return grid


def _gap(glance: Glance) -> str:
    """Of the limit that the learner measures it by; a tenth of tau, or of its square."""
    gap, limit = (_last(glance.columns.get(key, [])) for key in ("engine_gap", "engine_gap_limit"))
    if gap is None or not limit or not glance.tau:
        return ""
    return f"{'reaches' if gap >= limit else 'below'} {limit:.2g}"


def _small(value: float | None) -> str:
    return DASH if value is None else f"{value:.2g}"


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _rate(columns: Mapping[str, Sequence[float | None]]) -> float | None:
    recent = (columns.get(key, [])[-RECENT:] for key in ("tokens_per_s", "seconds"))
    return tokens_per_s({"tokens_per_s": rate, "seconds": seconds} for rate, seconds in zip(*recent, strict=False))


def _mean(values: Sequence[float | None]) -> float | None:
    there = [v for v in values[-RECENT:] if v is not None]
    return sum(there) / len(there) if there else None


def _last(values: Sequence[float | None]) -> float | None:
    return next((v for v in reversed(values) if v is not None), None)
