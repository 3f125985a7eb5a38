"""EM and F1 on the cases that scorers get wrong, whole rollouts in, against the published rules written out slowly."""

import itertools
import random
import string

import pytest

from shared.rewards import answer_classes, score
from shared.rewards.text import exact_match, f1, normalise


def published(text: str) -> list[str]:
    """The SQuAD normalisation, one character and one word at a time; returns the words.

    Lower case; ASCII punctuation is deleted (not replaced by a space); the words a, an and the become a space wherever
    they stand alone, letters, digits and underscores of any script being what they may not touch; what is left is split
    at white space. Deleting punctuation comes first, so "the-end" is the word "theend".
    """
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    pieces = ["".join(run) for _, run in itertools.groupby(kept, key=lambda c: c.isalnum() or c == "_")]
    return "".join(" " if piece in ("a", "an", "the") else piece for piece in pieces).split()


def published_f1(answer: str, target: str) -> float:
    given, wanted = published(answer), published(target)
    left, common = list(wanted), 0
    for word in given:
        if word in left:
            left.remove(word)
            common += 1
    if not given or not wanted:
        return float(given == wanted)
    precision, recall = common / len(given), common / len(wanted)
    return 0.0 if common == 0 else 2 * precision * recall / (precision + recall)


# sampled text, acceptable answers, exact match, F1
HARD = [
    # articles
    ("<answer>The Beatles</answer>", ["beatles"], 1, 1.0),
    ("<answer>a the an</answer>", ["The"], 0, 0.0),
    ("<answer>theatre</answer>", ["atre"], 0, 0.0),
    ("<answer>Anne</answer>", ["ne"], 0, 0.0),
    ("<answer>Vitamin A</answer>", ["vitamin"], 1, 1.0),
    ("<answer>the-end</answer>", ["end"], 0, 0.0),
    ("<answer>Catch the Wind</answer>", ["Catch Wind"], 1, 1.0),
    # punctuation
    ("<answer>U.S.A.</answer>", ["USA"], 1, 1.0),
    ("<answer>Jay-Z</answer>", ["Jay Z"], 0, 0.0),
    ("<answer>rock 'n' roll!</answer>", ["Rock n Roll"], 1, 1.0),
    ('<answer>"Hamlet"</answer>', ["Hamlet."], 1, 1.0),
    ("<answer>“Hamlet”</answer>", ["Hamlet"], 0, 0.0),
    ("<answer>AT&T</answer>", ["ATT"], 1, 1.0),
    ("<answer>...</answer>", ["Paris"], 0, 0.0),
    ("<answer>1990–1995</answer>", ["1990-1995"], 0, 0.0),
    # unicode
    ("<answer>Beyoncé</answer>", ["BEYONCÉ"], 1, 1.0),
    ("<answer>Beyonce\u0301</answer>", ["Beyoncé"], 0, 0.0),
    ("<answer>İstanbul</answer>", ["istanbul"], 0, 0.0),
    ("<answer>STRASSE</answer>", ["Straße"], 0, 0.0),
    ("<answer>東京</answer>", ["東京"], 1, 1.0),
    ("<answer>New\u00a0York</answer>", ["New York"], 1, 1.0),
    ("<answer>New\u200bYork</answer>", ["New York"], 0, 0.0),
    # numbers
    ("<answer>1,000</answer>", ["1000"], 1, 1.0),
    ("<answer>3.5</answer>", ["35"], 1, 1.0),
    ("<answer>two</answer>", ["2"], 0, 0.0),
    ("<answer>2.0</answer>", ["2"], 0, 0.0),
    ("<answer>-5</answer>", ["5"], 1, 1.0),
    ("<answer>$5 million</answer>", ["5 million"], 1, 1.0),
    ("<answer>50%</answer>", ["50"], 1, 1.0),
    ("<answer>14 December 1972</answer>", ["14 December 1972 UTC", "December 1972"], 0, 6 / 7),
    # several targets
    ("<answer>NYC</answer>", ["New York City", "NYC", "Big Apple"], 1, 1.0),
    ("<answer>New York</answer>", ["York City", "New York City of old"], 0, 4 / 7),
    ("<answer>Paris, Rome</answer>", ["Paris", "Rome"], 0, 2 / 3),
    ("<answer>Paris Paris</answer>", ["Paris"], 0, 2 / 3),
    # empty answers
    ("<answer></answer>", ["the"], 0, 0.0),
    ("<answer>   </answer>", ["Paris"], 0, 0.0),
    ("<answer>the</answer>", ["Paris"], 0, 0.0),
    ("no tag, but Paris", ["Paris"], 0, 0.0),
    ("", ["Paris"], 0, 0.0),
    # two answer tags
    ("<answer>Rome</answer><answer>Paris</answer>", ["Paris"], 1, 1.0),
    ("<answer>Paris</answer><answer>Rome</answer>", ["Paris"], 0, 0.0),
    ("<answer>Paris</answer><answer>Rome", ["Paris"], 1, 1.0),
    ("<answer>Paris</answer><answer></answer>", ["Paris"], 0, 0.0),
    ("<answer>Rome<answer>Paris</answer></answer>", ["Paris"], 1, 1.0),
    ("<answer><answer>Paris</answer>", ["Paris"], 1, 1.0),
    # tags inside think
    ("<think><answer>Rome</answer></think><answer>Paris</answer>", ["Paris"], 1, 1.0),
    ("<answer>Paris</answer><think><answer>Rome</answer></think>", ["Paris"], 0, 0.0),
    ("<think>maybe <answer>Paris</answer> or not</think>", ["Paris"], 1, 1.0),
    ("<think><answer></think>Paris</answer>", ["Paris"], 0, 0.0),
    ("<answer><think>hm</think>Paris</answer>", ["Paris"], 0, 0.0),
]


@pytest.mark.parametrize(("text", "wanted", "em", "f1_value"), HARD)
def test_whole_rollouts_are_scored_as_published(text: str, wanted: list[str], em: int, f1_value: float):
    by_match, by_f1 = score("em", text, wanted), score("f1", text, wanted)
    assert (by_match.reward, by_match.correct) == (float(em), bool(em))
    assert by_f1.reward == pytest.approx(f1_value)
    assert by_f1.correct is bool(em)


def test_normalisation_and_f1_equal_the_slow_version_on_random_text():
    rng = random.Random(0)
    pieces = [
        "a",
        "an",
        "the",
        "The",
        "A.",
        "b",
        "é",
        "É",
        "ß",
        "1",
        "1,0",
        "_",
        "-",
        "'",
        "’",
        " ",
        "  ",
        "\n",
        "\u00a0",
        "東",
        "½",
    ]
    for _ in range(3000):
        left, right = ("".join(rng.choices(pieces, k=rng.randint(0, 8))) for _ in range(2))
        assert normalise(left) == " ".join(published(left)), repr(left)
        if left.strip() and published(right):  # of a target of articles alone the published form leaves nothing
            assert f1(left, [right]) == pytest.approx(published_f1(left, right)), (left, right)
            assert exact_match(left, [right]) is (published(left) == published(right))


def test_answers_are_one_class_when_they_normalise_alike():
    answers = ["The Nile", "nile.", None, "Amazon", "", "NILE", "the"]
    assert answer_classes("em", answers) == [0, 0, None, 1, None, 0, 2]
