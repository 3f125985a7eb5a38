"""A word-level tokenizer that knows every word an Atlas world can hold.

Text is lower-cased and split at spaces and punctuation; each word is one id, and ids decode to the words joined by one
space. The tags of the grammar are ordinary words of the vocabulary, not special tokens: they stay visible in decoded
text, where the environment looks for them.
"""

import re

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from examples.atlas import grammar, words, world

PAD, UNKNOWN, BEGIN, END, USER, ASSISTANT = (
    "<|pad|>",
    "<|unk|>",
    "<|begin|>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
)
SPECIALS = (PAD, UNKNOWN, BEGIN, END, USER, ASSISTANT)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_PIECE = r"</?(?:think|search|information|answer)>|[a-z]+|[0-9]|[^\sa-z0-9]"
_THOUGHTS = "first next i know need then so the is . , : ( ) \" ' ? ! -"


def vocabulary() -> list[str]:
    """All pieces in id order: special tokens, tags, then every other word and mark, sorted."""
    texts = [grammar.HINT, grammar.information([("", "")]), _THOUGHTS, " ".join("0123456789")]
    for relation in world.RELATIONS:
        texts += [relation.sentence, relation.phrase, relation.marker, *relation.questions]
    texts += [sentence for sentence, _ in world.DISTRACTORS.values()]
    texts += [p for group in world.PRONOUNS.values() for p in group]
    plain = {piece for text in texts for piece in re.findall(_PIECE, re.sub(r"\{\w+\}", " ", text).lower())}
    for name, pool in vars(words).items():
        if name.isupper() and not name.startswith("_"):
            plain.update(pool)
    return [*SPECIALS, *grammar.TAGS, *sorted(plain - set(grammar.TAGS))]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer with its chat template; `save_pretrained` makes it loadable by `AutoTokenizer`."""
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary())}, unk_token=UNKNOWN))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_PIECE), "isolated"), pre_tokenizers.WhitespaceSplit()]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
