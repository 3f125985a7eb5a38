"""`headrace eval`: ask a model the questions of one or more suites, k times each, and say how well it answers.

The answers come from the same engine, rollouts, retriever and scoring as in training. The figures are Mean@k, Best@k,
majority@k and pass@k per source, with their macro and weighted means, each with a confidence interval.
"""

import argparse
import asyncio
import json
import sys
from typing import Any

from cli.numbers import MOST, number, setting

EPILOG = """examples:
  headrace eval runs/atlas-001 --k 8                                its data.eval, 8 samples of each question
  headrace eval runs/atlas-001@2.17 --suite heldout.jsonl --greedy  one of its versions; one answer each
  headrace eval examples/atlas/policy --config examples/atlas.toml --suite examples/atlas/data/heldout.jsonl --k 8
  headrace eval Qwen/Qwen2.5-Math-1.5B --suite aime24 math500 --k 32
  headrace eval MODEL --task math --suite gsm8k.test.jsonl --limit 100 --actor.engine torch
  headrace eval --list                                              suites that have a name

what is evaluated    a model's folder or hub name; a run's folder: its newest checkpoint, or, while it trains, the
                     version published at this moment, which is kept aside until the evaluation is over
how it is asked      as the run or --config says; for a model without either, --task search (Search-R1's prompt and
                     limits, a retriever at env.url or over --search.corpus) or --task math (a boxed answer)
figures              Mean@n: mean over samples, then questions. Best@k and pass@k: one of k samples; the exact mean
                     over all choices of k out of n samples (--samples). majority@k: the most frequent of k answers.
                     A sample that ran out of time, or that nobody could score, counts as wrong and is counted
on which GPU         of several on one that nobody works on (a tenth of its memory in use, or less), else on the least
                     used; CUDA_VISIBLE_DEVICES=1 headrace eval ... names another
stopping             Ctrl-C at any time; the same command goes on where it was. The folder has answers.jsonl (a line
                     per question) and eval.json (what --json prints)
"""


def add_parser(subparsers: Any) -> None:
    """Add `eval` to the subparsers of the `headrace` command."""
    evaluate = subparsers.add_parser(
        "eval",
        help="ask a model the questions of a suite, k times each",
        usage="headrace eval MODEL [--suite FILE_OR_NAME ...] [--k K ...] [--section.key VALUE ...]",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = evaluate.add_argument
    add("model", nargs="?", metavar="MODEL", help="a model's folder or hub name, a run's folder, RUN@VERSION")
    add(
        "--suite",
        nargs="+",
        action="extend",
        default=[],
        metavar="S",
        help="files, names (see --list) or hub names; default: data.eval",
    )
    add(
        "--k",
        nargs="+",
        type=setting("eval.samples"),
        default=[],
        metavar="K",
        help="k of the figures (default: eval.samples)",
    )
    add(
        "--samples", type=setting("eval.samples"), metavar="N", help="samples of each question (default: the largest k)"
    )
    add("--greedy", action="store_true", help="the most probable token each time; one sample")
    add(
        "--temperature",
        type=setting("eval.temperature"),
        metavar="T",
        help="default: eval.temperature, or the training's where that is 0",
    )
    add("--seed", type=setting("run.seed"), metavar="N", help="default: run.seed; the same seed gives the same samples")
    add("--limit", type=setting("eval.limit"), default=0, metavar="N", help="only the first N questions of each suite")
    add("--config", metavar="TOML", help="how questions are asked (default: the run's own configuration)")
    add("--task", choices=("search", "math"), help="how questions are asked, where no configuration says it")
    add(
        "--texts",
        type=number(int, ge=0, le=MOST),
        default=4,
        metavar="N",
        help="keep what was written for the first N questions (default 4)",
    )
    add("--out", metavar="DIR", help="the evaluation's folder (default: evals/..., in the run's folder for a run)")
    add("--fresh", action="store_true", help="forget the answers that are there")
    add("--json", action="store_true", help="print the result as JSON, and nothing else on stdout")
    add("--list", action="store_true", help="list the suites that have a name")
    evaluate.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Evaluate and print; 0, or 130 when it was stopped before the end."""
    from shared.errors import UserError

    if args.list:
        return _print_suites()
    if args.model is None:
        raise UserError("name what is evaluated before --suite: headrace eval MODEL --suite FILE_OR_NAME.")
    if args.greedy and args.temperature:
        raise UserError(f"--greedy is temperature 0, and --temperature {args.temperature:g} is given: leave one away.")
    from cli.eval.plan import Request

    found = evaluate(
        Request(
            model=args.model,
            suites=args.suite,
            k=args.k,
            samples=args.samples,
            config=args.config,
            task=args.task,
            temperature=0.0 if args.greedy else args.temperature,
            limit=args.limit,
            seed=args.seed,
            texts=args.texts,
            out=args.out,
            overrides=args.overrides,
        ),
        fresh=args.fresh,
    )
    if found is None:
        return 130
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        from rich.console import Console

        from cli.eval.report import print_report

        print_report(found, Console(markup=False))
        print(f"answers and figures: {found['folder']}")
    return 0


def evaluate(request: Any, *, fresh: bool = False) -> dict[str, Any] | None:
    """Run a `cli.eval.plan.Request` to its end: the report, as in eval.json. None when the user stopped it.

    Questions that are answered in its folder already are not asked again. Raises UserError in a sentence.
    """
    from cli.eval import folder as eval_folder
    from cli.eval.model import Vanished
    from cli.eval.plan import make_plan

    tries = 3  # a run may delete the version between finding and holding it
    while True:
        try:
            plan = make_plan(request)
            with eval_folder.lock(plan.folder):
                return _evaluate(plan, fresh)
        except Vanished:
            tries -= 1
            if not tries:
                raise


def _evaluate(plan: Any, fresh: bool) -> dict[str, Any] | None:
    from cli.eval import folder as eval_folder
    from cli.eval import model as eval_model
    from cli.eval.progress import Progress
    from cli.eval.report import report
    from cli.eval.session import EvalSession, with_retriever
    from cli.run.plan import with_values
    from shared.evaluation.records import AnswersFile
    from shared.files import write_whole

    eval_folder.claim(plan.folder, plan.job, plan.questions, fresh=fresh)
    answers = AnswersFile(plan.folder, plan.questions, plan.job.samples).read()
    if len(answers) < len(plan.questions):
        directory = eval_model.hold(plan.target, plan.folder)
        path = plan.target.base or directory  # adapters are put in beside their base
        config, starts = with_retriever(with_values(plan.config, {"model.path": str(path)}), plan.folder)
        (plan.folder / eval_folder.CONFIG).write_text(config.to_toml())
        print(f"eval: {_here(plan.target)}, {len(plan.questions)} questions, in {plan.folder}", file=sys.stderr)
        progress = Progress(len(plan.questions), sys.stderr, rewards=bool(config.reward.function))
        session = EvalSession(config, plan.job, plan.folder, plan.questions, progress)
        try:
            finished = asyncio.run(session.run(starts))
        finally:
            progress.close()
        answers = session.answers
        if not finished:
            _print_stopped(plan, len(answers))
            return None
    eval_model.release(plan.folder)
    settings = {section: plan.config.model_dump()[section] for section in ("env", "reward", "rollout", "actor")}
    found = report(plan.job, answers, plan.k, settings) | {"folder": str(plan.folder)}
    write_whole(plan.folder / eval_folder.REPORT, json.dumps(found, indent=1) + "\n")
    return found


def _print_stopped(plan: Any, answered: int) -> None:
    held = f" with MODEL = {_here(plan.target)}" if plan.target.held else ""
    print(
        f"eval: stopped with {answered} of {len(plan.questions)} questions answered; the same command{held} goes on.",
        file=sys.stderr,
    )


def _here(target: Any) -> str:
    from pathlib import Path

    from cli.called import shorten

    return shorten(Path(target.shown)) if target.held else target.shown


def _print_suites() -> int:
    from cli.eval.suites import GROUPS, SUITES

    for name, (task, source) in SUITES.items():
        print(f"{name:16} {task:7} {source}")
    for group, names in GROUPS.items():
        print(f"{group:16} all of  {', '.join(names)}")
    return 0
