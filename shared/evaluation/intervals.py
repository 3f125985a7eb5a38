"""Means over questions with confidence intervals: per source, macro and weighted.

The interval is a percentile bootstrap over questions: RESAMPLES times, as many questions as a source has are drawn from
it with replacement, with all their samples, and the mean is taken again; LEVEL of these means lie inside. Sources are
resampled apart, since which sources there are is no accident. The seed is fixed, so the same answers give the same
interval. Where all questions of a source score alike the interval is a point, however few they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
LEVEL = 0.95
_CHUNK = 2**22  # counts drawn at once
METHOD = f"{LEVEL:.0%} percentile bootstrap over questions within each source, {RESAMPLES} resamples"


@dataclass(frozen=True)
class Estimate:
    """A mean over questions and the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Means:
    """One metric. macro: unweighted over sources; weighted: by their numbers of questions, i.e. over all questions."""

    sources: dict[str, Estimate]
    macro: Estimate
    weighted: Estimate


def means(values: Mapping[str, npt.ArrayLike], seed: int = 0) -> Means:
    """The means of one metric, from its value per question [questions] of each source; no source may be empty."""
    sizes = {source: len(np.atleast_1d(v)) for source, v in values.items()}
    assert values and all(sizes.values()), "a source without questions"
    draws: dict[str, npt.NDArray[np.float64]] = {}
    points: dict[str, float] = {}
    for number, (source, column) in enumerate(values.items()):
        array = np.asarray(column, np.float64)
        points[source] = float(array.mean())
        draws[source] = _resampled_means(array, np.random.default_rng([seed, number]))
    share = np.array([sizes[source] for source in values]) / sum(sizes.values())
    stacked, single = np.stack(list(draws.values())), np.array(list(points.values()))
    return Means(
        sources={source: _estimate(points[source], draws[source]) for source in values},
        macro=_estimate(float(single.mean()), stacked.mean(0)),
        weighted=_estimate(float(share @ single), share @ stacked),
    )


def _resampled_means(values: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """[RESAMPLES] means of values drawn with replacement."""
    n = len(values)
    if (values == values[0]).all():
        return np.full(RESAMPLES, values[0])
    rows = max(1, _CHUNK // n)
    parts = [
        values[rng.integers(n, size=(min(rows, RESAMPLES - start), n))].mean(1) for start in range(0, RESAMPLES, rows)
    ]
    return np.concatenate(parts)


def _estimate(value: float, draws: npt.NDArray[np.float64]) -> Estimate:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))
