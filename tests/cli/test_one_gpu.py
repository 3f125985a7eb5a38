"""A learner and vLLM on the one GPU of a machine, by arithmetic."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.run import preflight
from cli.run.one_gpu import learner_bytes, refusal
from cli.run.preflight import Preflight
from shared.config import build
from shared.errors import UserError
from shared.gpus import Gpu

GIB = 2**30
SMALL, LARGE = 494_000_000, 7_600_000_000  # parameters of Qwen2.5-0.5B and -7B
H100 = Gpu("GPU-a", total=80 * GIB)


def config_of(learner: dict[str, Any] | None = None, **actor: Any) -> Any:
    return build({"actor": {"engine": "vllm", **actor}, "learner": learner or {}})


def test_what_a_learner_takes_is_what_operations_says() -> None:
    """Of a model of 7.6 billion parameters, in billions of bytes."""
    settings = [{}, {"optimizer": "adamw8bit"}, {"offload": True}, {"lora_rank": 16}]
    assert [round(learner_bytes(config_of(s), LARGE, 2) / 1e9) for s in settings] == [152, 106, 30, 15]


def test_a_learner_that_vllm_leaves_no_room_is_refused_with_what_would_fit() -> None:
    said = str(refusal(config_of(), H100, 2 * SMALL, 2))
    assert "has 80.0 GiB, of which the learner takes 18.4" in said
    assert "actor.gpu_memory_utilization = 0.85 68.0: set actor.gpu_memory_utilization to 0.76 or less" in said
    assert refusal(config_of(gpu_memory_utilization=0.76), H100, 2 * SMALL, 2) is None
    assert "to 0.38 or less" in str(refusal(config_of(count=2), H100, 2 * SMALL, 2))
    assert "learner.offload" in str(refusal(config_of(), H100, LARGE, 2))


@pytest.mark.parametrize(
    ("config", "gpu"),
    [
        (config_of(), H100),
        (config_of(count=0, gpu_memory_utilization=1.0), H100),
        (config_of(gpu_memory_utilization=1.0), Gpu("GPU-a")),  # the driver does not say
    ],
)
def test_a_pair_that_fits_is_not(config: Any, gpu: Gpu) -> None:
    assert refusal(config, gpu, SMALL, 2) is None


@pytest.mark.parametrize(
    ("gpus", "run", "learner", "actor", "refused"),
    [
        (1, {}, {}, {}, True),
        (2, {}, {}, {}, False),
        (0, {}, {}, {}, False),
        (1, {}, {"device": "cpu"}, {}, False),
        (1, {}, {}, {"engine": "torch"}, False),
    ],
)
def test_preflight_refuses_it_where_they_do_share_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, run: Any, learner: Any, actor: Any, refused: bool
) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [LARGE], "data_offsets": [0, 2 * LARGE]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    monkeypatch.setattr(preflight, "visible_gpus", lambda: [H100] * gpus)
    tree = {"run": run, "learner": learner, "actor": {"engine": "vllm", **actor}, "model": {"dtype": "bfloat16"}}
    check = Preflight(build(tree))
    if refused:
        with pytest.raises(UserError, match=r"this machine's one GPU"):
            check._gpus(tmp_path)
    else:
        check._gpus(tmp_path)
        assert check.notes == []
