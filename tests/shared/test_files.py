"""A file that is written whole, and a file that one process at a time holds."""

from pathlib import Path

import pytest

from shared.errors import UserError
from shared.files import hold, write_whole, written_whole


def test_what_was_there_stays_until_the_new_file_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    write_whole(file, "old")
    with pytest.raises(ZeroDivisionError), written_whole(file) as aside:
        aside.write(b"ne")
        raise ZeroDivisionError
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
    write_whole(file, "new", 0o600)
    assert file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_is_held_is_refused_with_the_sentence_given(tmp_path: Path) -> None:
    with hold(tmp_path / ".lock", "taken."), pytest.raises(UserError, match=r"taken\."):
        hold(tmp_path / ".lock", "taken.")
    hold(tmp_path / ".lock", "taken.").close()
