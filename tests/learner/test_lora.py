"""Adapters: the gradient of the dense parametrisation, steps that move nothing else, small files, exact resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize
from transformers import AutoModelForCausalLM

from services.learner.assemble import Assembled, assemble
from services.learner.groups.group import Group
from services.learner.model.lora import WithoutAdapters
from services.learner.model.policy import load_policy, logprobs
from services.learner.ranks.keeping import save_checkpoint
from services.learner.step import train_step
from services.learner.stop import Stop
from services.learner.weights import version_files
from services.learner.weights.model_files import read_companions
from shared.adapters import WEIGHTS, adapters_of, add_adapters
from shared.config import Config, build
from shared.errors import UserError
from shared.settings import Learner
from shared.versions import Version
from tests.tiny_model import write_model

CPU = torch.device("cpu")
pytestmark = pytest.mark.slow  # peft alone takes seconds to import


def config_of(root: Path, policy_dir: Path, **learner: Any) -> Config:
    settings = {"lr": 1e-2, "threads": 1, "device": "cpu", "micro_tokens": 64, "lora_rank": 4} | learner
    return build(
        {
            "run": {"name": "test", "root": str(root), "steps": 8},
            "model": {"path": str(policy_dir)},
            "learner": settings,
            "replay": {"policy": "none"},
        }
    )


def batch(make_group: Any, step: int) -> tuple[list[Group], list[Group]]:
    return [make_group(f"old{step}", 50 + step, stored=0.05)], [make_group(f"new{step}", step)]


def save(config: Config, made: Assembled, step: int) -> None:
    save_checkpoint(config.checkpoints_dir, made.trainer, made.companions, Version(0, step), None)


class Dense(torch.nn.Module):
    """W + scale B A, with A and B of its own."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        super().__init__()
        self.a, self.b, self.scale = torch.nn.Parameter(a.clone()), torch.nn.Parameter(b.clone()), scale

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.scale * self.b @ self.a


@pytest.mark.parametrize("targets", ["all", "q_proj, down_proj"])
def test_the_gradient_is_that_of_the_same_parametrisation_made_dense(
    policy_dir: Path, make_group: Any, targets: str
) -> None:
    adapted, dense = (load_policy(policy_dir, torch.float64, CPU) for _ in range(2))
    add_adapters(adapted, Learner(lora_rank=3, lora_alpha=5, lora_targets=targets))
    own, generator = adapters_of(adapted), torch.Generator().manual_seed(0)
    for tensor in own.values():  # B is zero at first, and A would have no gradient
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.1)
    dense.requires_grad_(False)
    for name in [n.removesuffix(".lora_A.weight") for n in own if n.endswith("lora_A.weight")]:
        layer = dense.get_submodule(name.removeprefix("base_model.model."))
        low = Dense(own[f"{name}.lora_A.weight"], own[f"{name}.lora_B.weight"], 5 / 3)
        parametrize.register_parametrization(layer, "weight", low)

    rows = make_group("g", 1).rows
    for model in (adapted, dense):
        logp = logprobs(model, rows, 0.7)
        (logp * torch.linspace(-1, 1, len(logp))).sum().backward()
    ours = {n: p.grad for n, p in adapted.named_parameters() if p.requires_grad}
    theirs = {n: p.grad for n, p in dense.named_parameters() if p.requires_grad}
    assert len(ours) == len(theirs) == len(own)
    for name, gradient in ours.items():
        layer, _, which = name.removesuffix(".default.weight").rpartition(".lora_")
        expected = theirs[f"{layer}.parametrizations.weight.0.{which.lower()}"]
        torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)  # logits are float32
        assert gradient.abs().max() > 1e-3  # type: ignore[union-attr]


def test_a_step_moves_the_adapters_and_nothing_else(tmp_path: Path, policy_dir: Path, make_group: Any) -> None:
    trainer = assemble(config_of(tmp_path, policy_dir), Stop()).trainer
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for step in range(2):  # in the first B alone has a gradient
        train_step(trainer, step, *batch(make_group, step))
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if ".lora_" in name}
    assert len(trainer.optimiser.masters) == len(moved)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resuming_gives_the_same_bits_as_no_interruption(
    tmp_path: Path, policy_dir: Path, make_group: Any, dtype: str
) -> None:
    config = config_of(tmp_path, policy_dir)
    config = config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})
    straight = assemble(config, Stop())
    for step in range(4):
        if step == 2:
            save(config, straight, step)
        train_step(straight.trainer, step, *batch(make_group, step))
    resumed = assemble(config, Stop())
    assert resumed.step == 2
    for step in range(2, 4):
        train_step(resumed.trainer, step, *batch(make_group, step))
    ours, theirs = (adapters_of(made.trainer.model) for made in (straight, resumed))
    assert all(t.dtype == torch.float32 for t in ours.values())
    assert all(torch.equal(t, theirs[name]) for name, t in ours.items())


def test_a_checkpoint_is_small_and_transformers_loads_it(tmp_path: Path, policy_dir: Path, make_group: Any) -> None:
    config = config_of(tmp_path, policy_dir, lora_rank=1)
    made = assemble(config, Stop())
    for step in range(2):
        train_step(made.trainer, step, *batch(make_group, step))
    save(config, made, 2)
    folder = config.checkpoints_dir / "step_2"
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.tensor([[3, 14, 15, 16, 4]])
    with torch.no_grad():
        theirs, ours = (model(input_ids=tokens).logits for model in (loaded, made.trainer.model))
        base = WithoutAdapters(made.trainer.model)
    assert torch.allclose(theirs, ours, atol=1e-5)
    rows = make_group("g", 1).rows
    untrained = logprobs(load_policy(policy_dir, torch.float32, CPU), rows, 1.0)
    assert torch.allclose(logprobs(base, rows, 1.0), untrained, atol=1e-6)
    assert not torch.allclose(logprobs(made.trainer.model, rows, 1.0), untrained, atol=1e-3)

    notice = version_files.publish(tmp_path / "weights", Version(0, 2), made.trainer.model, {}, [])
    whole = (policy_dir / "model.safetensors").stat().st_size
    assert (tmp_path / "weights" / notice.location / WEIGHTS).stat().st_size < whole / 8


def test_the_kl_reference_is_the_base_without_a_second_model(tmp_path: Path, policy_dir: Path, make_group: Any) -> None:
    free = assemble(config_of(tmp_path / "free", policy_dir, kl=0.5), Stop()).trainer
    config = config_of(tmp_path / "copied", policy_dir, kl=0.5)
    model = config.model.model_copy(update={"kl_reference": str(policy_dir)})
    copied = assemble(config.model_copy(update={"model": model}), Stop()).trainer
    assert isinstance(free.frozen, WithoutAdapters)
    assert not isinstance(copied.frozen, WithoutAdapters)
    for step in range(3):
        totals = [train_step(trainer, step, *batch(make_group, step))[1] for trainer in (free, copied)]
        assert totals[0].kls == pytest.approx(totals[1].kls, rel=1e-5, abs=1e-9)
        assert step == 0 or totals[0].kls[0] > 1e-4
    theirs = adapters_of(copied.model)
    assert all(torch.allclose(t, theirs[name], atol=1e-6) for name, t in adapters_of(free.model).items())


def test_recomputed_layers_give_the_same_step(tmp_path: Path, policy_dir: Path, make_group: Any) -> None:
    kept, recomputed = (
        assemble(config_of(tmp_path / str(r), policy_dir, recompute=r, kl=0.1), Stop()).trainer for r in (False, True)
    )
    for trainer in (kept, recomputed):
        for step in range(2):
            train_step(trainer, step, *batch(make_group, step))
    theirs = adapters_of(recomputed.model)
    assert all(torch.equal(t, theirs[name]) for name, t in adapters_of(kept.model).items())


def test_what_a_checkpoint_was_not_made_for_is_refused(tmp_path: Path, policy_dir: Path) -> None:
    config = config_of(tmp_path, policy_dir)
    save(config, assemble(config, Stop()), 1)
    with pytest.raises(UserError, match="lora_rank is 0"):
        assemble(config_of(tmp_path, policy_dir, lora_rank=0), Stop())
    with pytest.raises(UserError, match=r"another learner\.lora_rank"):
        assemble(config_of(tmp_path, policy_dir, lora_rank=2), Stop())
    with pytest.raises(UserError, match=r"another learner\.lora_rank, learner\.lora_alpha"):
        assemble(config_of(tmp_path, policy_dir, lora_alpha=9), Stop())
    with pytest.raises(UserError, match=r"learner\.lora_alpha or learner\.lora_targets"):
        assemble(config_of(tmp_path, policy_dir, lora_targets="q_proj"), Stop())
    with pytest.raises(UserError, match=r"weights of model\.path are others"):
        assemble(config_of(tmp_path, write_model(tmp_path / "other", seed=9)), Stop())
    with pytest.raises(UserError, match=r"names k_prj, and the model's linear layers are down_proj"):
        assemble(config_of(tmp_path / "new", policy_dir, lora_targets="q_proj,k_prj"), Stop())


def test_a_whole_model_is_not_gone_on_with_as_adapters(tmp_path: Path, policy_dir: Path) -> None:
    config = config_of(tmp_path, policy_dir, lora_rank=0)
    save(config, assemble(config, Stop()), 1)
    with pytest.raises(UserError, match="holds a whole model"):
        assemble(config_of(tmp_path, policy_dir), Stop())


def test_what_lies_beside_the_weights_is_the_bases(tmp_path: Path, policy_dir: Path) -> None:
    config = config_of(tmp_path, policy_dir)
    save(config, assemble(config, Stop()), 1)
    assert read_companions(config.checkpoints_dir / "step_1") == read_companions(policy_dir)
    assert assemble(config, Stop()).companions == read_companions(policy_dir)
