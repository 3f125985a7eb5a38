"""Make the policy of the demo: a 0.6M-parameter Qwen2 model that can search and copy, and has bad habits.

    python -m examples.atlas.warm_start examples/atlas/policy

First many steps on clean traces from worlds that are NOT the demo's (same words, other facts), then a few on noisy
ones. Fixed seeds: the same machine and thread count give the same weights.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2ForCausalLM

from examples.atlas import traces, world
from examples.atlas.rollout import bm25_retriever, play
from examples.atlas.tokenizer import PAD, build_tokenizer
from examples.small_policy.tokenizer import Row, encode
from examples.small_policy.warm_start import Batches, imitate, save, small_model

OTHER_WORLDS = range(1000, 1060)
LAYERS = 3
DATA = Path(__file__).parent / "data"


def examples_of(seed: int, two_hop_share: float) -> tuple[world.World, list[world.Question]]:
    """A world and all its questions in a drawn order, with the wanted share of two hops."""
    rng = random.Random(seed)
    made = world.build_world(seed)
    ones = [world.one_hop(f, rng) for f in made.facts.values()]
    pairs = rng.sample(world.chains(made), round(len(ones) * two_hop_share / (1 - two_hop_share)))
    drawn = ones + [world.two_hop(a, b, rng) for a, b in pairs]
    rng.shuffle(drawn)
    return made, drawn


def trace_batches(tokenizer: PreTrainedTokenizerFast, habits: traces.Habits, extra: int, seed: int) -> Batches:
    """Traces mixed over the other worlds."""
    rng = random.Random(seed)
    worlds = [examples_of(s, two_hop_share=0.5) for s in OTHER_WORLDS]

    def draw() -> Row:
        made, drawn = rng.choice(worlds)
        return encode(traces.trace(rng.choice(drawn), made, habits, extra, rng), tokenizer)

    return Batches(draw, tokenizer.get_vocab()[PAD], rng)


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
    made = build_tokenizer()
    made.save_pretrained(args.out)
    small_model(made, LAYERS).config.save_pretrained(args.out)
    tokenizer = AutoTokenizer.from_pretrained(args.out)
    model = Qwen2ForCausalLM.from_pretrained(args.start) if args.start else small_model(tokenizer, LAYERS)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    if args.clean_steps:
        source = trace_batches(tokenizer, traces.CLEAN, 4, args.seed)
        imitate(model, source, args.clean_steps, args.batch, args.lr, "clean")
        print("after clean traces:", measure(model, tokenizer))
        save(model, tokenizer, args.out.with_name(args.out.name + "-clean"))
    if args.noisy_steps:
        source = trace_batches(tokenizer, traces.NOISY, 0, args.seed + 1)
        imitate(model, source, args.noisy_steps, args.batch, args.noisy_lr, "noisy")
        print("after noisy traces:", measure(model, tokenizer))
    save(model, tokenizer, args.out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
