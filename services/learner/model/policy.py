"""The trained model: loading it, and the log-probability of the tokens a rollout sampled.

Rows are packed one after another (`packing.py`); where the architecture forbids it they are padded on the right. With
causal attention no real token sees the padding, so no attention mask is needed and the fast attention path is taken.
The model stays in evaluation mode: dropout would make log p_theta differ from l_ref with no change of the weights.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.learner.groups.group import Row
from services.learner.model.logprob import token_logprobs
from services.learner.model.packing import PACKED, can_pack, pack
from shared.errors import UserError
from shared.model_files import NO_CODE

log = logging.getLogger("headrace")

SCORED, DEVICE, COMPUTED = "headrace_score", "headrace_device", "headrace_dtype"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# In which rows share their prompts. In bfloat16 another kernel rounds so differently (below) that Drift would show it.
_SHARING = (torch.float32, torch.float64)

# Packed rows against each row alone: the most that |d| may be in the mean, in nats, and of one token over that.
# Measured over the tokens that are compared, with the models of the examples and SmolLM2-135M, on a CPU:
#                                      float32: mean  highest    bfloat16: mean  highest
#     right, the same kernel           at most 3e-5   1e-4       0               0
#     right, another kernel            at most 1e-5   5e-5       at most .15     .61
#     rows that see those before       at least .42   1.8        at least .43    1.8
#     one boundary a token too late    at least .10   1.5        at least .10    1.4
# Positions that go on instead of beginning anew are no error of rotary embeddings.
PACKED_OFF = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.3}
WORST_OVER_MEAN = 4.0


def pick_device(wanted: str) -> torch.device:
    """`auto` is a GPU where there is one."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "learner.device = 'cuda', and torch sees no GPU here: set it to 'cpu', or install a CUDA build."
        )
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def pick_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """`auto`: bf16 on a GPU, fp32 on a CPU."""
    if wanted == "auto":
        wanted = "bfloat16" if device.type == "cuda" else "float32"
    return _DTYPES[wanted]


def load_policy(folder: Path, dtype: torch.dtype, device: torch.device, *, packed: bool = True) -> Any:
    """A transformers causal language model in evaluation mode, that takes packed rows if wanted and if it can.

    Raises UserError for a folder it cannot read, weights that do not fill the model or are not numbers, or an
    architecture whose logits are more than the output layer times the last hidden state.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with told_of(folder):
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", output_loading_info=True, **NO_CODE
        )
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"the weights in {folder} lack {len(missing)} tensors, the first is {missing[0]}: copy them again."
        )
    model = model.to(device)
    prepare(model, folder, packed=packed)
    return model


@contextmanager
def told_of(folder: Path) -> Iterator[None]:
    """Around libraries that read a model's files: whatever they raise becomes a UserError with their reason."""
    try:
        yield
    except Exception as error:  # noqa: BLE001, they have types of their own, and a wrong number ends anywhere
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(
            f"the model in {folder} cannot be loaded ({reason}): check its config.json and weights."
        ) from None


def prepare(model: Any, folder: Path, *, packed: bool) -> None:
    """Make a loaded model the policy: evaluation mode, packed rows if wanted and possible. Raises UserError."""
    import transformers

    # the source's own file goes with what is published; this one could only be refused on saving
    model.generation_config = transformers.GenerationConfig.from_model_config(model.config)
    model.get_input_embeddings().padding_idx = None  # its row would have no gradient, and it may be the end's
    model.eval()
    _check_head(model, folder)
    if packed:
        _use_packing(model)


def recompute_layers(model: Any) -> None:
    """Keep only what goes into each layer; the rest is computed again in the backward pass."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in model.base_model.layers:
        layer.training = True  # which transformers asks of it; what is in it stays in evaluation mode


def is_packed(model: Any) -> bool:
    """Whether `logprobs` packs rows instead of padding them."""
    return model.config.get_text_config()._attn_implementation == PACKED


def shares_prompts(model: Any) -> bool:
    """Whether packed rows of one prompt read it once."""
    return is_packed(model) and computes_in(model) in _SHARING


def device_of(model: Any) -> torch.device:
    """Where the model computes; shards of it may lie elsewhere between."""
    return getattr(model, DEVICE, None) or next(model.parameters()).device


def vocabulary_of(model: Any) -> int:
    """Token ids the model can embed."""
    return model.get_input_embeddings().weight.shape[0]


def context_of(model: Any) -> int:
    """Positions the model can take."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 2**31)


def logprobs(model: Any, rows: Sequence[Row], temperature: float) -> Tensor:
    """log softmax(logits / temperature) at the trained tokens of the rows, in row order: float32[sum].

    On the model's device; carries a gradient unless under `torch.no_grad`. Logits are made for the trained tokens only.
    """
    device = device_of(model)
    if is_packed(model):
        inputs, starts, beside = pack(rows, device, share=shares_prompts(model))
    else:
        width, beside = max(row.inputs for row in rows), {}
        starts = np.arange(len(rows)) * width
        inputs = torch.zeros(len(rows), width, dtype=torch.int64)
        for i, row in enumerate(rows):
            inputs[i, : row.inputs] = torch.from_numpy(row.tokens[:-1])
    where = np.concatenate([row.positions - 1 + start for row, start in zip(rows, starts, strict=True)])
    targets = np.concatenate([row.tokens[row.positions] for row in rows])

    on_device = (inputs.to(device), torch.from_numpy(where).to(device), torch.from_numpy(targets).to(device))
    run = getattr(model, SCORED, None)
    return run(*on_device, temperature, beside) if run else score(model, *on_device, temperature, beside)


def score(
    model: Any, inputs: Tensor, where: Tensor, targets: Tensor, temperature: float, beside: dict[str, Any]
) -> Tensor:
    """log p of `targets` at the places `where` of the flattened inputs [rows, width]; `beside`: how they are packed.

    A sharded model has this as a method `SCORED` of its own, around which its shards are gathered.
    """
    states = model.base_model(input_ids=inputs, use_cache=False, **beside).last_hidden_state
    states = states.flatten(0, 1).index_select(0, where)
    return token_logprobs(model.get_output_embeddings(), states, targets, temperature)


@torch.no_grad()
def _use_packing(model: Any) -> None:
    """Unless the model cannot, or computes something else: compare once."""
    name = type(model).__name__
    if not can_pack(model.config):
        log.warning("the attention of %s is not plain causal attention: rows are padded", name)
        return
    apart = [Row(np.arange(n) % min(8, vocabulary_of(model)), np.arange(1, n), 0) for n in (9, 7, 7, 4)]
    sharing = [Row(row.tokens, row.positions[5:], 0) for row in apart[:3]]
    alone = [torch.cat([logprobs(model, [row], 1.0) for row in rows]) for rows in (apart, sharing)]
    model.set_attn_implementation(PACKED)
    most = PACKED_OFF[computes_in(model)]
    for rows, right in zip((apart, sharing), alone, strict=True):
        off = (logprobs(model, rows, 1.0) - right).abs()
        if not (off.mean() <= most and off.max() <= WORST_OVER_MEAN * most):
            model.set_attn_implementation("sdpa")
            found = f"{off.mean():.2g} nats in the mean, {off.max():.2g} at most"
            log.warning("packed rows of %s have other log-probabilities (%s): rows are padded", name, found)
            return


@torch.no_grad()
def _check_head(model: Any, folder: Path) -> None:
    """Scaled or capped logits would make every log-probability wrong without a sign of it: compare once."""
    row = Row(np.arange(9) % vocabulary_of(model), np.arange(1, 9), 0)
    ids = torch.from_numpy(row.tokens[None, :-1]).to(device_of(model))
    targets = torch.from_numpy(row.tokens[None, 1:]).to(ids.device)
    theirs = model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1).gather(-1, targets[..., None])
    if theirs.isnan().any():
        raise UserError(
            f"the weights in {folder} give log-probabilities that are not numbers: copy them again, or train from "
            "an earlier checkpoint."
        )
    rounding = 1e-3 if computes_in(model) == torch.float32 else 0.25  # of its own logits, which ours do not have
    if not torch.allclose(logprobs(model, [row], 1.0), theirs.flatten(), atol=rounding, rtol=1e-3):
        raise UserError(
            f"the architecture of {folder} changes its logits after the output layer, which is not supported."
        )


def computes_in(model: Any) -> torch.dtype:
    """The type of its layers while they run: shards lie in float32."""
    return getattr(model, COMPUTED, model.dtype)
