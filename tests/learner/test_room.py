"""On a full disk the learner waits, says so, and writes when there is room; any other error is raised."""

import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from services.learner.stop import Stop, Stopped
from services.learner.weights.room import PROBE_BYTES, until_written
from shared.errors import UserError

TENSOR = torch.zeros(PROBE_BYTES // 2)  # twice the probe
WRITERS: dict[str, Callable[[Path], object]] = {
    "plain": lambda folder: (folder / "a").write_bytes(bytes(2 * PROBE_BYTES)),
    "safetensors": lambda folder: save_file({"a": TENSOR}, folder / "a"),
    "torch": lambda folder: torch.save(TENSOR, folder / "a"),
}


@pytest.fixture
def full_disk() -> Iterator[Callable[[], None]]:
    """No file of this process may grow beyond half a probe (EFBIG, as a full disk's ENOSPC) until this is called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PROBE_BYTES // 2, hard))

    def make_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    yield make_room
    make_room()


@pytest.mark.parametrize("name", WRITERS)
def test_a_write_without_room_is_told_once_and_made_when_there_is_some(
    name: str, tmp_path: Path, full_disk: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.learner.talk.patience.RETRY_S", 0.05)
    tries, told = [], []

    def write() -> str:
        tries.append(1)
        if len(tries) == 4:
            full_disk()
        WRITERS[name](tmp_path)
        return "written"

    assert until_written(Stop(), tmp_path, write, told.append) == "written"
    assert len(tries) == 4 and len(told) == 1
    assert told[0].startswith(f"no room in {tmp_path} since 0 s (")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mine"),
        *(OSError(number, os.strerror(number)) for number in (errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EMFILE)),
        RuntimeError(f"Error while serializing: I/O error: {os.strerror(errno.ESTALE)} (os error {errno.ESTALE})"),
    ],
    ids=str,
)
def test_another_error_is_raised_at_once(tmp_path: Path, error: Exception) -> None:
    """As it is, since the next life of the learner may write: a UserError would end the run."""
    told: list[str] = []
    with pytest.raises(type(error)) as raised:
        until_written(Stop(), tmp_path, lambda: (_ for _ in ()).throw(error), told.append)
    assert raised.value is error and told == []


@pytest.mark.parametrize("name", ["plain", "safetensors"])
def test_a_folder_that_cannot_be_written_is_told_in_a_sentence(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.write_bytes(b"a file in its place")
    with pytest.raises(UserError, match=rf"^{folder} cannot be written \(.*Not a directory"):
        until_written(Stop(), folder, lambda: WRITERS[name](folder), lambda text: None)


def test_a_stop_is_heeded_while_there_is_no_room(tmp_path: Path, full_disk: Callable[[], None]) -> None:
    stop = Stop()
    told: list[str] = []
    threading.Timer(0.2, stop._asked.set).start()  # `ask` would end this process in the end
    with pytest.raises(Stopped):
        until_written(stop, tmp_path, lambda: WRITERS["plain"](tmp_path), told.append)
    assert len(told) == 1
