"""Requests that schemathesis derives from a service's own OpenAPI description, right ones and wrong ones."""

from collections import Counter
from typing import Any

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from benchmarks.apart import apart

Seen = Counter[tuple[str, int]]


def ask(base: str, requests: int, seed: int = 0) -> Seen:
    """How often each (operation, status) came, of about `requests` per operation and mode. No answer may take 10 s.

    In a process of its own: schemathesis changes Hypothesis in place, which then keeps more memory and prints no input.
    """
    return apart(_ask_all, base, requests, seed)


def _ask_all(base: str, requests: int, seed: int) -> Seen:
    seen: Seen = Counter()
    for found in schemathesis.openapi.from_url(f"{base}/openapi.json").get_all_operations():
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                _ask(found.ok(), mode, requests, seed, seen)  # pyright: ignore[reportAttributeAccessIssue]
            except Unsatisfiable:
                assert mode is GenerationMode.NEGATIVE, "an operation without parameters cannot be asked wrongly"
    return seen


def _ask(operation: Any, mode: GenerationMode, requests: int, seed: int, seen: Seen) -> None:
    @hypothesis.seed(seed)
    @settings(
        max_examples=requests,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: schemathesis.Case) -> None:
        seen[operation.label, case.call(timeout=10).status_code] += 1

    one()
