"""AdamW over float32 masters, a learning-rate schedule over the run's steps, gradient clipping.

With a bfloat16 model a step at lr 1e-6 would round away, so each parameter has a float32 master: gradients of
micro-batches add up there, AdamW moves it, and the model holds its rounded copy, which is also what is published. A
float32 model is its own master.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

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
        self.masters = [p if p.dtype == torch.float32 else Parameter(p.detach().float()) for p in self.parameters]
        # as is common, norms and biases do not decay
        shapes = [[m for m in self.masters if m.ndim >= 2], [m for m in self.masters if m.ndim < 2]]
        decays = [settings.weight_decay, 0.0]
        groups = [{"params": s, "weight_decay": w} for s, w in zip(shapes, decays, strict=True) if s]
        self.adamw = torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2))

    def accumulate(self) -> None:
        """Move the model's gradients to the masters."""
        for p, master in zip(self.parameters, self.masters, strict=True):
            if p is not master and p.grad is not None:
                master.grad = p.grad.float() if master.grad is None else master.grad.add_(p.grad)
                p.grad = None

    def step(self, step: int) -> tuple[float, float]:
        """Clip, move the weights, forget the gradients. Returns (gradient norm before clipping, learning rate).

        Raises UserError, with the weights untouched, for a gradient that is not finite.
        """
        s = self._settings
        whole = torch.nn.utils.clip_grad_norm_(self.masters, s.grad_clip)
        norm = (whole.full_tensor() if isinstance(whole, DTensor) else whole).item()
        if not math.isfinite(norm):
            raise UserError(
                f"the gradient of step {step} is not finite: lower learner.lr (now {s.lr:g}) and resume the run."
            )
        lr = lr_at(step, lr=s.lr, schedule=s.schedule, warmup_steps=s.warmup_steps, steps=self._steps)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        with torch.no_grad():
            for p, master in zip(self.parameters, self.masters, strict=True):
                if p is not master:
                    p.copy_(master)
        return norm, lr

    def state(self) -> dict[str, Any]:
        """Tensors and plain values only, so that it is read back without unpickling code."""
        return {"adamw": self.adamw.state_dict(), "masters": self._extra_masters()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state()`; the model's own weights are loaded elsewhere."""
        masters = state["masters"]
        own = self._extra_masters()
        if len(masters) not in (0, len(own)) or (own and not masters):
            raise UserError(
                "the checkpoint was made with another model.dtype: set it back, or start a new run from its folder."
            )
        self.adamw.load_state_dict(state["adamw"])
        with torch.no_grad():
            for master, stored in zip(own, masters, strict=False):
                master.copy_(stored)

    def _extra_masters(self) -> list[Tensor]:
        return [m.data for p, m in zip(self.parameters, self.masters, strict=True) if p is not m]
