"""A tokenizer of Qwen2's own kind (byte-level BPE) in which every piece of some texts is one token.

It is not a word-level tokenizer because `AutoTokenizer` gives every model of type `qwen2` a `Qwen2Tokenizer`, whatever
its files say: splitting rules and decoder are then Qwen2's, and only vocabulary, merges and added tokens are taken from
the files. So the merges are learned on the closed set of pieces until nothing is left to merge. All 256 bytes are in
the vocabulary: any other text is readable too, in more tokens. Digits are tokens of their own, by Qwen2's rules.
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

Segments = list[tuple[str, bool]]  # a trace: pieces of text, and whether the policy writes them
Row = tuple[list[int], list[bool]]  # the same as token ids


def learn_merges(texts: Iterable[str], specials: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """(token -> id, merges in order) of a BPE in which every piece of `texts` is one token; `specials` come first."""
    splitter = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    pieces = {piece for text in texts for piece, _ in splitter.pre_tokenize_str(text)}
    trainer = trainers.BpeTrainer(
        vocab_size=100_000,
        min_frequency=0,
        show_progress=False,
        special_tokens=list(specials),
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


def qwen2_tokenizer(
    texts: Iterable[str],
    *,
    begin: str,
    end: str,
    pad: str,
    unknown: str,
    chat_template: str,
    others: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """The tokenizer; `save_pretrained` makes it loadable by `AutoTokenizer`. `others`: further special tokens."""
    vocab, merges = learn_merges(texts, list(dict.fromkeys((pad, unknown, begin, end, *others))))
    return Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,  # pyright: ignore[reportArgumentType]  (pairs are what the BPE takes)
        bos_token=begin,
        eos_token=end,
        pad_token=pad,
        unk_token=unknown,
        additional_special_tokens=list(others),
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def encode(segments: Segments, tokenizer: PreTrainedTokenizerFast) -> Row:
    """Token ids and, for each, whether the policy writes it (and so is trained on it)."""
    ids: list[int] = []
    written: list[bool] = []
    for text, own in segments:
        piece = tokenizer.encode(text, add_special_tokens=False)
        ids += piece
        written += [own] * len(piece)
    return ids, written
