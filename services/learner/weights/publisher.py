"""The weights as the actors are to take them, proved by sequences of what was last trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from services.learner.groups.group import Group
from services.learner.weights import publish
from services.learner.weights.model_writer import as_written
from shared import weights
from shared.config import Config
from shared.errors import UserError
from shared.messages import WeightsNotice
from shared.versions import Version


class Publisher:
    """Writes versions of one model into the weights folder. `notice`: of the last one."""

    notice: WeightsNotice

    def __init__(self, config: Config, model: Any, companions: Mapping[str, bytes]) -> None:
        """companions: the files beside the model, by name."""
        self._dir, self._settings = config.weights_dir, config.weights
        self._model, self.companions = model, companions
        w = self._settings
        self._dtype = None if w.dtype == "model" else getattr(torch, w.dtype)
        self.canary = publish.sampled_sequences(model, w.canary_sequences, w.canary_tokens)
        publish.clear_unfinished(self._dir)

    def trained_on(self, groups: Sequence[Group]) -> None:
        """Take the next canaries from these groups, where they have any."""
        w = self._settings
        self.canary = publish.stored_sequences(groups, w.canary_sequences, w.canary_tokens) or self.canary

    def publish(self, version: Version) -> None:
        """Write the version's folder; `notice` is the caller's to send."""
        with as_written(self._model, self._dtype):
            canary = publish.canary_of(self._model, self.canary)
        self.notice = publish.publish(self._dir, version, self._model, self.companions, canary, self._dtype)

    def is_whole(self) -> bool:
        """Whether the files of the last version are still those that were written."""
        try:
            weights.verify(self._dir / self.notice.location, self.notice.digest)
        except (UserError, OSError):
            return False
        return True

    def delete_unused(self, in_use: set[Version]) -> None:
        """Delete all but the newest versions and those in use."""
        publish.delete_unused(self._dir, in_use)
