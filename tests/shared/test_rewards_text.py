"""EM, F1 and the last answer on the cases that scorers get wrong."""

import numpy as np
import pytest

from shared.rewards import score, targets
from shared.rewards.answers import after_mark, last_answer, last_boxed
from shared.rewards.text import exact_match, f1, normalise


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("a an the", ""),
        ("theatre of an ant", "theatre of ant"),
        ("U.S.A.", "usa"),
        ("twenty-one", "twentyone"),
        ("don't", "dont"),
        ("1,234.5", "12345"),
        ("Beyoncé", "beyoncé"),
        ("ÉTÉ", "été"),
        ("“quoted”", "“quoted”"),
        ("a.b", "ab"),
        ("\tA\nnew   line ", "new line"),
        ("", ""),
    ],
)
def test_normalisation_is_the_published_one(text: str, normal: str):
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("answer", "wanted", "right"),
    [
        ("the Eiffel Tower.", ["Eiffel tower"], True),
        ("Eiffel", ["Eiffel tower"], False),
        ("two", ["three", "Two"], True),
        ("14 December 1972", ["14 December 1972 UTC", "December 1972"], False),
        ("", ["x"], False),
        ("", ["the"], False),
        ("  ", [""], False),
        ("the", ["A"], False),  # nothing is left of either
        ("!", ["The"], False),
        (" a", ["A"], True),
        ("The", ["A", "the"], True),
        ("x", [], False),
        ("1 234", ["1,234"], False),
        ("6½", ["6½"], True),
        ("東京", ["東京"], True),
        ("Beyonce", ["Beyoncé"], False),
    ],
)
def test_exact_match_on_hard_cases(answer: str, wanted: list[str], right: bool):
    assert exact_match(answer, wanted) is right


@pytest.mark.parametrize(
    ("answer", "wanted", "value"),
    [
        ("the Eiffel Tower", ["Eiffel Tower in Paris"], 2 * 2 / (2 + 4)),
        ("Paris Paris", ["Paris"], 2 * 1 / (2 + 1)),
        ("cat", ["dog", "black cat", "cat"], 1.0),
        ("cat", ["dog"], 0.0),
        ("the", ["A"], 0.0),
        ("A", ["a"], 1.0),
        ("the", ["cat"], 0.0),
        ("", ["the"], 0.0),
        ("cat", [], 0.0),
    ],
)
def test_f1_on_hard_cases(answer: str, wanted: list[str], value: float):
    assert f1(answer, wanted) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> Paris </answer>", "Paris"),
        ("<answer>Rome</answer> no, <answer>Paris</answer>", "Paris"),
        ("<answer>Rome</answer> <answer>Paris", "Rome"),
        ("<answer>Rome<answer>Paris</answer>", "Paris"),
        ("<answer>Paris</answer> </answer>", "Paris"),
        ("<think>not <answer>Rome</answer></think><answer>Paris</answer>", "Paris"),
        ("<think>it is <answer>Paris</answer>", "Paris"),
        ("<answer></answer>", ""),
        ("</answer>Paris<answer>", None),
        ("Paris", None),
        ("", None),
        ("<Answer>Paris</Answer>", None),
        ("<answer>a\nb</answer>", "a\nb"),
    ],
)
def test_the_last_closed_answer_counts(text: str, answer: str | None):
    assert last_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed 7 is it", "7"),
        (r"$\boxed{x = \boxed{5}}$", "5"),
        (r"\fbox{9}", "9"),
        (r"\boxed{1} and \boxed{2", None),
        (r"\boxed{}", ""),
        ("42", None),
    ],
)
def test_the_last_box_counts(text: str, boxed: str | None):
    assert last_boxed(text) == boxed


def test_the_line_after_the_last_mark_is_the_gsm8k_answer():
    assert after_mark("so 3\n#### 18\nmore") == "18"
    assert after_mark("#### 1\n#### -2,000") == "-2,000"
    assert after_mark("####") is None
    assert after_mark("none") is None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("Paris", ["Paris"]),
        (["Paris", "Rome", "Paris"], ["Paris", "Rome"]),
        ({"target": ["Paris"]}, ["Paris"]),
        ({"target": "Paris"}, ["Paris"]),
        ({"target": np.array(["Paris", "Rome"], dtype=object)}, ["Paris", "Rome"]),
        (np.array(["Paris"]), ["Paris"]),
        (np.str_("Paris"), ["Paris"]),
        (np.float64(27.0), ["27"]),
        (27.0, ["27"]),
        (0, ["0"]),
        (0.5, ["0.5"]),
        ("They pay 9*2.\n#### 18", ["18"]),
        (None, []),
        ([], []),
        ({"target": []}, []),
        (["", " "], []),
    ],
)
def test_acceptable_answers_come_in_any_form(given: object, wanted: list[str]):
    assert targets(given) == wanted


def test_a_reward_of_none_means_there_was_nothing_to_score():
    assert score("em", None, ["x"]).reward is None
    assert score("em", "<answer>x</answer>", []).reward is None
    assert score("em", "<answer>x</answer>", {"target": None}).correct is False
    assert score("math", r"\boxed{1}", "").reward is None
    assert score("em", "", ["x"]).reward == 0.0


def test_correct_is_about_the_answer_whatever_the_reward():
    partial = score("f1", "<answer>the big tower</answer>", ["Eiffel tower"])
    assert partial.reward == pytest.approx(0.5)
    assert partial.correct is False
    assert partial.parts == {"f1": pytest.approx(0.5), "answered": 1.0, "well_formed": 0.0}
    assert score("f1", "<answer>tower</answer>", ["the Tower"]).correct is True
