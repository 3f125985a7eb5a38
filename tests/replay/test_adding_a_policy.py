"""docs/adding-a-policy.md, followed to the letter: its files are written, found by name, and its test is run."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.replay import policies
from shared.config import build
from shared.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "adding-a-policy.md").read_text()
FILES = {
    block.splitlines()[0].removeprefix("# "): block
    for block in re.findall(r"```python\n(# \S+\.py\n.*?)```", PAGE, re.S)
}
POLICY, TEST = "services/replay/policies/least_used.py", "tests/replay/test_least_used.py"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's files in a folder of their own, which the packages take in as if it were theirs."""
    assert set(FILES) == {POLICY, TEST}
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str((tmp_path / POLICY).parent)])
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("services.replay.policies.least_used", None)


def test_the_file_alone_makes_the_policy_known(written: Path):
    assert "least_used" in policies.names()
    assert policies.get_policy(build({"replay": {"policy": "least_used"}}).replay.policy).name == "least_used"


def test_the_page_s_test_passes(written: Path):
    made: dict = {}
    exec(compile((written / TEST).read_text(), str(written / TEST), "exec"), made)
    tests = [f for name, f in made.items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_page_s_files_are_formatted_and_clean(name: str):
    def ruff(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", name, "-"]
        return subprocess.run(command, input=FILES[name], capture_output=True, text=True, cwd=REPOSITORY)

    assert ruff("format").stdout == FILES[name]
    checked = ruff("check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_name_without_a_file_is_refused_with_the_nearest(written: Path):
    with pytest.raises(UserError, match="did you mean 'least_used'"):
        policies.get_policy("least_usd")
    with pytest.raises(UserError, match="there are"):
        policies.get_policy("qqqq")


def test_the_table_names_real_fields_and_real_policies():
    rows = re.findall(r"^\| (`.+?) \| .+? \| (.+?) \|$", PAGE, re.M)
    fields = {name for cell, _ in rows for name in re.findall(r"`(\w+)", cell)}
    assert fields == set(policies.Policy.__dataclass_fields__) - {"name", "order"}
    mentioned = {name for _, cell in rows for name in re.findall(r"`(\w+)`", cell)} - {"None"}
    assert mentioned and mentioned <= set(policies.names())
