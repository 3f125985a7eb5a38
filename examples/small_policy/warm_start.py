"""A small Qwen2 model from random weights, and its imitation of traces: with fixed seeds the same weights each time."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from examples.small_policy.tokenizer import Row


def small_model(tokenizer: PreTrainedTokenizerFast, layers: int) -> Qwen2ForCausalLM:
    """Random weights: d 128, 4 heads, 2 key-value heads, ff 256, tied embeddings, 512 positions."""
    ids = tokenizer.get_vocab()
    config = Qwen2Config(
        vocab_size=-(-len(tokenizer) // 8) * 8,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=ids[str(tokenizer.bos_token)],
        eos_token_id=ids[str(tokenizer.eos_token)],
        pad_token_id=ids[str(tokenizer.pad_token)],
    )
    return Qwen2ForCausalLM(config)


class Batches:
    """Endless batches of drawn traces, `at_once` batches drawn together and cut by length.

    Many at once save padding; 1 leaves every batch a fair draw, where length tells one kind of trace from another.
    """

    def __init__(self, draw: Callable[[], Row], pad: int, rng: random.Random, at_once: int = 8) -> None:
        self._draw, self._pad, self._rng, self._at_once = draw, pad, rng, at_once
        self._ready: list[list[Row]] = []

    def next(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """ids int64 [size, longest], labels int64 of the same shape: -100 where the policy does not write."""
        if not self._ready:
            rows = sorted((self._draw() for _ in range(self._at_once * size)), key=lambda row: len(row[0]))
            self._ready = [rows[i : i + size] for i in range(0, len(rows), size)]
            self._rng.shuffle(self._ready)
        rows = self._ready.pop()
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.full((size, longest), self._pad)
        labels = torch.full((size, longest), -100)
        for i, (row, written) in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            labels[i, : len(row)] = torch.where(torch.tensor(written), torch.tensor(row), -100)
        return ids, labels


def imitate(model: Qwen2ForCausalLM, batches: Batches, steps: int, batch: int, peak_lr: float, name: str) -> None:
    """Next-token loss on the policy's own tokens; learning rate: short warm-up, then a linear fall to a tenth."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    warm = max(1, min(50, steps // 10))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min((i + 1) / warm, 1 - 0.9 * max(0, i - warm) / max(1, steps - warm))
    )
    model.train()
    started = time.monotonic()
    for step in range(1, steps + 1):
        ids, labels = batches.next(batch)
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        kept = labels[:, 1:] != -100
        logits = model.lm_head(hidden[kept])
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:][kept])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == steps:
            spent = time.monotonic() - started
            left = spent / step * (steps - step)
            print(f"{name} {step}/{steps}  loss {loss.item():.3f}  {spent:.0f} s, {left:.0f} s left", flush=True)


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """A Hugging Face directory whose generation config holds the special tokens and nothing that shapes sampling."""
    config = model.config
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
