"""`headrace index build` from its arguments to what it prints."""

import argparse
from pathlib import Path

import pytest

from cli import index
from services.env_search.manifest import read_manifest
from shared.errors import UserError


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    index.add_parser(parser.add_subparsers())
    args = parser.parse_args(["index", "build", *arguments])
    return args.run(args)


def test_it_prints_documents_seconds_bytes_and_fingerprint(corpus_file: Path, tmp_path: Path, capsys):
    out = tmp_path / "ix"
    assert command(str(corpus_file), str(out), "--k1", "1.5", "--stemmer", "none") == 0
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.settings == {"k1": 1.5, "b": 0.4, "stemmer": "none"}
    said = capsys.readouterr().out
    for word in ("built", "documents", "seconds", "bytes", manifest.fingerprint, "5/5"):
        assert word in said
    assert command(str(corpus_file), str(out), "--k1", "1.5", "--stemmer", "none") == 0
    assert "already built" in capsys.readouterr().out


def test_a_dense_index_without_encoder_is_refused(corpus_file: Path, tmp_path: Path):
    with pytest.raises(UserError, match="give --encoder"):
        command(str(corpus_file), str(tmp_path / "ix"), "--backend", "dense")
