"""A random Llama policy of 30 thousand parameters with a word tokenizer, written as a Hugging Face directory.

Its generation_config.json names sampling parameters that would make it greedy and repeat nothing: whoever takes them
from there fails every test that compares log-probabilities.
"""

import json
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY, CONTEXT = 64, 512
SPECIALS = ["<|pad|>", "<|unk|>", "<|end|>", "<|user|>", "<|assistant|>", "<|stop|>"]
TAGS = [f"<{slash}{name}>" for name in ("think", "search", "information", "answer") for slash in ("", "/")]
WORDS = [*"abcdefghijklmnopqrstuvwxyz", "Doc", "Title", "1", "2", "3", "(", ")", ":", ".", ",", "?"]
BOXED = [f"\\boxed{{{digit}}}" for digit in range(10)]  # whole answers, so that a random policy is right now and then
FIRST_BOX = len(SPECIALS) + len(TAGS) + len(WORDS)  # its token id; the others follow
END, STOP = SPECIALS.index("<|end|>"), SPECIALS.index("<|stop|>")  # both end a turn
TEMPLATE = (
    "{% for m in messages %}{{ '<|assistant|>' if m['role'] == 'assistant' else '<|user|>' }}{{ m['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tokenizer(directory: Path) -> None:
    vocabulary = [*SPECIALS, *TAGS, *WORDS, *BOXED]
    assert len(vocabulary) <= VOCABULARY
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<|unk|>"))
    core.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(r"</?(?:think|search|information|answer)>|\w+|[^\w\s]"), "isolated"),
            pre_tokenizers.WhitespaceSplit(),
        ]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        unk_token="<|unk|>",
        additional_special_tokens=["<|user|>", "<|assistant|>", "<|stop|>"],
        chat_template=TEMPLATE,
    ).save_pretrained(directory)


def build_model(seed: int, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        eos_token_id=END,
        pad_token_id=0,
        bos_token_id=None,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config = GenerationConfig(
        eos_token_id=[END, STOP],
        pad_token_id=0,
        do_sample=True,
        top_k=1,
        temperature=0.1,
        repetition_penalty=5.0,
    )
    return model


def write_model(directory: Path, seed: int, tied: bool = True) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    build_model(seed, tied).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def pad_with_end(directory: Path) -> Path:
    """Have a written model's padding token be its end, as many published ones have it."""
    config = directory / "config.json"
    settings = json.loads(config.read_text())
    assert settings["pad_token_id"] != settings["eos_token_id"] == END
    config.write_text(json.dumps(settings | {"pad_token_id": END}))
    return directory
