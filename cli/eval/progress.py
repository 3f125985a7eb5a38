"""How far an evaluation is: a bar on a terminal, a line now and then elsewhere. On stderr: stdout has the result."""

import time
from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from cli.eval.judged import judged
from cli.run.progress import clock
from shared.evaluation.records import Answered

LINE_EVERY_S = 10.0


class Progress:
    """Shows questions answered, time left, and the mean so far."""

    def __init__(self, total: int, stream: IO[str], rewards: bool = False) -> None:
        """rewards: scores are rewards of a function, which may be any numbers."""
        self._total, self._stream, self._rewards = total, stream, rewards
        console = Console(file=stream, markup=False)
        self._bar: Bar | None = None
        self._phase, self._line_at = "starting", float("-inf")
        self._first: tuple[float, int] | None = None  # when this session's first answer came, and how many there were
        self._done = -1
        self._sum, self._scored = 0.0, 0
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self._bar = Bar(*columns, console=console)
            self._task = self._bar.add_task(self._phase, total=total, left="")
            self._bar.start()

    def phase(self, what: str) -> None:
        """What goes on before the first answer."""
        self._phase = what
        if self._bar is None:
            self._print(what)

    def note(self, sentence: str) -> None:
        """Something a person should read."""
        if self._bar is not None:
            self._bar.console.print(sentence, style="yellow", highlight=False)
        else:
            self._print(sentence)

    def show(self, new: Sequence[Answered]) -> None:
        """Call it often, with what came since the last time; it shows what is worth showing."""
        done, now = max(self._done, 0) + len(new), time.monotonic()
        if done > self._done >= 0:
            self._phase = "answering"
            self._first = self._first or (now, done)
        changed, self._done = done != self._done, done
        for score in (score for answered in map(judged, new) for score in answered.scores if score is not None):
            self._sum, self._scored = self._sum + score, self._scored + 1
        mean = self._sum / self._scored if self._scored else 0.0
        shown = f"{mean:.3g}" if self._rewards else f"{100 * mean:.1f} %"
        so_far = f"mean so far {shown}" if self._scored else ""
        left = self._left(now)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=self._phase, left=f"{left}  {so_far}")
        elif changed and done and (now - self._line_at >= LINE_EVERY_S or done == self._total):
            self._line_at = now
            self._print(", ".join(filter(None, [f"{done}/{self._total} questions", left, so_far])))

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self._bar is not None:
            self._bar.stop()

    def _left(self, now: float) -> str:
        """From the pace since this session's first answer: what came before it was loading."""
        if self._first is None or not self._first[1] < self._done < self._total:
            return ""
        began, before = self._first
        return f"{clock((now - began) / (self._done - before) * (self._total - self._done))} left"

    def _print(self, text: str) -> None:
        print(f"eval: {text}", file=self._stream, flush=True)
