"""`headrace index build` from its arguments to what it prints."""

import argparse
import shlex
from pathlib import Path

import pytest

from cli import index
from services.env_search.backend import IndexSpec, build_command
from services.env_search.index import build_index, open_index
from services.env_search.manifest import read_manifest
from shared.errors import UserError
from shared.settings import Search


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


@pytest.mark.parametrize("settings", [{}, {"stemmer": "none"}, {"k1": 1.2, "b": 0.75}])
def test_the_command_that_a_refusal_prints_builds_the_index_that_was_wanted(
    corpus_file: Path, tmp_path: Path, settings
):
    out, spec = tmp_path / "an index", IndexSpec.of(Search(**settings))
    for older in (None, IndexSpec(k1=2.0), IndexSpec(stemmer="none", b=0.1)):
        if older is not None:
            build_index(corpus_file, out, older)
        with pytest.raises(UserError) as refused:
            open_index(corpus_file, out, spec)
        printed = shlex.split(str(refused.value).split("`")[1])
        assert command(*printed[3:]) == 0
        assert open_index(corpus_file, out, spec).manifest.settings == spec.settings()


def test_the_command_of_a_dense_index_names_its_encoder(tmp_path: Path):
    spec = IndexSpec.of(Search(backend="dense", encoder="models/my encoder", query_prefix=""))
    printed = build_command(Path("c.jsonl"), Path("ix"), spec)
    assert printed == (
        "headrace index build c.jsonl ix --backend dense --encoder 'models/my encoder' --query-prefix ''"
    )
