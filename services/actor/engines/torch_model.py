"""A transformers model as the torch engine uses it: next-token logits, scores, and weights that can be exchanged.

Everything here runs in the engine's thread.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from services.actor.engines.engine import CanaryRefused
from services.actor.engines.torch_attention import NAME as GROUPED
from services.actor.engines.torch_cache import SlotCache
from services.actor.engines.weight_files import read_verified
from shared.adapters import add_adapters, has_adapters, parameters_of
from shared.errors import UserError
from shared.logits import float32_logits
from shared.model_files import NO_CODE
from shared.settings import Learner

_LOGITS_AT_ONCE = 2**25  # places x vocabulary, of what is scored in one forward: 128 MiB


class TorchModel:
    """The model on its device, with the cache that fits it."""

    def __init__(self, directory: Path, device: str, dtype: torch.dtype, learner: Learner | None = None) -> None:
        """`learner`: says whether adapters are trained, which are then what is exchanged.

        Raises UserError where the model does not load, or attends only to a window.
        """
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                directory, dtype=dtype, attn_implementation=GROUPED, **NO_CODE
            )
        except (OSError, ValueError) as error:
            raise UserError(f"the model in {directory} does not load: {error}") from None
        if any(kind != "full_attention" for kind in getattr(model.config, "layer_types", None) or []):
            raise UserError(f"{directory}: the torch engine knows full attention only; use actor.engine = 'vllm'.")
        model = model.to(device).eval()
        if learner and learner.lora_rank:
            add_adapters(model, learner)
        self.model = model.requires_grad_(False)
        self.device, self.dtype = torch.device(device), dtype
        self.layers: int = model.config.get_text_config().num_hidden_layers
        self._short_head = self._head_is_plain()

    def new_cache(self) -> SlotCache:
        """An empty cache."""
        return SlotCache(self.layers, self.device)

    def extend(self, cache: SlotCache, first: int, starts: Sequence[int], new: Sequence[Sequence[int]]) -> torch.Tensor:
        """Feed new[i] to slot first + i, which holds starts[i] entries; logits after each last token, [rows, V]."""
        longest = max(map(len, new))
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in new], device=self.device)
        begin = torch.tensor(starts, device=self.device)
        mask = cache.window(first, begin, longest)
        positions = begin[:, None] + torch.arange(longest, device=self.device)
        last = torch.tensor([len(row) - 1 for row in new], device=self.device)
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        inputs |= {"past_key_values": cache, "use_cache": True}
        return self._logits(inputs, torch.arange(len(new), device=self.device), last)

    def score(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[list[float]]:
        """Log-probabilities at temperature 1 of tokens[start:] of each sequence; a start of 0 is taken as 1."""
        vocabulary, out = self.model.get_input_embeddings().weight.shape[0], []
        for length, alike in groupby(zip(sequences, starts, strict=True), key=lambda pair: len(pair[0])):
            run, together = list(alike), max(1, _LOGITS_AT_ONCE // (vocabulary * max(length, 1)))
            for at in range(0, len(run), together):
                out += self._scored(*zip(*run[at : at + together], strict=True))
        return out

    def read(self, directory: Path, digest: str) -> dict[str, torch.Tensor]:
        """The tensors of a published directory, on the device and of the model's types: a file that is damaged later
        does not reach the model. Outside of the engine's thread. Raises CanaryRefused where the files are not those of
        `digest`, and where names or shapes are not this model's.
        """
        ours = self._exchanged()

        def place(name: str, value: torch.Tensor) -> torch.Tensor:
            return value.to(self.device, ours[name].dtype) if name in ours else value

        with torch.inference_mode():  # as those were made that they take the place of
            state = read_verified(directory, digest, place)
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        missing, strange = set(ours) - set(state) - tied, set(state) - set(ours)
        if missing or strange:
            raise CanaryRefused(f"the weights lack {sorted(missing)[:3]} and have unknown {sorted(strange)[:3]}")
        for name, value in state.items():
            if value.shape != ours[name].shape:
                raise CanaryRefused(f"{name} has shape {tuple(value.shape)}, the model's is {tuple(ours[name].shape)}")
        return state

    def exchange(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute with these tensors, which nothing copies; returns those they take the place of."""
        ours = self._exchanged()
        old = {name: ours[name].data for name in state}
        for name, value in state.items():
            ours[name].data = value
        return old

    def _exchanged(self) -> dict[str, torch.Tensor]:
        return parameters_of(self.model) if has_adapters(self.model) else self.model.state_dict(keep_vars=True)

    def _scored(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[list[float]]:
        """Of sequences of one length, in one forward: another length would be another kernel, as padding would."""
        ids = torch.tensor(list(map(list, sequences)), device=self.device)
        places = torch.arange(ids.shape[1] - 1, device=self.device)
        rows, before = (places >= torch.tensor(starts, device=self.device)[:, None] - 1).nonzero(as_tuple=True)
        logits = self._logits({"input_ids": ids[:, :-1], "use_cache": False}, rows, before)
        scores = logits.log_softmax(-1).gather(-1, ids[rows, before + 1, None])[:, 0]
        return [scores[rows == row].tolist() for row in range(len(ids))]

    def _logits(self, inputs: dict[str, Any], rows: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Float32 at the places (rows, last), [places, V]: as the learner's, not rounded to the model's type."""
        if not self._short_head:
            return self.model(**inputs).logits[rows, last].float()
        hidden, head = self.model.base_model(**inputs).last_hidden_state[rows, last], self.model.get_output_embeddings()
        return float32_logits(hidden, head.weight, head.bias)

    def _head_is_plain(self) -> bool:
        """Whether logits are head(last hidden state) and no more, so that only the needed rows are computed."""
        with torch.inference_mode():
            ids = torch.zeros((1, 2), dtype=torch.long, device=self.device)
            full = self.model(input_ids=ids, use_cache=False).logits
            hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            return torch.allclose(self.model.get_output_embeddings()(hidden), full, atol=1e-5)
