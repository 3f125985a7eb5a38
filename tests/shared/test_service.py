"""What every entry point tells people."""

import pytest

from shared.service import main


def test_a_level_of_logging_that_there_is_not_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_LOG", "verbose")
    with pytest.raises(SystemExit) as left:
        main("learner", lambda config: None)
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "learner: HEADRACE_LOG = 'VERBOSE' is no level: set it to one of DEBUG, INFO, WARNING, ERROR, CRITICAL.\n"
    )
