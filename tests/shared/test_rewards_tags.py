"""The tag grammar on sampled text, and the graded score built on it."""

import random
import re

import pytest

from shared.rewards import fingerprint, score
from shared.rewards.tags import check_form

GOOD = "<think>who</think> <search>mill river</search>\n<think>so</think>\n<answer>barley</answer>"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD, ""),
        ("<think>known</think><answer>barley</answer>\n", ""),
        ("<think></think><answer>barley</answer>", ""),
        ("<think>a < b and <b>bold</b></think><answer>x</answer>", ""),
        ("", "no <answer> at the end"),
        ("<answer>x</answer>", "<answer> after the start"),
        ("<search>x</search>", "<search> after the start"),
        ("<think>a</think>", "no <answer> at the end"),
        ("<think>a</think><search>b</search><search>c</search>", "<search> after </search>"),
        ("<think>a</think><search>b</search><answer>c</answer>", "<answer> after </search>"),
        ("<think>a</think><think>b</think><answer>c</answer>", "<think> after </think>"),
        ("<think>a</think> so <answer>c</answer>", "text outside tags before <answer>"),
        ("Hm. <think>a</think><answer>c</answer>", "text outside tags before <think>"),
        ("<think>a</think><answer>c</answer> done", "text after the last tag"),
        ("<think>a</think><answer>c</answer><think>d</think>", "<think> after </answer>"),
        ("<think>a</think><answer>c</answer><answer>d</answer>", "<answer> after </answer>"),
        ("<think>a <search>b</search></think><answer>c</answer>", "<search> inside <think>"),
        ("<think>a <answer>c</answer>", "<answer> inside <think>"),
        ("<think>a</answer>", "</answer> inside <think>"),
        ("</think>", "</think> closes nothing"),
        ("<think>a</think><search>b", "<search> is not closed"),
        ("<think>a</think><search> </search>", "<search> is empty"),
        ("<think>a</think><answer></answer>", "<answer> is empty"),
        ("<think>a</think><search>b</search><information>I made this up</information>", "<information> belongs"),
        ("<think>a <information>x</think><answer>c</answer>", "<information> belongs to the environment"),
    ],
)
def test_the_first_fault_is_named(text: str, reason: str):
    form = check_form(text)
    assert form.ok is (reason == "")
    assert form.reason.startswith(reason)


def test_searches_are_counted():
    assert check_form(GOOD).searches == 1
    assert check_form("<think>a</think><search>b</search>" * 3 + "<think>c</think><answer>d</answer>").searches == 3


def test_the_walk_accepts_exactly_the_language_of_the_grammar():
    """Against a regular expression of the whole grammar, over random strings of tags."""
    whole = re.compile(r"(<think>x</think><search>x</search>)*<think>x</think><answer>x</answer>")
    pieces = [f"<{slash}{name}>" for name in ("think", "search", "answer") for slash in ("", "/")]
    whole_elements = [f"<{name}>x</{name}>" for name in ("think", "search", "answer")]
    chance = random.Random(0)
    accepted = 0
    for _ in range(20_000):
        tags = whole_elements if chance.random() < 0.9 else pieces
        text = "".join(chance.choice(tags) for _ in range(chance.randint(0, 6)))
        assert check_form(text).ok is bool(whole.fullmatch(text)), text
        accepted += check_form(text).ok
    assert accepted > 300


@pytest.mark.parametrize(
    ("text", "graded"),
    [
        (GOOD, 1.0),
        ("<answer>barley</answer>", 0.8),
        (GOOD.replace("barley", "wheat"), 0.2),
        ("<answer>wheat</answer>", 0.1),
        ("barley", 0.0),
        ("<think>barley</think>", 0.0),
    ],
)
def test_the_graded_score_is_the_usual_one_and_off_by_default(text: str, graded: float):
    scored = score("em", text, ["barley"], format_score=True)
    assert scored.reward == pytest.approx(graded)
    assert scored.correct is ("<answer>barley" in text)
    assert score("em", text, ["barley"]).reward == float("<answer>barley" in text)


def test_partial_credit_lies_between_the_ends_of_the_graded_score():
    text = GOOD.replace("barley", "barley bread")
    assert score("f1", text, ["barley"], format_score=True).reward == pytest.approx(0.2 + 0.8 * 2 / 3)


def test_the_fingerprint_follows_the_settings():
    base = fingerprint(kind="em", format_score=False)
    assert base == fingerprint(format_score=False, kind="em")
    assert len({base, fingerprint(kind="f1", format_score=False), fingerprint(kind="em", format_score=True)}) == 3
    assert re.fullmatch(r"[0-9a-f]{16}", base)
