"""Passages read from the map: titles, ids, digests, offsets."""

from pathlib import Path

import numpy as np
import pytest

from services.env_search import corpus as corpus_module
from services.env_search.corpus import Corpus, corpus_digest, parse_document, split_contents
from shared.lines import LineFile


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"Super Bowl 50"\nThe Panthers', "Super Bowl 50", "The Panthers"),
        ("Super Bowl 50\nThe Panthers", "Super Bowl 50", "The Panthers"),
        ('"A"\nb\nc', "A", "b\nc"),
        ("no title at all", "", "no title at all"),
        ('"\nquote', '"', "quote"),
        ("", "", ""),
    ],
)
def test_contents_are_split_into_title_and_body(contents: str, title: str, text: str):
    assert split_contents(contents) == (title, text)


def test_a_row_keeps_its_own_title_text_and_id():
    line = b'{"id": 7, "contents": "x\\ny", "title": "T", "text": "body", "url": "u"}'
    assert parse_document(line, 3) == {"id": "7", "contents": "x\ny", "title": "T", "text": "body"}
    assert parse_document(b'{"contents": "x"}', 3)["id"] == "3"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_found_whatever_ends_them_and_empty_ones_skipped(tmp_path: Path, end: str):
    path = tmp_path / "lines"
    path.write_bytes(end.join(["{1}", "", "{22}", "", "", "{333}"]).encode())
    lines = LineFile(path)
    assert [line.strip() for line in lines] == [b"{1}", b"{22}", b"{333}"]
    assert [lines.number(index) for index in range(3)] == [1, 3, 6]
    with pytest.raises(IndexError):
        lines[3]
    (tmp_path / "none").write_bytes(b"")
    assert len(LineFile(tmp_path / "none")) == 0


def test_lines_are_found_across_blocks(tmp_path: Path, monkeypatch):
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(100, 300)))
    monkeypatch.setattr("shared.lines.BLOCK_BYTES", 7)
    lines = LineFile(path)
    assert [int(line) for line in lines] == list(range(100, 300))
    assert lines.number(150) == 151


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"contents": "x"}\n')
    assert Corpus(path)[0]["contents"] == "x"


def test_the_sampled_digest_sees_insertion_and_growth(tmp_path: Path, monkeypatch):
    path = tmp_path / "corpus.jsonl"
    data = bytes(range(256)) * 4000
    path.write_bytes(data)
    whole = corpus_digest(path)
    monkeypatch.setattr(corpus_module, "WHOLE_DIGEST_BYTES", 1000)
    monkeypatch.setattr(corpus_module, "SAMPLE_BYTES", 100)
    monkeypatch.setattr(corpus_module, "SAMPLE_BLOCKS", 50)
    sampled = corpus_digest(path)
    assert sampled != whole
    path.write_bytes(data[:500] + b"x" + data[500:])
    assert corpus_digest(path) != sampled
    path.write_bytes(data + b"x")
    assert corpus_digest(path) != sampled


def test_an_offset_far_behind_the_file_has_the_number_of_its_end(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"a\nb\n")
    assert LineFile(file, np.array([2**62])).number(0) == 3  # not after hours of counting
