"""What must be true of a durable log, a file per rule. Each states it again from docs/method.md and docs/design.md,
without the code that it checks."""

from typing import Protocol

from cli.chaos.log import Fact


class Rule(Protocol):
    """Reads the facts in order, of each transaction the acknowledgements first.

    `broken`: a sentence for each breach; `counts`: figures for the report.
    """

    broken: list[str]
    counts: dict[str, int]

    def see(self, fact: Fact) -> None:
        """The next fact."""
        ...

    def end(self, finished: bool) -> None:
        """The log is over. `finished`: so is the run, and nothing may be left open."""
        ...
