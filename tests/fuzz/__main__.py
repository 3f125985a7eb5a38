"""`python -m tests.fuzz --inputs 100000 [--seed 0] [--target NAME] [--coverage]`: inputs at every boundary.

Inputs are shared out over the targets, fewer to those whose inputs are slow. `--coverage` has atheris, where it is
installed, steer raw bytes by the branches they reach instead of Hypothesis making structured ones.
"""

import argparse
import logging
import math
import sys
import traceback

from tests.fuzz.coverage_guided import drive_by_coverage
from tests.fuzz.harness import Tally, Target, drive
from tests.fuzz.targets import TARGETS


def shares(targets: list[Target], inputs: int) -> list[int]:
    """How many inputs each target gets; in all at least `inputs`."""
    whole = sum(1 / target.cost for target in targets)
    return [math.ceil(inputs / (target.cost * whole)) for target in targets]


def main(arguments: list[str]) -> None:
    """Print a line per target and the sum, or what failed with its smallest input; status 1 where anything did."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=[target.name for target in TARGETS])
    parser.add_argument("--coverage", action="store_true")
    args = parser.parse_args(arguments)
    logging.getLogger("headrace").addHandler(logging.NullHandler())  # what is refused is told, thousands of times
    targets = [target for target in TARGETS if args.target in (None, target.name)]
    if args.coverage:
        targets = [target for target in targets if target.of_bytes]  # the others take no raw bytes
    heads = f"{'inputs':>8} {'taken':>8} {'refused':>8} {'slowest s':>10} {'CPU s':>8} {'MiB kept':>9} {'MiB peak':>9}"
    print(f"{'target':16} {heads}")
    every: list[Tally] = []
    failed = 0
    for target, inputs in zip(targets, shares(targets, args.inputs), strict=True):
        try:
            every.append((drive_by_coverage if args.coverage else drive)(target, inputs, args.seed))
            _print(target.name, every[-1])
        except Exception:  # noqa: BLE001  whatever a target raises is what is looked for
            failed += 1
            print(f"{target.name:16} FAILED\n{_short(traceback.format_exc())}", flush=True)
    whole = Tally(
        taken=sum(t.taken for t in every),
        refused=sum(t.refused for t in every),
        slowest_s=max((t.slowest_s for t in every), default=0.0),
        seconds=sum(t.seconds for t in every),
        mib=sum(t.mib for t in every),
        peak_mib=max((t.peak_mib for t in every), default=0.0),
    )
    _print("all", whole)
    sys.exit(min(failed, 1))


def _short(trace: str) -> str:
    """The ends of a traceback and of its lines: an input may be long, and a recursion deep."""
    lines = [line if len(line) < 400 else f"{line[:200]} ... {line[-100:]}" for line in trace.splitlines()]
    return "\n".join(lines if len(lines) < 80 else [*lines[:30], "...", *lines[-40:]])


def _print(name: str, t: Tally) -> None:
    numbers = f"{t.inputs:8} {t.taken:8} {t.refused:8} {t.slowest_s:10.3f} {t.seconds:8.1f} {t.mib:9.1f}"
    print(f"{name:16} {numbers} {t.peak_mib:9.1f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
