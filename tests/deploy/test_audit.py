"""The audit of locked versions: what is known to be vulnerable fails, and what cannot be found out is said."""

import json
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.e2e.command import REPOSITORY

FINE = {"name": "redis", "version": "7.0.0", "vulns": []}
UNKNOWN = {"name": "numpy", "skip_reason": "not in the database"}
BAD = {"name": "aiohttp", "version": "3.0.0", "vulns": [{"id": "GHSA-1", "fix_versions": ["3.1.0"]}]}
LOCK = Path("some.txt")


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    loader = SourceFileLoader("audit", str(REPOSITORY / ".ci" / "audit"))
    spec = spec_from_loader("audit", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def answers(monkeypatch: pytest.MonkeyPatch, audit: ModuleType, stdout: str, stderr: str = "") -> None:
    """pip-audit, whose database is not to be had in every place."""
    done: Any = subprocess.CompletedProcess([], 1, stdout, stderr)
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: done)


def test_a_version_that_is_known_to_be_vulnerable_fails_with_its_mend(monkeypatch, audit, capsys):
    answers(monkeypatch, audit, json.dumps({"dependencies": [FINE, UNKNOWN, BAD]}))
    assert audit.audit("python", LOCK) == 1
    assert capsys.readouterr().out.splitlines() == [
        "some.txt: 2 of 3 versions are in the database",
        "  aiohttp 3.0.0: GHSA-1, mended in 3.1.0",
    ]


def test_good_and_unknown_versions_pass(monkeypatch, audit, capsys):
    answers(monkeypatch, audit, json.dumps({"dependencies": [FINE, UNKNOWN]}))
    assert audit.audit("python", LOCK) == 0
    assert capsys.readouterr().out == "some.txt: 1 of 2 versions are in the database\n"


def test_a_database_that_is_away_is_said(monkeypatch, audit, capsys):
    answers(monkeypatch, audit, "", "ConnectionError: no route")
    assert audit.audit("python", LOCK) == 0
    assert capsys.readouterr().out == "some.txt: nothing is audited: ConnectionError: no route\n"
