"""The tokenizer of the small policy: Qwen2's own kind (byte-level BPE), in which every Atlas word is one token.

It is not a word-level tokenizer because `AutoTokenizer` gives every model of type `qwen2` a `Qwen2Tokenizer`, whatever
its files say: splitting rules and decoder are then Qwen2's, and only vocabulary, merges and added tokens are taken from
the files. So the merges are learned on the closed set of words until nothing is left to merge. All 256 bytes are in the
vocabulary: any other text is readable too, in more tokens.

The tags of the grammar are added tokens but not special ones: they stay visible in decoded text, where the environment
looks for them. A tag swallows the space before it.
"""

import tempfile
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from examples.atlas import grammar, words, world

PAD, UNKNOWN, BEGIN, END, USER, ASSISTANT = "<|pad|>", "<|unk|>", "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"
SPECIALS = (PAD, UNKNOWN, BEGIN, END, USER, ASSISTANT)
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
    return texts + [f" {value}" for pool in world.VALUES.values() for value in pool]


def learn_merges() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """(token -> id, merges in order) of a BPE in which every piece of `_texts` is one token."""
    splitter = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    texts = [text.replace("{s}", "").replace("{o}", "") for text in _texts()]
    for holder in ("{thing}", "{town}"):
        texts = [text.replace(holder, "") for text in texts]
    pieces = {piece for text in texts for piece, _ in splitter.pre_tokenize_str(text)}
    trainer = trainers.BpeTrainer(
        vocab_size=100_000,
        min_frequency=0,
        show_progress=False,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.train_from_iterator(sorted(pieces), trainer)
    with tempfile.TemporaryDirectory() as folder:
        _, merges_file = core.model.save(folder)
        lines = Path(merges_file).read_text(encoding="utf-8").splitlines()
    merges = [(line.split(" ")[0], line.split(" ")[1]) for line in lines if not line.startswith("#version")]
    return core.get_vocab(), merges


def _tag(text: str) -> AddedToken:
    return AddedToken(text, lstrip=True, rstrip=False, special=False)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer with its chat template; `save_pretrained` makes it loadable by `AutoTokenizer`."""
    vocab, merges = learn_merges()
    made = Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,  # pyright: ignore[reportArgumentType]  (pairs are what the BPE takes)
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
    made.add_tokens([_tag(tag) for tag in grammar.TAGS])  # pyright: ignore[reportArgumentType]
    return made
