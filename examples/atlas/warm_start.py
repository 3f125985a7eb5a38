"""Make the policy of the demo: a 0.6M-parameter Qwen2 model that can search and copy, and has bad habits.

    python -m examples.atlas.warm_start examples/atlas/policy

First many steps on clean traces from worlds that are NOT the demo's (same words, other facts), then a few on noisy
ones. Fixed seeds: the same machine and thread count give the same weights.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from examples.atlas import traces, world
from examples.atlas.rollout import bm25_retriever, play
from examples.atlas.tokenizer import BEGIN, END, PAD, build_tokenizer

OTHER_WORLDS = range(1000, 1060)
Row = tuple[list[int], list[bool]]
DATA = Path(__file__).parent / "data"


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    ids = tokenizer.get_vocab()
    config = Qwen2Config(
        vocab_size=-(-len(tokenizer) // 8) * 8,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=ids[BEGIN],
        eos_token_id=ids[END],
        pad_token_id=ids[PAD],
    )
    return Qwen2ForCausalLM(config)


def examples_of(seed: int, two_hop_share: float) -> tuple[world.World, list[world.Question]]:
    """A world and all its questions in a drawn order, with the wanted share of two hops."""
    rng = random.Random(seed)
    made = world.build_world(seed)
    ones = [world.one_hop(f, rng) for f in made.facts.values()]
    pairs = rng.sample(world.chains(made), round(len(ones) * two_hop_share / (1 - two_hop_share)))
    drawn = ones + [world.two_hop(a, b, rng) for a, b in pairs]
    rng.shuffle(drawn)
    return made, drawn


class TraceSource:
    """Endless batches of traces, mixed over the other worlds."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, habits: traces.Habits, extra: int, seed: int) -> None:
        self.tokenizer, self.habits, self.extra = tokenizer, habits, extra
        self.pad = tokenizer.get_vocab()[PAD]
        self.rng = random.Random(seed)
        self.ready: list[list[Row]] = []
        self.worlds = [examples_of(s, two_hop_share=0.5) for s in OTHER_WORLDS]

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """ids int64 [size, longest], labels int64 of the same shape: -100 where the policy does not write.

        Traces are drawn eight batches at a time and cut by length, so that little of a batch is padding.
        """
        if not self.ready:
            rows = sorted((self._draw() for _ in range(8 * size)), key=lambda row: len(row[0]))
            self.ready = [rows[i : i + size] for i in range(0, len(rows), size)]
            self.rng.shuffle(self.ready)
        rows = self.ready.pop()
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.full((size, longest), self.pad)
        labels = torch.full((size, longest), -100)
        for i, (row, written) in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            labels[i, : len(row)] = torch.where(torch.tensor(written), torch.tensor(row), -100)
        return ids, labels

    def _draw(self) -> Row:
        made, drawn = self.rng.choice(self.worlds)
        trace = traces.trace(self.rng.choice(drawn), made, self.habits, self.extra, self.rng)
        return traces.encode(trace, self.tokenizer)


def train(model: Qwen2ForCausalLM, source: TraceSource, steps: int, batch: int, peak_lr: float, name: str) -> None:
    """Next-token loss on the policy's own tokens; learning rate: short warm-up, then a linear fall to a tenth."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    warm = max(1, min(50, steps // 10))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min((i + 1) / warm, 1 - 0.9 * max(0, i - warm) / max(1, steps - warm))
    )
    model.train()
    started = time.monotonic()
    for step in range(1, steps + 1):
        ids, labels = source.batch(batch)
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


def measure(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, limit: int | None = None) -> dict[str, float]:
    """Percent of held-out questions of the demo's world answered right (EM), by arg-max and sampled, by hops."""
    rows = [json.loads(line) for line in (DATA / "heldout.jsonl").read_text(encoding="utf-8").splitlines()][:limit]
    contents = [json.loads(t)["contents"] for t in (DATA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    titles, bodies = zip(*(c.split("\n", 1) for c in contents), strict=True)
    search = bm25_retriever([t.strip('"') for t in titles], list(bodies))
    model.eval()
    figures: dict[str, float] = {}
    for mode in ("greedy", "sampled"):
        generator = torch.Generator().manual_seed(0)
        played = play(model, tokenizer, [r["question"] for r in rows], search, greedy=mode == "greedy",
                      generator=generator)  # fmt: skip
        right = [e.answer.lower() == r["golden_answers"][0].lower() for e, r in zip(played, rows, strict=True)]
        figures[mode] = 100 * sum(right) / len(right)
        for hops in (1, 2):
            of = [ok for ok, r in zip(right, rows, strict=True) if r["hops"] == hops]
            figures[f"{mode}_{hops}hop"] = 100 * sum(of) / len(of)
        figures[f"{mode}_answered"] = 100 * sum(bool(e.answer) for e in played) / len(played)
        figures[f"{mode}_tokens"] = sum(len(e.ids) for e in played) / len(played)
        figures[f"{mode}_longest"] = max(len(e.ids) for e in played)
    return {k: round(v, 1) for k, v in figures.items()}


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    config = model.config
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="model folder to write (config, weights, tokenizer)")
    parser.add_argument("--clean-steps", type=int, default=700, help="steps on right traces: more = surer copying")
    parser.add_argument("--noisy-steps", type=int, default=120, help="steps on noisy traces: more = lower start")
    parser.add_argument("--batch", type=int, default=48, help="traces per step")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate of the clean part")
    parser.add_argument("--noisy-lr", type=float, default=7e-4, help="peak learning rate of the noisy part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--start", type=Path, help="go on from this model folder instead of random weights")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    build_tokenizer().save_pretrained(args.out)
    build_model(build_tokenizer()).config.save_pretrained(args.out)
    tokenizer = AutoTokenizer.from_pretrained(args.out)
    model = Qwen2ForCausalLM.from_pretrained(args.start) if args.start else build_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    if args.clean_steps:
        train(
            model,
            TraceSource(tokenizer, traces.CLEAN, 4, args.seed),
            args.clean_steps,
            args.batch,
            args.lr,
            "clean",
        )
        print("after clean traces:", measure(model, tokenizer))
        save(model, tokenizer, args.out.with_name(args.out.name + "-clean"))
    if args.noisy_steps:
        source = TraceSource(tokenizer, traces.NOISY, 0, args.seed + 1)
        train(model, source, args.noisy_steps, args.batch, args.noisy_lr, "noisy")
        print("after noisy traces:", measure(model, tokenizer))
    save(model, tokenizer, args.out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
