"""Requests that schemathesis derives from a service's own OpenAPI description, right ones and wrong ones."""

from collections import Counter

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode


def ask(base: str, requests: int, seed: int = 0) -> Counter[tuple[str, int]]:
    """How often each (operation, status) came, of about `requests` per operation and mode. No answer may take 10 s."""
    seen: Counter[tuple[str, int]] = Counter()
    schema = schemathesis.openapi.from_url(f"{base}/openapi.json")
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @hypothesis.seed(seed)
            @settings(
                max_examples=requests,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def one(case: schemathesis.Case, name: str = operation.label) -> None:
                seen[name, case.call(timeout=10).status_code] += 1

            try:
                one()
            except hypothesis.errors.Unsatisfiable:
                assert mode is GenerationMode.NEGATIVE, "an operation without parameters cannot be asked wrongly"
    return seen
