"""How vLLM is started here: every choice that it would otherwise take from a model's files or from the machine."""

import os
from pathlib import Path
from typing import Any

import psutil
from safetensors import safe_open

from shared.adapters import ALL
from shared.config import Config
from shared.model_files import read_settings, text_settings

MIB = 2**20
CPU_BLOCK = 32  # tokens of a cache block; the CPU's default of 128 is longer than many a prompt, which then never hits
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # those that vLLM has room for
EXTENSION = "services.actor.engines.vllm_extension.SwapExtension"


def prepare_environment(threads: int) -> None:
    """Set what vLLM reads at import; what the user set stays, but for a cache size that would win over ours."""
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
    quiet = {
        "VLLM_LOGGING_LEVEL": "ERROR",  # its warnings are about choices that are made here on purpose
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding would put every actor of a machine on the same cores
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker inside the engine's process: one copy of torch less
        "OMP_NUM_THREADS": str(threads),
        # compiled kernels, one per layer's shape and number of tokens, 0.6 MB each: 1,024 of them if nobody says less
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name, value in quiet.items():
        os.environ.setdefault(name, value)


def engine_arguments(config: Config, directory: Path, on_cpu: bool) -> dict[str, Any]:
    """Keyword arguments of AsyncEngineArgs."""
    c = config
    dtype = c.model.dtype if c.model.dtype != "auto" else "float32" if on_cpu else "bfloat16"
    rows = c.actor.groups * c.rollout.group_size
    arguments: dict[str, Any] = {
        "model": str(directory),
        "load_format": "safetensors",  # no pickle
        "trust_remote_code": False,
        "dtype": dtype,
        "generation_config": "vllm",  # not the model's: its top-k or penalties would bias the policy ratio silently
        "logprobs_mode": "processed_logprobs",
        "max_model_len": c.rollout.max_tokens,
        "max_num_seqs": max(rows, 2),
        "max_num_batched_tokens": max(c.rollout.max_tokens, 2048 if on_cpu else 8192),
        "enable_prefix_caching": True,
        "enforce_eager": c.actor.enforce_eager or on_cpu,
        "tensor_parallel_size": c.actor.tensor_parallel,
        "seed": c.run.seed,
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": True,
        "enable_log_requests": False,
    }
    if dtype != "float32" and not on_cpu:
        arguments["hf_overrides"] = {"head_dtype": "float32"}  # logits unrounded, as the learner has them
    if c.learner.lora_rank:
        arguments |= {"enable_lora": True, "max_loras": 1, "lora_target_modules": layers_with_adapters(c, directory)}
        arguments["max_lora_rank"] = next(rank for rank in LORA_RANKS if rank >= c.learner.lora_rank)
    if on_cpu:
        arguments["block_size"] = CPU_BLOCK
        # a seeded request whose prompt is split kills vLLM's engine here: generators of the CPU cannot be rewound
        arguments["enable_chunked_prefill"] = False
        if c.actor.tensor_parallel == 1:
            arguments["distributed_executor_backend"] = "uni"
        arguments["kv_cache_memory_bytes"] = c.actor.kv_cache_bytes or cache_bytes(c, directory, dtype)
    else:
        # also where the cache has a size of its own: vLLM starts only where so much of the GPU is free
        arguments["gpu_memory_utilization"] = c.actor.gpu_memory_utilization
        if c.actor.kv_cache_bytes:
            arguments["kv_cache_memory_bytes"] = c.actor.kv_cache_bytes
    return arguments


def layers_with_adapters(config: Config, directory: Path) -> list[str]:
    """The names in `learner.lora_targets`; for all, those of the matrices inside the model's layers.

    Without a list vLLM also prepares the output layer for adapters, and dies where several prompts are scored at once.
    """
    if config.learner.lora_targets != ALL:
        return config.learner.lora_targets.replace(" ", "").split(",")
    names: set[str] = set()
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            matrices = [n for n in file.keys() if len(file.get_slice(n).get_shape()) == 2]  # noqa: SIM118  no mapping
        names |= {name.split(".")[-2] for name in matrices if ".layers." in name}
    return sorted(names)


def cache_bytes(config: Config, directory: Path, dtype: str) -> int:
    """Keys and values of every row at its longest, at most a quarter of the free memory, at least of two rows."""
    model = text_settings(read_settings(directory / "config.json"))
    heads = model.get("num_key_value_heads") or model["num_attention_heads"]
    size = model.get("head_dim") or model["hidden_size"] // model["num_attention_heads"]
    per_token = 2 * model["num_hidden_layers"] * heads * size * (4 if dtype == "float32" else 2)
    row = per_token * (-(-config.rollout.max_tokens // CPU_BLOCK) + 1) * CPU_BLOCK
    rows = config.actor.groups * config.rollout.group_size
    wanted = min(row * rows, psutil.virtual_memory().available // 4)
    return max(wanted, 2 * row, 8 * MIB)
