"""What the code says of the pages is there."""

import re
import subprocess
from pathlib import Path

import pytest

from services.learner.clock import PHASES

REPOSITORY = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"(docs/[a-z-]+\.md),? \(?sections? ([0-9, and]*[0-9])")


def sources() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this tree is no git checkout")
    return [REPOSITORY / name for name in listed.stdout.split() if (REPOSITORY / name).is_file()]


def test_every_section_that_a_comment_names_has_that_number() -> None:
    named = [
        (file, page, number)
        for file in sources()
        for page, numbers in NAMED.findall(file.read_text())
        for number in re.findall("[0-9]+", numbers)
    ]
    assert len(named) > 10
    headings = {page: (REPOSITORY / page).read_text() for page in {page for _, page, _ in named}}
    wrong = [f"{f.name}: {page} {n}" for f, page, n in named if f"\n## {n}. " not in headings[page]]
    assert not wrong


def test_a_page_is_named_with_its_folder() -> None:
    loose = [f.name for f in sources() if re.search(r"(?<![/\w-])(method|design)\.md\b", f.read_text())]
    assert loose == [Path(__file__).name] * (Path(__file__).name in loose)


def test_the_fields_of_metrics_that_are_told_of_are_written() -> None:
    page = (REPOSITORY / "docs" / "operations.md").read_text().partition("### Fields of metrics.jsonl")[2]
    rows = [row.split("|")[1] for row in page.partition("###")[0].splitlines() if row.startswith("| `")]
    named = [found for row in rows for found in re.findall(r"`(learner\.)?(\w+)`", row)]
    replays = written_in("replay/stats.py", "replay/lengths.py", "replay/transitions.py")
    learners = written_in("learner/metrics.py", "learner/clock.py") | {f"{phase}_s" for phase in PHASES}
    missing = [prefix + name for prefix, name in named if name not in (learners if prefix else replays)]
    assert len(named) > 30 and not missing


def written_in(*files: str) -> set[str]:
    """The keys of the dictionaries that these files of services/ make."""
    code = "".join((REPOSITORY / "services" / file).read_text() for file in files)
    return {*re.findall(r'"(\w+)":', code), *re.findall(r'\["(\w+)"\] =', code)}
