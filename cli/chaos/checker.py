"""Judges a run by its durable log alone: the append-only file of its Redis, and config.toml of its folder."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cli.chaos.aof import AppendOnlyFile
from cli.chaos.log import Added, Dropped, Fact, Put, Removed, facts
from cli.chaos.rules import Rule
from cli.chaos.rules.batches import BatchesObeyTheMethod
from cli.chaos.rules.steps import TrainedOnce
from cli.chaos.rules.tasks import EveryTaskEnds
from cli.chaos.rules.versions import VersionsGrow
from cli.run.local_redis import FOLDER
from shared.config import Config
from shared.errors import UserError


@dataclass(frozen=True)
class Verdict:
    """`broken`: a sentence for each breach of a rule. `counts`: what the log holds, by name.

    `finished`: the run said that it was at its last step. `short`: steps of the run that the log does not hold.
    """

    broken: list[str]
    counts: dict[str, int]
    finished: bool
    short: int

    @property
    def passed(self) -> bool:
        """Every rule held, to the end of the run."""
        return self.finished and not self.broken and not self.short

    @property
    def sentence(self) -> str:
        """For a log in which no rule is broken."""
        kept = "The durable log keeps every rule"
        if self.passed:
            return f"{kept}."
        steps = self.counts["steps"]
        return f"{kept}, but the run is not at its end: the log holds {steps} of {steps + self.short} steps."


def check_run(config: Config) -> Verdict:
    """The verdict on a run whose server is down or idle. Raises UserError where its history is not whole."""
    log = AppendOnlyFile(config.run_dir / FOLDER)
    verdict = check(config, facts(log.transactions(), config.run.name))
    if not verdict.counts["attempts"]:
        raise UserError(
            f"the log in {config.run_dir / FOLDER} says nothing of run {config.run.name!r}: no task is in it."
        )
    return replace(verdict, counts=verdict.counts | {"bytes_cut_off": log.cut_off})


def check(config: Config, log: Iterable[list[Fact]]) -> Verdict:
    """The verdict on a log, transaction after transaction."""
    rules: list[Rule] = [
        EveryTaskEnds(config),
        TrainedOnce(config),
        VersionsGrow(config),
        BatchesObeyTheMethod(config),
    ]
    dead, finished = 0, False
    for transaction in log:
        for fact in sorted(transaction, key=_place):
            match fact:
                case Added("events", _, {"kind": "finished", "step": int(step)}):
                    finished |= step >= config.run.steps
                case Added("dead"):
                    dead += 1
            for rule in rules:
                rule.see(fact)
    for rule in rules:
        rule.end(finished)
    counts = {name: count for rule in rules for name, count in rule.counts.items()}
    # a step whose word a dying server took with it is in the weights, and in no log
    short = config.run.steps - counts["steps"] - counts["steps_untold"]
    return Verdict([text for rule in rules for text in rule.broken], counts | {"dead_letters": dead}, finished, short)


def _place(fact: Fact) -> int:
    """In its transaction: what was acknowledged caused the rest, and messages rest on the tables as they are then.

    The log has commands as they were queued, messages before the tables' changes.
    """
    return 0 if isinstance(fact, Removed) else 1 if isinstance(fact, Put | Dropped) else 2
