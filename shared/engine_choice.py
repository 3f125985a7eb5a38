"""Which engine actors on this machine get. Imports neither."""

import importlib.util

from shared.config import Config


def has_vllm() -> bool:
    """Whether vLLM is installed here."""
    return importlib.util.find_spec("vllm") is not None


def engine_of(config: Config) -> str:
    """`actor.engine`; for `auto` vLLM where it is installed."""
    kind = config.actor.engine
    return kind if kind != "auto" else "vllm" if has_vllm() else "torch"
