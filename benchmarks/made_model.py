"""A random policy of the Qwen2 architecture and any size, as a Hugging Face directory."""

import shutil
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

BESIDE = Path(__file__).parents[1] / "examples" / "atlas" / "policy"  # whose tokenizer it takes
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
HEAD = 64  # channels of an attention head


def write_made_model(folder: Path, *, hidden: int, layers: int, vocabulary: int = 8192) -> Path:
    """`hidden` is a multiple of 64; embeddings are not tied. Returns the folder."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD, num_key_value_heads=hidden // HEAD, max_position_embeddings=2**15,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    for name in TOKENIZER:
        shutil.copy(BESIDE / name, folder)
    return folder
