"""One, two and four ranks (gloo on a CPU) train the same weights, and read each other's checkpoints."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from services.learner.model.batching import mini_batches
from services.learner.ranks.balance import Load, owners
from services.learner.ranks.keeping import save_checkpoint
from shared.checkpoints import size_of
from shared.payload import encode_payload
from shared.versions import Version
from tests.learner.rank_steps import Plan
from tests.tiny_model import pad_with_end, write_model

SCRIPT = Path(__file__).with_name("rank_steps.py")
REPOSITORY = SCRIPT.parents[2]
STEPS, SAVE_AT = 5, 3


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 8), st.integers(0, 20))
def test_every_group_has_one_owner_and_none_has_much_more_than_its_share(
    sizes: list[int], ranks: int, mini_batch: int
) -> None:
    loads = [Load(f"g{i}", size) for i, size in enumerate(sizes)]
    place = owners(loads, mini_batch, ranks)
    assert place.keys() == {load.id for load in loads}
    for batch in mini_batches(loads, mini_batch):
        held = [sum(load.size for load in batch if place[load.id] == rank) for rank in range(ranks)]
        assert max(held) <= sum(held) / ranks + max(load.size for load in batch)


def test_groups_that_are_averaged_together_are_on_one_rank() -> None:
    loads = [Load("a", 9), Load("b", 8), Load("c", 7, joins="a"), Load("d", 1, joins="elsewhere")]
    place = owners(loads, 0, 3)
    assert place["a"] == place["c"]
    assert len({place["a"], place["b"], place["d"]}) == 3


def test_a_batch_as_in_the_paper_is_even_over_eight_ranks() -> None:
    lengths = np.random.default_rng(0).lognormal(6.5, 0.6, (64, 8)).clip(50, 4096).sum(1).astype(int)
    place = owners([Load(f"g{i}", int(n)) for i, n in enumerate(lengths)], 0, 8)
    held = [sum(int(n) for i, n in enumerate(lengths) if place[f"g{i}"] == rank) for rank in range(8)]
    dealt = [int(lengths[rank::8].sum()) for rank in range(8)]
    assert max(held) - min(held) < 0.25 * (max(dealt) - min(dealt))
    assert max(held) - min(held) < 5000


def test_a_checkpoint_of_shards_is_as_large_as_it_is_said_to_be(
    tmp_path: Path, sharded: Any, make_trainer: Any
) -> None:
    parameters = sum(p.numel() for p in sharded.parameters())
    save_checkpoint(tmp_path, make_trainer(sharded), {}, Version(0, 1), None)
    files = [file for file in (tmp_path / "step_1").rglob("*") if file.is_file()]
    size = size_of(parameters, sharded.headrace_dtype.itemsize, "adamw", shards=True)
    assert sum(file.stat().st_size for file in files) == pytest.approx(size, rel=0.05)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, policy_dir: Path, make_payload: Any) -> Any:
    """By name: (weights after five steps, report). Runs of 1, 2 and 4 ranks, and what resumed at another number."""
    root = tmp_path_factory.mktemp("ranks")
    groups = root / "groups"
    groups.mkdir()
    reference = write_model(root / "reference", seed=9)
    padded_with_end = pad_with_end(shutil.copytree(policy_dir, root / "padded with end"))
    for step in range(STEPS):
        for i in range(2):
            data = encode_payload(make_payload(f"old{step}{i}", 50 + 2 * step + i))
            (groups / f"{step}-{i}-old.bin").write_bytes(data)
        for i in range(3):
            payload = make_payload(f"new{step}{i}", 3 * step + i, rewards=[1.0, 0.0, None, 1.0, 0.0])
            (groups / f"{step}-{i}-new.bin").write_bytes(encode_payload(payload))

    def plan(
        name: str,
        ranks: int,
        resumes: str = "",
        bad_at: int = -1,
        blocked: bool = False,
        policy: Path = policy_dir,
        **learner: Any,
    ) -> Plan:
        folder = root / name
        folder.mkdir()
        if resumes:
            (folder / "test").symlink_to(root / resumes / "test")
        config = {
            "run": {"name": "test", "root": str(folder), "steps": 8},
            "model": {"path": str(policy), "kl_reference": "" if "lora_rank" in learner else str(reference)},
            # a mini-batch of two of five groups leaves two of four ranks without any
            "learner": {
                "lr": 1e-4,
                "device": "cpu",
                "threads": 1,
                "micro_tokens": 64,
                "mini_batch": 2,
                "batch": 4,
                "kl": 0.1,
            }
            | learner,
            "replay": {"select": 2},
        }
        first, save_at = (SAVE_AT, -1) if resumes else (0, SAVE_AT)
        return Plan(ranks, config, str(groups), first, STEPS, save_at, str(folder / "out"), bad_at, blocked)

    plans = [plan("1", 1), plan("2", 2), plan("4", 4), plan("2 padded with end", 2, policy=padded_with_end)]
    plans += [plan("2 recomputing", 2, recompute=True, blocked=True), plan("2 offloaded", 2, offload=True)]
    plans += [plan("1 spoilt", 1, bad_at=1), plan("2 spoilt", 2, bad_at=1)]
    adapters = {"lora_rank": 3, "lr": 3e-3}
    plans += [plan("1 adapters", 1, **adapters), plan("4 adapters", 4, **adapters)]
    plans += [plan("2 adapters", 2, **adapters, recompute=True, offload=True)]
    plans += [plan("1 adapters then 2", 2, "1 adapters", **adapters)]
    plans += [plan("2 adapters then 1", 1, "2 adapters", **adapters)]
    plans += [plan("2 then 1", 1, "2"), plan("2 recomputing then 4", 4, "2 recomputing"), plan("1 then 2", 2, "1")]
    (root / "plans.json").write_text(json.dumps([asdict(p) for p in plans]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, str(SCRIPT), str(root / "plans.json")], check=True, timeout=800, env=environment)
    outs = {Path(p.out).parent.name: Path(p.out) for p in plans}
    return {
        name: (load_file(next(out.glob("*.safetensors"))), json.loads((out / "report.json").read_text()))
        for name, out in outs.items()
    }


def far(a: dict[str, Any], b: dict[str, Any]) -> float:
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_and_four_ranks_train_the_weights_that_one_does(trained: Any, policy_dir: Path) -> None:
    one = trained["1"][0]
    assert far(one, load_file(policy_dir / "model.safetensors")) > 3e-4
    for name in ("2", "4", "2 recomputing", "2 offloaded", "2 padded with end"):
        assert far(one, trained[name][0]) < 1e-6, name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ranks_train_the_adapters_that_one_process_does(trained: Any) -> None:
    one = trained["1 adapters"][0]
    assert all(name.endswith(("lora_A.weight", "lora_B.weight")) for name in one)
    assert min(np.abs(tensor).max() for tensor in one.values()) > 1e-3
    for name in ("2 adapters", "4 adapters", "1 adapters then 2", "2 adapters then 1"):
        assert far(one, trained[name][0]) < 1e-6, name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ranks_measure_the_same_scores_and_gradient(trained: Any) -> None:
    [alone] = trained["1"][1]["report"]
    for name in ("2", "4"):
        parts = trained[name][1]["report"]
        for step, lines in enumerate(alone):
            expected = {line[0]: line[1:] for line in lines if line[0] != "norm"}
            found = {line[0]: line[1:] for part in parts for line in part[step] if line[0] != "norm"}
            assert found.keys() == expected.keys()
            for id, numbers in expected.items():
                assert found[id] == pytest.approx(numbers, abs=1e-6)
            norms = [line[1:] for part in parts for line in part[step] if line[0] == "norm"]
            assert all(n == pytest.approx(lines[-1][1:], rel=1e-4) for n in norms)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_ranks_leave_out_an_update_that_one_of_them_spoils(trained: Any) -> None:
    (one, alone), (two, both) = trained["1 spoilt"], trained["2 spoilt"]
    assert far(one, two) < 1e-6 < far(one, trained["1"][0])
    for part in [*alone["report"], *both["report"]]:
        norms = [step[-1][1:] for step in part]
        assert not np.isfinite(norms[1][0])
        assert np.isfinite([*norms[0], *norms[1][1:], *norms[2]]).all()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_checkpoint_is_read_by_any_number_of_ranks(trained: Any) -> None:
    for name in ("2 then 1", "1 then 2"):
        assert far(trained["1"][0], trained[name][0]) < 1e-6, name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_checkpoint_that_rank_0_had_no_folder_for_is_saved_as_soon_as_it_has(trained: Any) -> None:
    assert far(trained["1"][0], trained["2 recomputing then 4"][0]) < 1e-6


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rank_holds_its_share_alone(trained: Any) -> None:
    whole = trained["1"][1]["held"]
    for ranks in (2, 4):
        assert trained[str(ranks)][1]["held"] <= whole / ranks + 64
