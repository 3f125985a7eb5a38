"""The trained model: loading it, and the log-probability of the tokens a rollout sampled.

Rows are padded on the right. With causal attention no real token sees the padding, so no attention mask is needed and
the fast attention path is taken. The model stays in evaluation mode: dropout would make log p_theta differ from l_ref
with no change of the weights.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from services.learner.groups import Row
from shared.errors import UserError

LOGITS_AT_ONCE = 2**25  # tokens x vocabulary in one chunk: 128 MiB in float32
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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


def load_policy(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """A transformers causal language model in evaluation mode.

    Raises UserError for a folder it cannot read, weights that do not fill the model, or an architecture whose logits
    are more than the output layer times the last hidden state.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"the model in {folder} cannot be loaded ({reason}): check its config.json and weights."
        ) from None
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"the weights in {folder} lack {len(missing)} tensors, the first is {missing[0]}: copy them again."
        )
    # the source's own file goes with what is published; this one could only be refused on saving
    model.generation_config = transformers.GenerationConfig.from_model_config(model.config)
    model = model.to(device).eval()
    _check_head(model, folder)
    return model


def vocabulary_of(model: Any) -> int:
    """Token ids the model can embed."""
    return model.get_input_embeddings().weight.shape[0]


def context_of(model: Any) -> int:
    """Positions the model can take."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 2**31)


def logprobs(model: Any, rows: Sequence[Row], temperature: float) -> Tensor:
    """log softmax(logits / temperature) at the trained tokens of the rows, in row order: float32[sum].

    On the model's device; carries a gradient unless under `torch.no_grad`. Logits are made for the trained tokens only,
    in chunks.
    """
    device = next(model.parameters()).device
    width = max(row.inputs for row in rows)
    inputs = torch.zeros(len(rows), width, dtype=torch.int64)
    for i, row in enumerate(rows):
        inputs[i, : row.inputs] = torch.from_numpy(row.tokens[:-1])
    where = torch.cat([torch.from_numpy(row.positions - 1) + i * width for i, row in enumerate(rows)]).to(device)
    targets = torch.cat([torch.from_numpy(row.tokens[row.positions]) for row in rows]).to(device)

    states = model.base_model(input_ids=inputs.to(device), use_cache=False).last_hidden_state
    states = states.reshape(len(rows) * width, -1).index_select(0, where)
    head = model.get_output_embeddings()
    chunk = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
    if len(targets) <= chunk:
        return _score(head, states, targets, temperature)
    parts = []
    for s, t in zip(states.split(chunk), targets.split(chunk), strict=True):
        if torch.is_grad_enabled():  # the logits of a chunk are made again in the backward pass rather than kept
            parts.append(checkpoint(_score, head, s, t, temperature, use_reentrant=False))
        else:
            parts.append(_score(head, s, t, temperature))
    return torch.cat(parts)


def _score(head: Any, states: Tensor, targets: Tensor, temperature: float) -> Tensor:
    logits = head(states).float() / temperature
    return logits.gather(-1, targets[:, None]).squeeze(-1) - torch.logsumexp(logits, -1)


@torch.no_grad()
def _check_head(model: Any, folder: Path) -> None:
    """Scaled or capped logits would make every log-probability wrong without a sign of it: compare once."""
    ids = torch.arange(min(8, vocabulary_of(model)), device=next(model.parameters()).device)[None]
    ours = model.get_output_embeddings()(model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    theirs = model(input_ids=ids, use_cache=False).logits
    if not torch.allclose(ours.float(), theirs.float(), atol=1e-3, rtol=1e-3):
        raise UserError(
            f"the architecture of {folder} changes its logits after the output layer, which is not supported."
        )
