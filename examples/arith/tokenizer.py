"""The small policy's tokenizer, with the special tokens and the chat form of Qwen's models."""

from transformers import PreTrainedTokenizerFast

from examples.arith.traces import COLUMNS
from examples.small_policy.tokenizer import qwen2_tokenizer
from services.actor.text import messages_of

PROMPT = "qwen_math"  # env.prompt of examples/arith.toml
BEGIN, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word of the prompt and of the working; digits are single."""
    texts = [message["content"] for message in messages_of(PROMPT, "What is 0 + 1 - 2?")]
    texts += ["system\n", "user\n", "assistant\n", "0123456789", "0+1-2=3,carry", "0=3,borrow", "1\n\\boxed{0}"]
    texts += [f"{column}:" for column in COLUMNS]
    return qwen2_tokenizer(texts, begin=BEGIN, end=END, pad=PAD, unknown=PAD, chat_template=CHAT_TEMPLATE)
