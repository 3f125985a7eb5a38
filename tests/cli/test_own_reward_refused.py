"""`headrace up` calls reward.function once before it starts anything."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import main


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "there is no such file; check the path."),
        (
            "def score(text, ground_truth): return ground_truth[7]",
            "raised IndexError: list index out of range, called on",
        ),
        ("def score(completions): return [1.0]", "takes 'completions', which is none of question, text,"),
        ("def other(text): return 1", "has no function 'score'; there are other."),
        ("def score(text): return float(text == 'a weir')", ""),
    ],
)
def test_a_function_is_tried_before_anything_starts(
    write_config: Callable[..., Path], tmp_path: Path, capsys, source: str | None, said: str
):
    file = tmp_path / "my_reward.py"
    if source:
        file.write_text(source)
    status = main(
        ["up", str(write_config()), "--reward.function", f"{file}:score", *(["--dry-run"] if not said else [])]
    )
    sentence = capsys.readouterr().err
    assert status == (2 if said else 0), sentence
    if said:
        assert sentence.startswith(f"headrace: reward.function = '{file}:score'") and said in sentence
        assert sentence.count("\n") == 1
