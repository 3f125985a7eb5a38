"""The tokenizer of the small policy, in which every Atlas word is one token.

The tags of the grammar are added tokens but not special ones: they stay visible in decoded text, where the environment
looks for them. A tag swallows the space before it.
"""

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from examples.atlas import grammar, words, world
from examples.small_policy.tokenizer import qwen2_tokenizer

PAD, UNKNOWN, BEGIN, END, USER, ASSISTANT = "<|pad|>", "<|unk|>", "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NAME_POOLS = (
    words.FIRST_NAMES,
    words.LAST_NAMES,
    words.TOWN_NAMES,
    words.GUILD_NAMES,
    words.RIVER_NAMES,
    words.TOWN_PREFIXES,
    words.THING_KINDS,
    words.THING_LOOKS,
    words.GUILD_KINDS,
)


def _texts() -> list[str]:
    """Texts whose pieces are to be single tokens: sentences, questions, names, values, the environment's words."""
    hint = grammar.HINT
    for tag in grammar.TAGS:
        hint = hint.replace(f" {tag}", "")
    texts = [hint, grammar.information([("", "")]).replace("<information>", "").replace("</information>", "\n\n")]
    texts += [f"{digit}" for digit in range(10)] + [" first, next i I need know then so . , : ( ) ' ? ! -"]
    for relation in world.RELATIONS:
        texts += [relation.sentence, *relation.questions, f" {relation.phrase} {relation.marker}"]
    texts += [sentence for sentence, _ in world.DISTRACTORS.values()]
    texts += [f" {pronoun} The the" for group in world.PRONOUNS.values() for pronoun in group]
    texts += [f" {name.title()}" for pool in NAME_POOLS for name in pool]
    texts += [f" {value}" for pool in world.VALUES.values() for value in pool]
    texts = [text.replace("{s}", "").replace("{o}", "") for text in texts]
    for holder in ("{thing}", "{town}"):
        texts = [text.replace(holder, "") for text in texts]
    return texts


def _tag(text: str) -> AddedToken:
    return AddedToken(text, lstrip=True, rstrip=False, special=False)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer with its chat template; `save_pretrained` makes it loadable by `AutoTokenizer`."""
    made = qwen2_tokenizer(
        _texts(),
        begin=BEGIN,
        end=END,
        pad=PAD,
        unknown=UNKNOWN,
        others=(USER, ASSISTANT),
        chat_template=CHAT_TEMPLATE,
    )
    made.add_tokens([_tag(tag) for tag in grammar.TAGS])  # pyright: ignore[reportArgumentType]
    return made
