"""What a person sees while a run runs: a live table on a terminal, one line now and then elsewhere."""

import termios
import time
from contextlib import suppress
from typing import IO, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.run.view import RunView

LINE_EVERY_S, LINE_EVERY_STEPS = 10.0, 5
SAME_EVERY_S = 60.0
BAR_WIDTH = 40
WARNING_SHOWN_S = 120.0
DASH = "–"


class Screen(Protocol):
    """Where the view is shown."""

    def show(self, view: RunView) -> None:
        """Show this state; called about twice a second."""
        ...

    def close(self) -> None:
        """Leave the last state on the screen."""
        ...


def screen_for(stream: IO[str]) -> Screen:
    """A live table where `stream` is a terminal, plain lines otherwise."""
    console = Console(file=stream, markup=False)
    return LiveScreen(console) if console.is_terminal else PlainScreen(stream)


class LiveScreen:
    """A table that is drawn over itself."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._terminal: list | None = None  # its settings before ours

    def show(self, view: RunView) -> None:
        """Draw the table."""
        if self._terminal is None:
            self._terminal = _keep_output_at_interrupts(self._live.console.file)
            self._live.start()
        self._live.update(table(view, time.time()), refresh=True)

    def close(self) -> None:
        """Leave the last table on the screen."""
        if self._terminal is not None:
            with suppress(OSError, termios.error):  # a terminal that is gone must not cost a run its artefacts
                self._live.stop()
                if self._terminal:
                    termios.tcsetattr(self._live.console.file, termios.TCSADRAIN, self._terminal)
            self._terminal = None


def _keep_output_at_interrupts(file: IO[str]) -> list:
    """Ctrl-C normally throws away what the terminal has not shown yet, and echoes itself: either garbles the table.

    Returns the settings to restore; an empty list where `file` has none.
    """
    try:
        before = termios.tcgetattr(file)
    except (termios.error, OSError, ValueError):
        return []
    ours = list(before)
    ours[3] = (ours[3] | termios.NOFLSH) & ~termios.ECHOCTL
    termios.tcsetattr(file, termios.TCSADRAIN, ours)
    return before


class PlainScreen:
    """A line every LINE_EVERY_STEPS steps or LINE_EVERY_S seconds, whichever comes first, and one per phase.

    While no step is trained and the same is waited for, every SAME_EVERY_S; a warning has a line of its own, once.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._time, self._step, self._what, self._warned = float("-inf"), -1, "", 0.0

    def show(self, view: RunView) -> None:
        """Print a line when it is time for one."""
        now, what = time.monotonic(), doing(view)
        same = (view.trained, what) == (self._step, self._what)
        due = now - self._time >= (SAME_EVERY_S if same else LINE_EVERY_S)
        due = due or view.trained - self._step >= LINE_EVERY_STEPS
        if view.warning_time > max(self._warned, view.started):  # not those of an earlier session
            self._warned = view.warning_time
            print(f"! {view.warning}", file=self._stream, flush=True)
        if due or (what != self._what and view.phase != "training"):
            self._time, self._step, self._what = now, view.trained, what
            print(line(view, time.time()), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is left open."""


def doing(view: RunView) -> str:
    """What is going on, in a few words."""
    if view.phase == "stopping":
        return "stopping every process"
    if view.waiting_for:
        return "waiting for " + ", ".join(view.waiting_for)
    if view.trained >= view.steps > 0:
        return "last evaluation and final checkpoint"
    if view.phase == "starting":
        return "rolling out the first groups" if view.ready else "starting Redis"
    return "training"


def line(view: RunView, now: float) -> str:
    """The view in one line, without colours."""
    elapsed = clock(now - view.started)
    head = f"[{elapsed}] step {view.trained}/{view.steps}"
    if view.phase != "training" or view.waiting_for or view.trained >= view.steps:
        head += f", {doing(view)}"
    if not view.recent:
        return head
    left = view.seconds_left()
    parts = [
        f"left {clock(left)}" if left else "",
        f"reward {number(view.recent_mean('reward_mean'))}",
        f"EM {em_change(view)}",
        f"acceptance {percent(view.recent_mean('acceptance'))}",
        f"lag {number(view.recent_mean('lag_mean'), 1)}",
        f"{number(view.tokens_per_s(), 0)} tokens/s",
        f"learner idle {percent(view.idle_share())} of the last {len(view.recent)} steps",
        f"memory {gib(view.memory_bytes)}",
    ]
    return ", ".join([head, *filter(None, parts)])


def table(view: RunView, now: float) -> Group:
    """The live display."""
    rows: list = [_head(view, now), _bar(view)]
    grid = Table.grid(padding=(0, 1))
    for _ in range(3):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(no_wrap=True, min_width=10)
    for left, middle, right in zip(_policy(view), _replay(view), _system(view), strict=True):
        grid.add_row(*left, *_indented(middle), *_indented(right))
    rows += [Padding(grid, (1, 0, 0, 2)), Padding(_actors(view), (0, 0, 0, 2))]
    if view.recent:
        rows.append(Text(f"  shares and means are of the last {len(view.recent)} steps", style="dim"))
    if view.warning and now - view.warning_time < WARNING_SHOWN_S:
        rows.append(Padding(Text(f"! {view.warning}", style="yellow"), (0, 0, 0, 2)))
    return Group(*rows)


def _head(view: RunView, now: float) -> Text:
    text = Text.assemble(("headrace ", "bold"), (view.name, "bold cyan"), "  ", clock(now - view.started))
    what = doing(view)
    if what != "training":
        text.append(f"  {what}", style="yellow")
    return text


def _bar(view: RunView) -> Table:
    left = view.seconds_left()
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        Text(f"  step {view.trained}/{view.steps}"),
        ProgressBar(
            total=view.steps, completed=view.trained, width=BAR_WIDTH, pulse=not view.recent, animation_time=time.time()
        ),
        Text(f"{clock(left)} left" if left is not None and view.trained < view.steps else ""),
    )
    return grid


Cells = list[tuple[str, str]]


def _indented(cell: tuple[str, str]) -> tuple[str, str]:
    return " " + cell[0], cell[1]


def _policy(view: RunView) -> Cells:
    return [
        ("reward", number(view.recent_mean("reward_mean"))),
        ("held-out EM", em_change(view)),
        ("sampled right", percent(view.recent_mean("correct_share"))),
        ("tokens/s", number(view.tokens_per_s(), 0)),
        ("step", seconds(view.recent_mean("seconds"))),
    ]


def _replay(view: RunView) -> Cells:
    fresh, replayed = view.last.get("fresh_groups"), view.last.get("replay_groups")
    return [
        ("acceptance", percent(view.recent_mean("acceptance"))),
        ("replay + fresh", f"{replayed} + {fresh}" if fresh is not None else DASH),
        ("headroom", number(view.recent_mean("headroom_mean"))),
        ("drift", number(view.recent_mean("drift_mean"), 4)),
        ("buffer", f"{view.last['buffer_groups']} groups" if "buffer_groups" in view.last else DASH),
    ]


def _system(view: RunView) -> Cells:
    return [
        ("lag", f"{number(view.recent_mean('lag_mean'), 1)} (≤{view.last.get('lag_max', DASH)})"),
        ("replay age", number(view.recent_mean("age_mean"), 1)),
        ("learner idle", percent(view.idle_share())),
        ("memory", gib(view.memory_bytes)),
        ("memory peak", gib(view.peak_memory_bytes)),
    ]


def _actors(view: RunView) -> Text:
    if not view.actors:
        return Text("no actor is up yet", style="dim")
    shown = ", ".join(f"{_short(a['id'])} at {version(a.get('version'))}" for a in view.actors[:6])
    more = f" and {len(view.actors) - 6} more" if len(view.actors) > 6 else ""
    return Text(f"actors {len(view.actors)}: {shown}{more}", style="dim")


def _short(actor: str) -> str:
    return actor if len(actor) <= 14 else "…" + actor[-8:]


def em_change(view: RunView) -> str:
    """First and last evaluation, as percentages."""
    first, last = view.first_eval.get("em"), view.last_eval.get("em")
    if first is None:
        return DASH
    return percent(first) if view.last_eval is view.first_eval else f"{100 * first:.1f} → {percent(last)}"


def version(value: object) -> str:
    """lineage.number, from a list or a string."""
    return ".".join(map(str, value)) if isinstance(value, list | tuple) else str(value if value is not None else DASH)


def number(value: float | None, digits: int = 3) -> str:
    """A figure or a dash."""
    return DASH if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share as a percentage, or a dash."""
    return DASH if value is None else f"{100 * value:.1f} %"


def seconds(value: float | None) -> str:
    """Seconds, or a dash."""
    return DASH if value is None else f"{value:.2f} s"


def clock(value: float) -> str:
    """m:ss, or h:mm:ss."""
    whole = max(int(value), 0)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def gib(size: float) -> str:
    """Bytes in GiB, or MiB below one."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
