"""Time and memory of building a BM25 index over a growing corpus: no part may grow faster than n log n.

    python -m benchmarks.index [--sizes "(10000, 20000, 40000, 80000)"] [--target 21000000] [--folder DIR]

Each build runs in a process of its own. The exponent is that of a power law through the processor's seconds of the
sizes; that of n log n through the same sizes stands beside it. The note extrapolates the largest size to `target` by
n log n. `folder`: where corpora, indexes and their figures are kept; what is there is not built again.
"""

import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.apart import apart, peak_bytes
from benchmarks.figure import Figure, run_alone, say
from benchmarks.passages import write_corpus
from services.env_search.backend import IndexSpec
from services.env_search.index import build_index

WHOLE = "the whole"


def measure(
    *, sizes: tuple[int, ...] = (10_000, 20_000, 40_000, 80_000), target: int = 21_000_000, folder: str = ""
) -> list[Figure]:
    """One build per size: seconds of the whole and of each stage, and peak memory above an idle process."""
    with tempfile.TemporaryDirectory() as scratch:
        built = [kept(Path(folder or scratch), size) for size in sizes]
    n = np.array(sizes, float)
    of = {f"index, seconds of {stage}": np.array([b["seconds"][stage] for b in built]) for stage in built[0]["seconds"]}
    of["index, peak memory"] = np.array([b["bytes"] for b in built], float)
    figures = []
    for name, values in of.items():
        then = float(values[-1] * target * np.log(target) / (n[-1] * np.log(n[-1])))
        at, then_at = (
            (f"{values[-1]:.0f} s", f"{then / 3600:.1f} h")
            if "seconds" in name
            else (f"{values[-1] / 2**20:.0f} MiB", f"{then / 2**30:.1f} GiB")
        )
        note = f"{at} for {sizes[-1]:,} passages, at most {then_at} for {target:,}"
        figures.append(
            Figure(name=name, unit="exponent", ours=[exponent(n, values)], peer=[exponent(n, n * np.log(n))],
                   against="n log n", at_most=1.0, note=note)
        )  # fmt: skip
    return figures


def kept(root: Path, size: int) -> dict:
    """The figures of one build, which is made where there is none."""
    root.mkdir(parents=True, exist_ok=True)
    record = root / f"{size}.json"
    if not record.exists():
        for left in root.glob(f"{size}-index*"):  # a build that was cut off would be continued, its seconds lost
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        write_corpus(root / f"{size}.jsonl", size)
        seconds, peak = apart(build, root / f"{size}.jsonl", root / f"{size}-index")
        record.write_text(json.dumps({"seconds": seconds, "bytes": peak - apart(nothing)}))
    read = json.loads(record.read_text())
    say(f"{size:,} passages: {read['seconds'][WHOLE]:.1f} s, {read['bytes'] / 2**20:.0f} MiB")
    return read


def nothing() -> int:
    """What a process that builds nothing has resident."""
    return peak_bytes()


def build(corpus: Path, out: Path) -> tuple[dict[str, float], int]:
    """Processor seconds of the whole and by stage, and the most that was resident."""
    began = last = time.process_time()
    seconds = {WHOLE: 0.0}

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = time.process_time()
        seconds[stage] = seconds.get(stage, 0.0) + now - last
        last = now

    build_index(corpus, out, IndexSpec(), progress)
    return seconds | {WHOLE: time.process_time() - began}, peak_bytes()


def exponent(n: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """Of the power law through the points, by least squares of the logarithms."""
    return float(np.polyfit(np.log(n), np.log(np.maximum(values, 1e-9)), 1)[0])


if __name__ == "__main__":
    run_alone(measure)
