"""Which engine this machine gets. Each is imported only when it is chosen."""

import importlib.util

from services.actor.engines.engine import Engine
from shared.config import Config
from shared.errors import UserError


def make_engine(config: Config) -> Engine:
    """The engine that `actor.engine` names; `auto` is vLLM where it is installed."""
    kind = config.actor.engine
    if kind == "auto":
        kind = "vllm" if importlib.util.find_spec("vllm") else "torch"
    if kind == "vllm":
        if not importlib.util.find_spec("vllm"):
            raise UserError("actor.engine = 'vllm', and vLLM is not installed here: install it or set 'torch'.")
        from services.actor.engines.vllm_engine import VllmEngine

        return VllmEngine(config)
    from services.actor.engines.torch_engine import TorchEngine

    return TorchEngine(config)
