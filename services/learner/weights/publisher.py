"""The versions of one model, one after the other: which canary each gets, and which others where it is refused."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from services.learner.groups.group import Group
from services.learner.weights import version_files
from services.learner.weights.canary import canary_of, sampled_sequences, stored_sequences
from services.learner.weights.model_writer import as_written
from shared import weights
from shared.config import Config
from shared.errors import UserError
from shared.messages import WeightsNotice
from shared.settings import Weights
from shared.versions import Version

TRIES = 3  # announcements of a version that an actor refuses, after the first


def how_many(settings: Weights) -> tuple[int, int]:
    """Sequences to have at hand, of how many tokens."""
    return settings.canary_sequences * (1 + TRIES), settings.canary_tokens


class Publisher:
    """Writes versions of one model into the weights folder. `notice`: of the last one."""

    notice: WeightsNotice

    def __init__(self, config: Config, model: Any, companions: Mapping[str, bytes]) -> None:
        """companions: the files beside the model, by name."""
        self._dir, self._settings = config.weights_dir, config.weights
        self._model, self.companions = model, companions
        w = self._settings
        self._dtype = None if w.dtype == "model" else getattr(torch, w.dtype)
        self._sequences = self._sampled = sampled_sequences(model, *how_many(w))
        self._again: tuple[Version, int] | None = None  # which version was announced again, and how often
        version_files.clear_unfinished(self._dir)

    def trained_on(self, groups: Sequence[Group]) -> None:
        """Take the next canaries from these groups, where they have any; where they have few, others after those."""
        if stored := stored_sequences(groups, *how_many(self._settings)):
            self._sequences = [*stored, *self._sampled][: len(self._sampled)]

    @property
    def canary(self) -> list[list[int]]:
        """The sequences that prove the next version."""
        return self._sequences[: self._settings.canary_sequences]

    def try_again(self, refused: set[Version]) -> int:
        """Where the last version is among those that actors refuse, take other sequences: which try it is; 0: none.

        What refuses right weights by chance may take them by another; what are wrong files stay wrong.
        """
        version, count = self.notice.version, self._settings.canary_sequences
        tries = self._again[1] if self._again and self._again[0] == version else 0
        if version not in refused or tries == TRIES:
            return 0
        self._again = version, tries + 1
        self._sequences = self._sequences[count:] + self._sequences[:count]
        return tries + 1

    def publish(self, version: Version) -> None:
        """Write the version's folder; `notice` is the caller's to send."""
        with as_written(self._model, self._dtype):
            canary = canary_of(self._model, self.canary)
        self.notice = version_files.publish(self._dir, version, self._model, self.companions, canary, self._dtype)

    def is_whole(self) -> bool:
        """Whether the files of the last version are still those that were written."""
        try:
            weights.verify(self._dir / self.notice.location, self.notice.digest)
        except (UserError, OSError):
            return False
        return True

    def delete_unused(self, in_use: set[Version]) -> None:
        """Delete all but the newest versions, those in use and the one that was just announced: another life may have
        left higher numbers behind.
        """
        version_files.delete_unused(self._dir, in_use | {self.notice.version})
