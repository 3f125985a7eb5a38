"""Versions only grow: those that are published, replay's own, and the one each actor has in force.

Within a lineage numbers go up one by one, and one version has one content. A new lineage begins at a checkpoint.
"""

from cli.chaos.log import Added, Counted, Fact
from shared.config import Config
from shared.messages import Checkpointed, Hello, WeightsNotice
from shared.versions import Version


class VersionsGrow:
    """See the module."""

    def __init__(self, config: Config) -> None:
        self.broken: list[str] = []
        self.counts = {"versions": 0, "lineages": 0}
        self._newest: Version | None = None
        self._gap: tuple[Version, Version] | None = None  # published one behind the other, and not explained yet
        self._digests: dict[Version, str] = {}
        self._saved = {0}
        self._began: dict[int, int] = {}  # lineage -> its first number
        self._replay: tuple[int, Version | None] = (0, None)
        self._actors: dict[str, Version] = {}

    def see(self, fact: Fact) -> None:
        """The next fact."""
        match fact:
            case Added("weights", _, WeightsNotice() as notice):
                self._published(notice)
            case Added("results", _, Checkpointed() as saved):
                self._saved.add(saved.step)
            case Added("results", _, Hello() as hello):
                self._began.setdefault(hello.version.lineage, hello.version.number)
                if self._gap is not None and hello.version == self._gap[1]:
                    self._gap = None  # the learner says where it is: the server has lost those between
            case Counted(counters):
                self._at(counters["step"], Version(*counters["version"]) if counters["version"] else None)
            case Added("events", _, {"kind": "swap", "actor": str(actor), "version": str(version)}):
                self._swapped(actor, Version(*map(int, version.split("."))))

    def end(self, finished: bool) -> None:
        """Where the lineages began; a checkpoint may be told of behind the first word of the life that found it."""
        self._one_is_missing()
        self.counts |= {"versions": len(self._digests), "lineages": len(self._began)}
        for lineage, number in self._began.items():
            if number not in self._saved:
                self.broken.append(f"lineage {lineage} begins at step {number}, of which there is no checkpoint.")

    def _published(self, notice: WeightsNotice) -> None:
        version, newest = notice.version, self._newest
        if version != newest:
            self._one_is_missing()
        if self._digests.setdefault(version, notice.digest) != notice.digest:
            self.broken.append(f"version {version} was published with two different contents.")
        if newest is not None and version < newest:
            self.broken.append(f"version {version} was published behind version {newest}.")
        elif newest is not None and version.lineage == newest.lineage and version.number > newest.number + 1:
            self._gap = newest, version
        self._newest = max(newest or version, version)

    def _one_is_missing(self) -> None:
        if self._gap is not None:
            before, version = self._gap
            self.broken.append(f"version {version} was published behind version {before}: one is missing.")
        self._gap = None

    def _at(self, step: int, version: Version | None) -> None:
        before, known = self._replay
        if step < before:
            self.broken.append(f"replay went back from step {before} to step {step}.")
        if known is not None and (version is None or version < known):
            self.broken.append(f"replay went back from version {known} to version {version}.")
        self._replay = step, version

    def _swapped(self, actor: str, version: Version) -> None:
        before = self._actors.get(actor)
        if before is not None and version < before:
            self.broken.append(f"{actor} went from version {before} to version {version}.")
        self._actors[actor] = version
