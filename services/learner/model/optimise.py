"""AdamW over float32 masters, a learning-rate schedule over the run's steps, gradient clipping.

With a bfloat16 model a step at lr 1e-6 would round away, so each parameter has a float32 master: gradients of
micro-batches add up there, AdamW moves it, and the model holds its rounded copy, which is also what is published. A
float32 model is its own master.

    bytes a parameter     model and its gradients   masters and theirs   moments
    adamw                 4                         8                    8           in float32: 8, none, 8
    adamw8bit             4                         8                    2           in blocks (bitsandbytes)

With `learner.offload` all but the model and one micro-batch's gradients lies in the processor's memory.

An update whose gradient is not finite is left out: weights and moments stay. Too many in a row end the run.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from shared import checkpoints
from shared.errors import UserError
from shared.settings import Learner


def lr_at(step: int, *, lr: float, schedule: str, warmup_steps: int, steps: int) -> float:
    """The learning rate of step 0 .. steps - 1: linear warm-up to `lr`, then constant, or down to 0 at `steps`."""
    if step < warmup_steps:
        return lr * (step + 1) / warmup_steps
    if schedule == "constant":
        return lr
    done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    return lr * (1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done)))


class Optimiser:
    """Usage, once per mini-batch: backward and `accumulate` for every micro-batch, then `step`."""

    def __init__(self, parameters: Iterable[Parameter], settings: Learner, steps: int) -> None:
        """`steps`: of the whole run, for the schedule."""
        self._settings, self._steps = settings, steps
        self.parameters = [p for p in parameters if p.requires_grad]
        self.masters = [_master(p, offload=settings.offload) for p in self.parameters]
        # as is common, norms and biases do not decay
        shapes = [[m for m in self.masters if m.ndim >= 2], [m for m in self.masters if m.ndim < 2]]
        decays = [settings.weight_decay, 0.0]
        groups = [{"params": s, "weight_decay": w} for s, w in zip(shapes, decays, strict=True) if s]
        adamw = _adamw8bit() if settings.optimizer == "adamw8bit" else torch.optim.AdamW
        self.left_out = 0  # updates in a row, by now
        self.adamw: torch.optim.Optimizer = adamw(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2))

    def accumulate(self) -> None:
        """Move the model's gradients to the masters."""
        for p, master in zip(self.parameters, self.masters, strict=True):
            if p is not master and p.grad is not None:
                gradient = p.grad.to(master.device)
                master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
                p.grad = None

    def step(self, step: int) -> tuple[float, float]:
        """Clip, move the weights, forget the gradients. Returns (gradient norm before clipping, learning rate).

        With a norm that is not finite, the same on all ranks, the update was left out. Raises UserError when that has
        happened more than `learner.max_bad_gradients` times in a row.
        """
        s = self._settings
        whole = torch.nn.utils.clip_grad_norm_(self.masters, s.grad_clip)
        norm = (whole.full_tensor() if isinstance(whole, DTensor) else whole).item()
        lr = lr_at(step, lr=s.lr, schedule=s.schedule, warmup_steps=s.warmup_steps, steps=self._steps)
        self.left_out = 0 if math.isfinite(norm) else self.left_out + 1
        if self.left_out > s.max_bad_gradients:
            raise UserError(
                f"the gradients of {self.left_out} updates in a row, the last in step {step}, were not finite: lower "
                f"learner.lr (now {s.lr:g}) and resume the run, or raise learner.max_bad_gradients to wait for better."
            )
        for group in self.adamw.param_groups:
            group["lr"] = lr
        if not self.left_out:
            self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        with torch.no_grad():
            for p, master in zip(self.parameters, self.masters, strict=True):
                if p is not master:
                    p.copy_(master)
        return norm, lr

    def state(self) -> dict[str, Any]:
        """Tensors and plain values only, so that it is read back without unpickling code."""
        return {"kind": self.kind, "adamw": self.adamw.state_dict(), "masters": self._extra_masters()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state()`; the model's own weights are loaded elsewhere."""
        self.check_kind(state)
        masters = state["masters"]
        own = self._extra_masters()
        if len(masters) not in (0, len(own)) or (own and not masters):
            raise UserError(
                "the checkpoint was made with another model.dtype: set it back, or start a new run from its folder."
            )
        set_now = [{name: group[name] for name in ("weight_decay", "betas")} for group in self.adamw.param_groups]
        self.adamw.load_state_dict(state["adamw"])
        for group, settings in zip(self.adamw.param_groups, set_now, strict=True):
            group |= settings  # the run may have been resumed with others
        with torch.no_grad():
            for master, stored in zip(own, masters, strict=False):
                master.copy_(stored)

    @property
    def checkpoint_bytes(self) -> int:
        """Of the trained parameters, their masters and moments in a checkpoint."""
        return sum(checkpoints.size_of(p.numel(), p.element_size(), self.kind) for p in self.parameters)

    @property
    def kind(self) -> str:
        """`learner.optimizer`."""
        return self._settings.optimizer

    def check_kind(self, stored: dict[str, Any]) -> None:
        """Raise UserError where a checkpoint is of another optimiser."""
        if (kind := stored.get("kind", "adamw")) != self.kind:
            raise UserError(
                f"the checkpoint is of learner.optimizer = '{kind}', set is '{self.kind}': set it back, or start a new "
                "run from its folder."
            )

    def _extra_masters(self) -> list[Tensor]:
        """Those that hold more than the model, which has a file of its own."""
        pairs = zip(self.parameters, self.masters, strict=True)
        return [m.data for p, m in pairs if p.dtype != torch.float32]


def _master(parameter: Parameter, *, offload: bool) -> Parameter:
    if parameter.dtype == torch.float32 and (isinstance(parameter, DTensor) or not offload):
        return parameter  # a shard lies where `ranks.sharded` has put it
    return Parameter(parameter.detach().to("cpu" if offload else parameter.device, torch.float32, copy=True))


def _adamw8bit() -> Any:
    try:
        from bitsandbytes.optim.adamw import AdamW8bit
    except ImportError:
        raise UserError(
            "learner.optimizer = 'adamw8bit' needs bitsandbytes: pip install bitsandbytes, or set it to 'adamw'."
        ) from None
    return AdamW8bit
