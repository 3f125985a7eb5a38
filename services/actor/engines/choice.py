"""Which engine this machine gets. Each is imported only when it is chosen."""

from services.actor.engines.engine import Engine
from shared.config import Config
from shared.engine_choice import engine_of, has_vllm
from shared.errors import UserError


def make_engine(config: Config) -> Engine:
    """The engine that `actor.engine` names; `auto` is vLLM where it is installed."""
    if engine_of(config) == "vllm":
        if not has_vllm():
            raise UserError("actor.engine = 'vllm', and vLLM is not installed here: install it or set 'torch'.")
        from services.actor.engines.vllm_engine import VllmEngine

        return VllmEngine(config)
    from services.actor.engines.torch_engine import TorchEngine

    return TorchEngine(config)
