"""Along one lineage of checkpoints no step is trained twice and no group is fresh twice; replay is in the ledger.

A learner that resumes at step n opens a lineage that takes the place of what was trained from n on: of each step the
last lineage counts. A step that is told twice is told in the same words; a batch given twice is the same groups.
"""

from cli.chaos.log import Added, Counted, Fact, Noted
from shared.config import Config
from shared.messages import Batch, Hello, Trained, encode


class TrainedOnce:
    """See the module."""

    def __init__(self, config: Config) -> None:
        self.broken: list[str] = []
        self.counts = {"steps": 0, "steps_again": 0, "fresh": 0, "replayed": 0, "rejected": 0, "counted_twice": 0}
        self._said: dict[tuple[int, int], bytes] = {}  # (lineage, step) -> Trained
        self._chain: dict[int, int] = {}  # step -> the lineage that trained it, as the newest weights have it
        self._begun: set[int] = set()
        self._untold: set[int] = set()  # steps that a learner said it was beyond, and whose word the server has lost
        self._batches: dict[int, Batch] = {}
        self._fresh_in: dict[str, int] = {}
        self._ledger: list[int] = []
        self._twice = 0

    def see(self, fact: Fact) -> None:
        """The next fact."""
        match fact:
            case Added("work", _, Batch() as batch):
                self._batch(batch)
            case Added("results", _, Hello() as hello):
                self._begin(hello)
            case Added("results", _, Trained() as trained):
                self._trained(trained)
            case Noted(record):
                self._note(record["step"], record["fresh"], record["replay"])
            case Counted(counters):
                self._twice = counters["trained_twice"]

    def end(self, finished: bool) -> None:
        """Every step up to the last is in the weights, by the word of it or by that of a learner that was beyond it."""
        self.counts["steps"] = len(self._chain)
        self.counts["counted_twice"] = self._twice
        untold = self._untold - set(self._ledger)  # what replay has noted it was told
        self.counts["steps_untold"] = len(untold)
        for step in sorted(set(range(max(self._chain, default=0))) - set(self._chain) - untold):
            self.broken.append(f"step {step} was trained by no lineage that the newest weights come from.")
        if self._twice:
            self.broken.append(f"replay itself counts {self._twice} groups that were trained twice as fresh ones.")

    def _batch(self, batch: Batch) -> None:
        known = self._batches.setdefault(batch.step, batch)
        if (known.replay, known.fresh) != (batch.replay, batch.fresh):
            self.broken.append(f"step {batch.step} was given two different batches.")
        for ids in (batch.fresh, batch.replay):
            if twice := sorted(id for id in set(ids) if ids.count(id) > 1):
                self.broken.append(f"the batch of step {batch.step} holds {twice[0]} twice.")
        for id in batch.fresh:
            first = self._fresh_in.setdefault(id, batch.step)
            if first != batch.step:
                self.broken.append(f"group {id} is fresh in step {first} and again in step {batch.step}.")
        if known is batch:
            self.counts["fresh"] += len(batch.fresh)
            self.counts["replayed"] += len(batch.replay)

    def _begin(self, hello: Hello) -> None:
        lineage, step = hello.version
        if lineage not in self._begun:
            self._begun.add(lineage)
            for later in [s for s in self._chain if s >= step]:
                del self._chain[later]
            self._untold = {s for s in self._untold if s < step}
        self._untold |= set(range(max(self._chain, default=-1) + 1, step))

    def _trained(self, trained: Trained) -> None:
        lineage, step = trained.version.lineage, trained.step
        said = encode(trained)
        if self._said.setdefault((lineage, step), said) != said:
            self.broken.append(f"step {step} was trained twice in lineage {lineage}.")
            return
        if step not in self._batches:
            self.broken.append(f"step {step} was trained, and no batch was sent for it.")
        if self._chain.get(step) == lineage:
            return  # told again
        self.counts["steps_again"] += any(s == step and other != lineage for other, s in self._said)
        self.counts["rejected"] += len(trained.rejected)
        if self._chain and step <= max(self._chain):
            self.broken.append(f"step {step} was trained again in lineage {lineage}, behind step {max(self._chain)}.")
        self._chain[step] = lineage
        self._untold.discard(step)

    def _note(self, step: int, fresh: list[str], replay: list[str]) -> None:
        if self._ledger and step <= self._ledger[-1]:
            self.broken.append(f"the ledger counts step {step} behind step {self._ledger[-1]}.")
        self._ledger.append(step)
        if (batch := self._batches.get(step)) is None:
            return
        for kind, noted, sent in (("fresh", fresh, batch.fresh), ("replayed", replay, batch.replay)):
            if noted != sent:
                self.broken.append(f"the ledger's {kind} groups of step {step} are not those of its batch.")
