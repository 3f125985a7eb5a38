"""Building an index (interrupted, repeated, refused) and opening it only with its own corpus."""

import fcntl
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from services.env_search.backend import IndexSpec
from services.env_search.index import build_index, open_index
from shared.errors import UserError


def index_bytes(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


class Interrupt:
    """A progress that stops the build at the n-th report of a stage, and notes what it heard."""

    def __init__(self, stage: str, at: int = 10**9) -> None:
        self.stage, self.at = stage, at
        self.heard: list[tuple[str, int, int]] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.heard.append((stage, done, total))
        if stage == self.stage and sum(name == stage for name, _, _ in self.heard) == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("stage", "at"), [("reading", 1), ("reading", 2), ("scoring", 1)])
def test_an_interrupted_build_continues_and_gives_the_same_index(corpus_file: Path, tmp_path: Path, stage, at):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    build_index(corpus_file, whole, IndexSpec(), chunk_documents=2)
    with pytest.raises(KeyboardInterrupt):
        build_index(corpus_file, resumed, IndexSpec(), Interrupt(stage, at), chunk_documents=2)
    assert not resumed.exists(), "an unfinished index must not be in place"
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "resumed.building" / "scratch").glob("*.npz")}
    assert len(kept) == (at if stage == "reading" else 3)

    seen = {}

    def progress(stage: str, done: int, total: int) -> None:
        seen.update({path: path.stat().st_mtime_ns for path in kept})

    build_index(corpus_file, resumed, IndexSpec(), progress, chunk_documents=2)
    assert seen == kept, "chunks that were done must be kept, not written again"
    assert index_bytes(resumed) == index_bytes(whole)
    assert not (tmp_path / "resumed.building").exists()


@pytest.mark.slow
def test_a_killed_build_continues(tmp_path: Path):
    corpus = tmp_path / "corpus.jsonl"
    rows = ({"id": str(i), "contents": f"river{i % 977} mill{i % 31} weir{i}"} for i in range(10_000))
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(corpus, tmp_path / "whole", IndexSpec(), chunk_documents=200)
    script = (
        "from pathlib import Path; from services.env_search.index import *; import sys; "
        "build_index(Path(sys.argv[1]), Path(sys.argv[2]), IndexSpec(), chunk_documents=200)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(corpus), str(tmp_path / "index")])
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("index.building/scratch/*.npz"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "index").exists()
    built = build_index(corpus, tmp_path / "index", IndexSpec(), chunk_documents=200)
    assert not built.reused
    assert index_bytes(tmp_path / "index") == index_bytes(tmp_path / "whole")


def test_a_build_begun_for_other_settings_starts_over(corpus_file: Path, tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        build_index(corpus_file, tmp_path / "index", IndexSpec(), Interrupt("reading", 2), chunk_documents=2)
    plain = IndexSpec(stemmer="none")
    build_index(corpus_file, tmp_path / "index", plain, chunk_documents=2)
    build_index(corpus_file, tmp_path / "fresh", plain, chunk_documents=2)
    assert index_bytes(tmp_path / "index") == index_bytes(tmp_path / "fresh")


def test_an_index_that_is_there_is_reused_and_an_old_one_replaced(corpus_file: Path, tmp_path: Path):
    out = tmp_path / "index"
    first = build_index(corpus_file, out, IndexSpec())
    heard = Interrupt("none")
    assert build_index(corpus_file, out, IndexSpec(), heard).reused
    assert heard.heard == []
    corpus_file.write_text(corpus_file.read_text() + '{"contents": "a lock gate"}\n\n')
    second = build_index(corpus_file, out, IndexSpec())
    assert (second.reused, second.documents) == (False, 6)
    assert second.fingerprint != first.fingerprint
    opened = open_index(corpus_file, out, IndexSpec())
    assert opened.corpus[int(opened.backend.search(["lock"], 1)[0][0, 0])]["id"] == "5"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


def test_a_corpus_that_changed_is_refused(corpus_file: Path, tmp_path: Path):
    build_index(corpus_file, tmp_path / "index", IndexSpec())
    text = corpus_file.read_text()
    corpus_file.write_text(text.replace("barley", "barlex"))  # of the same length
    with pytest.raises(UserError, match=r"is not the index of .*corpus.jsonl, which has other content: build it again"):
        open_index(corpus_file, tmp_path / "index", IndexSpec())
    corpus_file.write_text(text.replace('{"id": "2"', '{"id": 2"'))
    with pytest.raises(UserError, match=r"corpus.jsonl line 3: is not JSON\.$"):
        open_index(corpus_file, tmp_path / "index", IndexSpec())


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (IndexSpec(k1=1.2), r"was built with k1 = 0.9 but search.k1 is 1.2: change the setting, or build"),
        (
            IndexSpec(k1=1.2, stemmer="none"),
            r"k1 = 0.9 but search.k1 is 1.2 and stemmer = 'english' but search.stemmer is 'none': change the settings,",
        ),
        (IndexSpec(stemmer="none"), r"was built with stemmer = 'english' but search.stemmer is 'none'"),
        (IndexSpec(backend="dense", encoder="x"), r"is a bm25 index but search.backend is dense: build it again"),
    ],
)
def test_an_index_of_other_settings_is_refused(corpus_file: Path, tmp_path: Path, spec: IndexSpec, sentence: str):
    build_index(corpus_file, tmp_path / "index", IndexSpec())
    with pytest.raises(UserError, match=sentence):
        open_index(corpus_file, tmp_path / "index", spec)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{not json", r"corpus.jsonl line 8: is not JSON\."),
        ('{"id": "9"}', r'corpus.jsonl line 8: has no "contents"'),
        ('{"contents": 5}', r'corpus.jsonl line 8: has no "contents"'),
        ('["contents"]', r'corpus.jsonl line 8: has no "contents"'),
    ],
)
def test_a_malformed_line_is_named(corpus_file: Path, tmp_path: Path, line: str, sentence: str):
    corpus_file.write_text(corpus_file.read_text() + "\n\r\n" + line + "\n")
    with pytest.raises(UserError, match=sentence):
        build_index(corpus_file, tmp_path / "index", IndexSpec())
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path):
    (tmp_path / "corpus.jsonl").write_bytes(b'{"contents": "caf\xe9"}\n')
    with pytest.raises(UserError, match=r"line 1: is not UTF-8 text\."):
        build_index(tmp_path / "corpus.jsonl", tmp_path / "index", IndexSpec())


def test_what_is_missing_or_empty_is_named(corpus_file: Path, tmp_path: Path):
    missing = tmp_path / "nowhere.jsonl"
    for refused in (build_index, open_index):
        with pytest.raises(UserError, match=r"nowhere.jsonl cannot be read \(No such file or directory\)"):
            refused(missing, tmp_path / "index", IndexSpec())
    with pytest.raises(UserError, match=r"holds no index: run `headrace index build"):
        open_index(corpus_file, tmp_path / "index", IndexSpec())
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match="holds no documents"):
        build_index(tmp_path / "empty.jsonl", tmp_path / "index", IndexSpec())


def test_a_directory_that_is_no_index_is_left_alone(corpus_file: Path, tmp_path: Path):
    out = tmp_path / "precious"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="exists and is not an index"):
        build_index(corpus_file, out, IndexSpec())
    assert (out / "thesis.txt").exists()


def test_two_builds_of_one_index_do_not_run_at_once(corpus_file: Path, tmp_path: Path):
    with (tmp_path / "index.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is being built by another process"):
            build_index(corpus_file, tmp_path / "index", IndexSpec())
    build_index(corpus_file, tmp_path / "index", IndexSpec())


def test_offsets_are_kept_with_the_index(corpus_file: Path, tmp_path: Path):
    build_index(corpus_file, tmp_path / "index", IndexSpec())
    offsets = np.load(tmp_path / "index" / "offsets.npy")
    data = corpus_file.read_bytes()
    assert [data[start : start + 6] for start in offsets.tolist()] == [b'{"id":'] * 5
