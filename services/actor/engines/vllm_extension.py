"""What runs inside vLLM's worker process beside its own methods; named to the engine as `worker_extension_cls`."""

from typing import Any


class SwapExtension:
    """Mixed into the worker: `self.model_runner` is the worker's."""

    model_runner: Any

    def repack_embeddings(self) -> int:
        """Rebuild the packed copies of every embedding after a reload; returns how many there are.

        On the CPU a tied lm_head works from a packed copy of the embedding, which `reload_weights` leaves as it was.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        modules = [m for m in self.model_runner.get_model().modules() if isinstance(m, VocabParallelEmbedding)]
        for module in modules:
            module.quant_method.process_weights_after_loading(module)
        return len(modules)
