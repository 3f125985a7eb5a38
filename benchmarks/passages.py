"""A made corpus of any size with words distributed as in text, and questions about its passages.

Words are syllables; the word of rank r has a probability in proportion to 1 / (r + 50), Zipf's law as Mandelbrot bent
it, which is what a corpus looks like once stop words are left out: the commonest word is in every tenth passage.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

VOCABULARY = 100_000
WORDS = (25, 55)  # of a passage, at least and less than
BLOCK = 20_000  # passages drawn at once
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]


def vocabulary() -> list[str]:
    """As many different words, of three syllables or four."""
    n = len(SYLLABLES)
    rng = np.random.default_rng(5)
    numbers = rng.permutation(n**3)[:VOCABULARY]
    return [SYLLABLES[i // n**2] + SYLLABLES[i // n % n] + SYLLABLES[i % n] for i in numbers.tolist()]


def passages(count: int) -> Iterator[list[str]]:
    """The words of each passage, the same for the same place."""
    words = vocabulary()
    reached = np.cumsum(1 / (np.arange(VOCABULARY) + 50.0))
    reached /= reached[-1]
    for start in range(0, count, BLOCK):
        rng = np.random.default_rng([7, start])
        lengths = rng.integers(*WORDS, BLOCK)
        drawn = np.searchsorted(reached, rng.random(int(lengths.sum()))).tolist()
        end = 0
        for length in lengths.tolist()[: count - start]:
            yield [words[i] for i in drawn[end : end + length]]
            end += length


def write_corpus(path: Path, count: int) -> None:
    """JSON lines {"id", "contents"}."""
    with path.open("w", encoding="utf-8") as file:
        for number, words in enumerate(passages(count)):
            title, body = " ".join(words[:2]), " ".join(words[2:])
            file.write(f'{{"id": "{number}", "contents": "\\"{title}\\"\\n{body}"}}\n')


def questions(count: int, of: int) -> list[str]:
    """Three to six words of one of the first `of` passages each; no two of one passage."""
    rng = np.random.default_rng(9)
    every = max(1, min(of, BLOCK) // count)
    asked = [words for i, words in enumerate(passages(min(of, BLOCK))) if i % every == 0]
    return [" ".join(rng.choice(words, int(rng.integers(3, 7)), replace=False)) for words in asked[:count]]
