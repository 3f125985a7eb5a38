"""TRL's GRPOTrainer on the same model and prompts: run by `benchmarks.against_trl` with the Python that has TRL.

Prints a JSON line per step: its seconds, and the mean length of its completions in tokens. It imports nothing of this
project.
"""

import json
import sys
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]  it has an environment of its own


class Steps(TrainerCallback):
    """Reports each step when it is logged, which is behind its update."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        """A step's numbers."""
        if "completions/mean_length" in (logs or {}):
            now = time.perf_counter()
            print(json.dumps({"seconds": now - self.last, "mean_length": logs["completions/mean_length"]}), flush=True)
            self.last = now


def right(completions: list[list[dict[str, str]]], answer: list[str], **rest: Any) -> list[float]:
    """1 where the answer is in a box."""
    texts = [messages[0]["content"].replace(" ", "") for messages in completions]
    return [float(f"boxed{{{a}}}" in text) for text, a in zip(texts, answer, strict=True)]


def main() -> None:
    """Train for the steps that standard input's JSON asks for."""
    asked = json.load(sys.stdin)
    torch.set_num_threads(asked["threads"])
    tokenizer = AutoTokenizer.from_pretrained(asked["model"], trust_remote_code=False)
    samples = asked["batch"] * asked["group_size"]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, max_steps=asked["steps"], per_device_train_batch_size=samples, seed=0,
            num_generations=asked["group_size"], max_completion_length=asked["max_turn_tokens"], temperature=1.0,
            learning_rate=asked["lr"], lr_scheduler_type="constant", beta=0.0, loss_type="grpo", epsilon=0.2,
            num_iterations=1, gradient_checkpointing=False, bf16=False, fp16=False, use_cpu=True, logging_steps=1,
            report_to="none", save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
            use_transformers_continuous_batching=asked["continuous_batching"],
            model_init_kwargs={"dtype": "float32"},
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=asked["model"], args=config, reward_funcs=right, processing_class=tokenizer, callbacks=[Steps()],
            train_dataset=Dataset.from_list(asked["prompts"]),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)  # prints Python dicts among our lines
        trainer.train()


if __name__ == "__main__":
    main()
