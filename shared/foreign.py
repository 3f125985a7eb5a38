"""What the settings of other systems are called here, for whoever brings their names: docs/coming-from.md.

A name is found by its longest known end: `actor_rollout_ref.rollout.n`, `[rollout] n` and `--rollout.n` are one.
"""

from collections.abc import Iterator, Mapping
from typing import Any

VERL = {
    "rollout.n": "rollout.group_size",
    "val_kwargs.n": "eval.samples",
    "val_kwargs.temperature": "eval.temperature",
    "rollout.name": "actor.engine",
    "tensor_model_parallel_size": "actor.tensor_parallel",
    "max_assistant_turns": "env.max_turns",
    "max_tool_response_length": "env.max_observation_tokens",
    "train_files": "data.train",
    "val_files": "data.eval",
    "data.train_batch_size": "learner.batch",
    "max_prompt_length": "rollout.max_prompt_tokens",
    "max_response_length": "rollout.max_turn_tokens",
    "ppo_mini_batch_size": "learner.mini_batch",
    "ppo_micro_batch_size_per_gpu": "learner.micro_tokens",
    "ppo_max_token_len_per_gpu": "learner.micro_tokens",
    "clip_ratio": "learner.clip_low and learner.clip_high",
    "clip_ratio_low": "learner.clip_low",
    "clip_ratio_high": "learner.clip_high",
    "clip_ratio_c": "learner.dual_clip",
    "kl_loss_coef": "learner.kl",
    "kl_coef": "learner.kl",
    "loss_agg_mode": "learner.loss",
    "loss_mode": "learner.loss",
    "adv_estimator": "learner.advantage",
    "norm_adv_by_std_in_grpo": "learner.advantage",
    "filter_groups.enable": "replay.policy = 'dapo'",
    "lr_warmup_steps": "learner.warmup_steps",
    "warmup_style": "learner.schedule",
    "enable_gradient_checkpointing": "learner.recompute",
    "target_modules": "learner.lora_targets",
    "optimizer_offload": "learner.offload",
    "custom_reward_function.path": "reward.function",
    "custom_reward_function.name": "reward.function",
    "total_training_steps": "run.steps",
    "total_epochs": "run.steps",
    "save_freq": "learner.checkpoint_every",
    "test_freq": "eval.every",
    "max_actor_ckpt_to_keep": "learner.keep_last",
    "n_gpus_per_node": "learner.ranks",
    "experiment_name": "run.name",
    "default_local_dir": "run.root",
}
SEARCH_R1 = {
    "n_agent": "rollout.group_size",
    "retriever.url": "env.url",
    "retriever.topk": "env.topk",
    "max_obs_length": "env.max_observation_tokens",
}
TRL = {
    "num_generations": "rollout.group_size",
    "num_generations_eval": "eval.samples",
    "max_completion_length": "rollout.max_turn_tokens",
    "vllm_max_model_length": "rollout.max_tokens",
    "vllm_gpu_memory_utilization": "actor.gpu_memory_utilization",
    "vllm_tensor_parallel_size": "actor.tensor_parallel",
    "use_vllm": "actor.engine",
    "max_tool_calling_iterations": "env.max_turns",
    "beta": "learner.kl",
    "epsilon": "learner.clip_low",
    "epsilon_high": "learner.clip_high",
    "loss_type": "learner.loss",
    "importance_sampling_level": "learner.loss = 'gspo'",
    "scale_rewards": "learner.advantage",
    "vllm_importance_sampling_clip_max": "learner.tis_cap",
    "vllm_importance_sampling_cap": "learner.tis_cap",
    "reward_funcs": "reward.function",
    "reward_weights": "reward.function",
    "per_device_train_batch_size": "learner.batch",
    "gradient_accumulation_steps": "learner.micro_tokens",
    "steps_per_generation": "learner.mini_batch",
    "learning_rate": "learner.lr",
    "lr_scheduler_type": "learner.schedule",
    "adam_beta1": "learner.beta1",
    "adam_beta2": "learner.beta2",
    "max_grad_norm": "learner.grad_clip",
    "gradient_checkpointing": "learner.recompute",
    "optim": "learner.optimizer",
    "max_steps": "run.steps",
    "num_train_epochs": "run.steps",
    "save_steps": "learner.checkpoint_every",
    "save_total_limit": "learner.keep_last",
    "eval_steps": "eval.every",
    "output_dir": "run.root",
    "run_name": "run.name",
    "bf16": "model.dtype",
}
OPENRLHF = {
    "pretrain": "model.path",
    "prompt_data": "data.train",
    "eval_dataset": "data.eval",
    "n_samples_per_prompt": "rollout.group_size",
    "eval_n_samples_per_prompt": "eval.samples",
    "eval_temperature": "eval.temperature",
    "rollout_batch_size": "learner.batch",
    "train_batch_size": "learner.mini_batch",
    "train_max_tokens_per_gpu": "learner.micro_tokens",
    "prompt_max_len": "rollout.max_prompt_tokens",
    "generate_max_len": "rollout.max_turn_tokens",
    "actor_learning_rate": "learner.lr",
    "lr_scheduler": "learner.schedule",
    "init_kl_coef": "learner.kl",
    "eps_clip": "learner.clip_low and learner.clip_high",
    "eps_clip_low_high": "learner.clip_low and learner.clip_high",
    "policy_loss_type": "learner.loss",
    "advantage_estimator": "learner.advantage",
    "no_advantage_std_norm": "learner.advantage",
    "vllm_is_truncated_threshold": "learner.tis_cap",
    "dynamic_filtering": "replay.policy = 'dapo'",
    "max_norm": "learner.grad_clip",
    "l2": "learner.weight_decay",
    "adam_offload": "learner.offload",
    "vllm_num_engines": "actor.count",
    "async_train": "replay.max_lag",
    "async_queue_size": "replay.max_lag",
    "remote_rm_url": "reward.function",
    "agent_func_path": "env.url",
    "overlong_buffer_len": "reward.overlong_tokens",
    "overlong_penalty_factor": "reward.overlong_penalty",
    "max_ckpt_num": "learner.keep_last",
    "num_episodes": "run.steps",
    "save_path": "run.root",
}
PRIME_RL = {
    "model.name": "model.path",
    "rollouts_per_example": "rollout.group_size",
    "eval.rollouts_per_example": "eval.samples",
    "batch_size": "learner.batch",
    "max_async_level": "replay.max_lag",
    "max_off_policy_steps": "replay.max_lag",
    "max_inflight_rollouts": "actor.groups",
    "seq_len": "rollout.max_tokens",
    "sampling.max_tokens": "rollout.max_turn_tokens",
    "sampling.temperature": "rollout.temperature",
    "optim.lr": "learner.lr",
    "optim.weight_decay": "learner.weight_decay",
    "scheduler.type": "learner.schedule",
    "lora.rank": "learner.lora_rank",
    "lora.alpha": "learner.lora_alpha",
    "optim_cpu_offload": "learner.offload",
    "weight_broadcast.type": "weights.transport",
    "online_difficulty_filtering": "replay.policy = 'dapo'",
    "ckpt.interval": "learner.checkpoint_every",
    "ckpt.keep_last": "learner.keep_last",
    "ckpt.keep_interval": "learner.keep_every",
    "eval.interval": "eval.every",
}
SYSTEMS = {"verl": VERL, "Search-R1": SEARCH_R1, "TRL": TRL, "OpenRLHF": OPENRLHF, "PRIME-RL": PRIME_RL}
_ALL = {name: ours for table in SYSTEMS.values() for name, ours in table.items()}
_LONGEST = max(name.count(".") + 1 for name in _ALL)
_DEEPEST = 8  # tables in tables, more than any of these systems has
_OTHERS = {
    "critic",
    "reward_model",
}  # sections whose settings are called as the policy's are, of models that GRPO lacks


def ours(name: str) -> str | None:
    """What another system's setting is called here; None where the name is not known."""
    parts = name.replace("-", "_").split(".")
    if parts[0] in _OTHERS:
        return None
    ends = (".".join(parts[-count:]) for count in range(_LONGEST, 0, -1))
    return next((_ALL[end] for end in ends if end in _ALL), None)


def first_known(name: str, value: Any) -> tuple[str, str] | None:
    """(foreign name, ours) of a setting, or of the first known one in a table of settings; None where none is."""
    return next(((leaf, found) for leaf in _leaves(name, value, _DEEPEST) if (found := ours(leaf))), None)


def _leaves(name: str, value: Any, deep: int) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield name
    elif deep:
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner, deep - 1)
