"""What a person sees while a study runs: which run of how many, its steps, and how long all of it will take."""

import time
from contextlib import suppress
from typing import IO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.compare.study import Run, Study
from cli.run.progress import clock, line
from cli.run.view import RunView

BAR_WIDTH = 40
LINE_EVERY_S = 20.0


class StudyScreen:
    """A `cli.run.progress.Screen` for the runs of a study: bars on a terminal, a line now and then elsewhere."""

    def __init__(self, study: Study, stream: IO[str], already: dict[str, float]) -> None:
        """already: run name -> seconds that it took, of the runs that are made."""
        self._study, self._stream = study, stream
        self._took = dict(already)
        self._run: Run | None = None
        self._began = self._shown = time.monotonic()
        self._phase = ""
        self._view: RunView | None = None
        console = Console(file=stream, markup=False)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def begin(self, run: Run) -> None:
        """A run starts now."""
        self._run, self._began, self._view, self._phase = run, time.monotonic(), None, "starting"
        if self._live is not None:
            self._live.start()
        self._draw(force=True)

    def evaluate(self, text: str) -> None:
        """The evaluation begins, which shows its own progress."""
        self._phase = text
        self._draw(force=True)
        if self._live is not None:
            self._live.stop()

    def end(self, run: Run) -> None:
        """The run is made."""
        self._took[run.name] = time.monotonic() - self._began
        self._run = None
        if self._live is not None:
            self._live.stop()
        else:
            self._say(f"'{run.arm}' seed {run.seed} took {clock(self._took[run.name])}")

    def show(self, view: RunView) -> None:
        """Called about twice a second while a run trains."""
        self._view, self._phase = view, ""
        self._draw()

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._live.stop()

    def seconds_left(self) -> float | None:
        """From the seconds per fresh group of the runs that are made, or of this one; None before either is known."""
        groups = {r.name: r.config.run.steps * r.config.learner.batch for r in self._study.runs}
        pace, now = pace_of(groups, self._took), 0.0
        if self._run is not None and self._view is not None and self._view.trained > 0:
            elapsed, steps = time.monotonic() - self._began, self._run.config.run.steps
            step_s = self._view.recent_mean("seconds") or 0.0
            whole = elapsed + step_s * (steps - self._view.trained)
            pace = pace or whole / groups[self._run.name]
            now = min(elapsed, whole)
        left = sum(n for name, n in groups.items() if name not in self._took)
        return None if pace is None else max(pace * left - now, 0.0)

    def _head(self) -> str:
        left = self.seconds_left()
        text = f"{len(self._took)} of {len(self._study.runs)} runs made"
        return text + (f", about {clock(left)} left" if left else "")

    def _draw(self, force: bool = False) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif force or time.monotonic() - self._shown > LINE_EVERY_S:
            self._shown = time.monotonic()
            self._say(self._current())

    def _say(self, text: str) -> None:
        with suppress(BrokenPipeError):  # the study goes on, whoever has stopped reading
            print(f"{self._head()}; {text}", file=self._stream, flush=True)

    def _current(self) -> str:
        if self._run is None:
            return ""
        head = f"'{self._run.arm}' seed {self._run.seed}: "
        if self._phase or self._view is None:
            return head + (self._phase or "starting")
        return head + line(self._view, time.time())

    def _table(self) -> Group:
        grid = Table.grid(padding=(0, 2))
        total, done = len(self._study.runs), len(self._took)
        left = self.seconds_left()
        grid.add_row(
            Text(f"study {self._study.head.name}", style="bold cyan"),
            ProgressBar(total=total, completed=done, width=BAR_WIDTH),
            Text(f"run {min(done + 1, total)} of {total}" + (f", {clock(left)} left" if left else "")),
        )
        if self._run is not None:
            steps, trained = self._run.config.run.steps, self._view.trained if self._view else 0
            grid.add_row(
                Text(f"{self._run.arm}, seed {self._run.seed}"),
                ProgressBar(total=steps, completed=trained, width=BAR_WIDTH),
                Text(f"step {trained} of {steps}"),
            )
        rows = [grid, Text(self._current(), style="dim")]
        if self._view is not None and self._view.warning:
            rows.append(Text(f"! {self._view.warning}", style="yellow"))
        return Group(*rows)


def pace_of(groups: dict[str, int], took: dict[str, float]) -> float | None:
    """Seconds of a run per fresh group, over the runs that are made; None before there is one."""
    made = [name for name in groups if name in took]
    return sum(took[name] for name in made) / sum(groups[name] for name in made) if made else None
