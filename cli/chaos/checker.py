"""Judges a run by its durable log alone: the append-only file of its Redis, and config.toml of its folder."""

from collections.abc import Iterable
from dataclasses import dataclass

from cli.chaos.aof import transactions
from cli.chaos.log import Added, Fact, Removed, facts
from cli.chaos.rules import Rule
from cli.chaos.rules.batches import BatchesObeyTheMethod
from cli.chaos.rules.steps import TrainedOnce
from cli.chaos.rules.tasks import EveryTaskEnds
from cli.chaos.rules.versions import VersionsGrow
from cli.run.local_redis import FOLDER
from shared.config import Config


@dataclass(frozen=True)
class Verdict:
    """`broken`: a sentence for each breach of a rule. `counts`: what the log holds, by name."""

    broken: list[str]
    counts: dict[str, int]


def check_run(config: Config) -> Verdict:
    """The verdict on a run whose server is down or idle. Raises UserError where its history is not whole."""
    return check(config, facts(transactions(config.run_dir / FOLDER), config.run.name))


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
        # what was acknowledged is what caused the rest: commands are queued while it is applied
        for fact in sorted(transaction, key=lambda fact: not isinstance(fact, Removed)):
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
    return Verdict([text for rule in rules for text in rule.broken], counts | {"dead_letters": dead})
