"""Make the policy of examples/arith.toml: a small Qwen2 model that can work out sums and differences, and is careless.

    python -m examples.arith.warm_start examples/arith/policy

First steps on right traces, then a few on careless ones, of problems drawn at random; those held out are left out.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2ForCausalLM

from examples.arith import problems, traces
from examples.arith.tokenizer import END, PROMPT, build_tokenizer
from examples.small_policy.tokenizer import Row, encode
from examples.small_policy.warm_start import Batches, imitate, save, small_model
from services.actor.text import messages_of
from shared.rewards import score

DATA = Path(__file__).parent / "data"
RESPONSE_TOKENS = 48


def prompt(tokenizer: PreTrainedTokenizerFast, question: str) -> str:
    """The prompt as the actor builds it."""
    messages = messages_of(PROMPT, question)
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def source(tokenizer: PreTrainedTokenizerFast, habits: traces.Habits, seed: int) -> Batches:
    """Traces of problems that are not held out."""
    rng = random.Random(seed)
    held_out = {row["question"] for row in _held_out()}

    def draw() -> Row:
        while (problem := problems.draw(rng)).question in held_out:
            pass
        written = traces.solution(problem, habits, rng) + END
        return encode([(prompt(tokenizer, problem.question), False), (written, True)], tokenizer)

    return Batches(draw, tokenizer.get_vocab()[str(tokenizer.pad_token)], rng, at_once=1)


@torch.no_grad()
def measure(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, limit: int | None = None) -> dict[str, float]:
    """Percent of held-out problems answered right, and answered in a box, by arg-max and sampled at temperature 1."""
    model.eval()
    rows = _held_out()[:limit]
    texts = [prompt(tokenizer, row["question"]) for row in rows]
    inputs = tokenizer(texts, return_tensors="pt", add_special_tokens=False, padding=True, padding_side="left")
    figures: dict[str, float] = {}
    for mode in ("greedy", "sampled"):
        torch.manual_seed(0)
        out = model.generate(**inputs, do_sample=mode == "sampled", max_new_tokens=RESPONSE_TOKENS)  # pyright: ignore[reportAttributeAccessIssue]
        written = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        scores = [score("math", text, row["answer"]) for text, row in zip(written, rows, strict=True)]
        figures[mode] = 100 * sum(s.correct for s in scores) / len(rows)
        figures[f"{mode}_boxed"] = 100 * sum(s.parts["answered"] for s in scores) / len(rows)
    return {name: round(value, 1) for name, value in figures.items()}


def _held_out() -> list[dict[str, str]]:
    return [json.loads(line) for line in (DATA / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Parse the command line, train, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="model folder to write (config, weights, tokenizer)")
    parser.add_argument("--clean-steps", type=int, default=740, help="steps on right traces: more = surer working")
    parser.add_argument("--careless-steps", type=int, default=40, help="steps on careless traces: more = lower start")
    parser.add_argument("--batch", type=int, default=32, help="traces per step")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate of the right part")
    parser.add_argument("--careless-lr", type=float, default=7e-4, help="peak learning rate of the careless part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--start", type=Path, help="go on from this model folder instead of random weights")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    made = build_tokenizer()
    model = Qwen2ForCausalLM.from_pretrained(args.start) if args.start else small_model(made, layers=2)
    save(model, made, args.out)
    tokenizer = AutoTokenizer.from_pretrained(args.out)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    for name, habits, steps, lr in (
        ("right", traces.CLEAN, args.clean_steps, args.lr),
        ("careless", traces.CARELESS, args.careless_steps, args.careless_lr),
    ):
        imitate(model, source(tokenizer, habits, args.seed), steps, args.batch, lr, name)
        print(f"after {name} traces:", measure(model, tokenizer), flush=True)
    save(model, tokenizer, args.out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
