"""The tag parser, the rewards, and what makes a document harmless: every text is read, in time, and acts as it may."""

from typing import Literal

from hypothesis import strategies as st

from services.actor.tags import neutralise, parse_action
from shared.rewards import score
from shared.rewards.answers import after_mark, last_answer, last_boxed
from shared.rewards.tags import check_form
from tests.fuzz.harness import Target
from tests.fuzz.made import nearly_tags

SPECIALS = ("<|im_end|>", "<|end|>", "</s>")


def check_policy_text(text: str) -> bool:
    """True where the text holds an action."""
    action = parse_action(text)
    assert action.kind == "search" or action.kind == "answer" or action.content == ""
    assert f"</{action.kind}>" not in action.content
    if action.kind == "answer":
        assert last_answer(text) is not None
    assert (last_answer(text) or "") in text and (last_boxed(text) or "") in text and (after_mark(text) or "") in text
    form = check_form(text)
    assert form.ok == (form.reason == "") and form.searches <= text.count("<search>")
    kinds: tuple[Literal["em", "f1"], ...] = ("em", "f1")
    for kind in kinds:
        for form_counts in (False, True):
            scored = score(kind, text, ["a b"], format_score=form_counts)
            assert scored.reward is not None and 0 <= scored.reward <= 1
    return action.kind != "invalid"


def check_document(text: str) -> bool:
    """True where something had to be taken out. What is left can neither act, nor close its frame, nor end a turn."""
    safe = neutralise(text, SPECIALS)
    for spoken in (safe, safe.lower(), safe.replace(" ", "")):
        assert parse_action(spoken).kind == "invalid"
    assert "</information>" not in safe.lower() and not any(token in safe for token in SPECIALS)
    assert neutralise(safe, SPECIALS) == safe
    return safe != text


_TEXT = b"<think>a</think><search>b</search><information>c</information><answer>d</answer><|end|>\\boxed{e} #### f"
TARGETS = [
    Target(
        "policy text",
        nearly_tags(),
        check_policy_text,
        lambda b: check_policy_text(b.decode("utf-8", "replace")),
        1,
        lambda: [_TEXT],
    ),
    Target(
        "documents",
        nearly_tags() | st.text(max_size=40),
        check_document,
        lambda b: check_document(b.decode("utf-8", "replace")),
        seeds=lambda: [_TEXT],
    ),
]
