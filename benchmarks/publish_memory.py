"""Peak memory of publishing a version above that of the model: a parameter at a time, whatever the type of the files.

    python -m benchmarks.publish_memory [--layers 24] [--hidden 512] [--vocabulary 32000]

A process that holds the model in float32 writes it as the learner does, and reports how far its own memory rose. The
peer is the largest group of parameters that belong together, a layer or the embeddings: more than that would not scale.
Through Redis it is sent as well, from its files, a chunk at a time.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.apart import apart
from benchmarks.figure import Figure, run_alone, say
from benchmarks.scratch import scratch_redis

MIB = 2**20


def peak(transport: str, dtype: str, layers: int, hidden: int, vocabulary: int) -> tuple[int, int, int]:
    """Bytes above the start at the most; bytes of the largest group; bytes of the model."""
    from services.learner.weights.canary import canary_of
    from services.learner.weights.model_writer import as_written, write_plain

    model = _model(layers, hidden, vocabulary)
    groups = [*model.base_model.layers, model.get_input_embeddings()]
    largest = max(sum(p.numel() * p.element_size() for p in group.parameters()) for group in groups)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    wire = None if dtype == "model" else getattr(torch, dtype)
    canary_of(model, [[1, 2, 3]])  # what a first forward loads is no part of publishing
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        before = _restart_peak()
        if transport == "redis":
            _through_redis(model, folder)
        else:
            with as_written(model, wire):
                canary_of(model, [[1, 2, 3]])
            write_plain(model, folder, wire)
        return _memory("VmHWM") - before, largest, size


def measure(*, layers: int = 24, hidden: int = 512, vocabulary: int = 32000) -> list[Figure]:
    """Each form in a process of its own."""
    figures = []
    for name, transport, dtype, at_most in (
        ("as it is", "folder", "model", 1.0),
        ("as bfloat16", "folder", "bfloat16", 1.5),  # the embeddings stay rounded while layer after layer is
        ("through Redis", "redis", "model", 1.0),
    ):
        say(name)
        extra, group, size = apart(peak, transport, dtype, layers, hidden, vocabulary)
        note = f"the model has {size / MIB:.0f} MiB: {extra / size:.3f} of it"
        figures.append(
            Figure(name=f"publishing {name}, peak memory", unit="MiB", ours=[extra / MIB], peer=[group / MIB],
                   against="the largest group of parameters", at_most=at_most, note=note)
        )  # fmt: skip
    return figures


def _model(layers: int, hidden: int, vocabulary: int) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, **shape, **heads)).eval()


def _through_redis(model: Any, folder: Path) -> None:
    from services.learner.stop import Stop
    from services.learner.talk.outbox import Outbox
    from services.learner.weights.transports.redis_chunks import RedisSender
    from services.learner.weights.version_files import publish
    from shared.redis_client import connect
    from shared.streams import Keys
    from shared.versions import Version

    with scratch_redis() as url, connect(url) as client:
        sender = RedisSender(Outbox(client, Keys("memory"), Stop()), Stop(), delta=True)
        for number in range(2):
            notice = publish(folder, Version(0, number), model, {}, [])
            sender.send(notice, folder / notice.location)


def _restart_peak() -> int:
    """Have the system count the peak from here on; resident bytes now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    run_alone(measure)
