"""The compose files as text: nothing needs an engine, and `docker compose config` only its command line."""

import os
import re
import shutil
import subprocess
from typing import Any

import pytest

from tests.deploy.composed import FORMS, REPOSITORY, defaults, env_file, loaded, published

OURS = ("replay", "env-search", "learner", "actor", "report")


def _compose() -> list[str]:
    """The command line of Compose 2, as a part of docker's or alone; empty where there is none."""
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]):
            answer = subprocess.run([*words, "version", "--short"], capture_output=True, text=True, check=False)
            if answer.returncode == 0 and answer.stdout.lstrip("v").startswith("2."):
                return words
    return []


@pytest.fixture(params=FORMS, ids=["cpu", "gpu"])
def composed(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A form with the values of .env.example and a password."""
    return loaded(request.param, env_file(".env.example") | {"HEADRACE_REDIS_PASSWORD": "x"})


@pytest.mark.skipif(not _compose(), reason="docker compose is not installed")
@pytest.mark.parametrize("files", FORMS, ids=["cpu", "gpu"])
def test_only_the_password_is_missing_and_without_it_the_start_fails_with_one_sentence(files):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    words = [word for file in files for word in ("-f", str(REPOSITORY / file))]
    command = [*_compose(), "--env-file", os.devnull, *words, "--profile", "monitoring", "config", "-q"]
    refused = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert refused.returncode and "set HEADRACE_REDIS_PASSWORD in .env, see .env.example" in refused.stderr
    environment["HEADRACE_REDIS_PASSWORD"] = "x"
    taken = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (taken.returncode, taken.stderr) == (0, "")


@pytest.mark.parametrize("files", FORMS, ids=["cpu", "gpu"])
def test_nothing_but_the_password_has_to_be_set(files):
    with pytest.raises(KeyError, match="set HEADRACE_REDIS_PASSWORD in"):
        loaded(files, {})
    made = loaded(files, {"HEADRACE_REDIS_PASSWORD": "x"})
    assert made == loaded(files, env_file(".env.example") | {"HEADRACE_REDIS_PASSWORD": "x"}), "the example's values"
    assert set(OURS) <= set(made["services"])


def test_env_example_explains_every_variable_of_the_compose_files():
    told = (REPOSITORY / ".env.example").read_text()
    text = "".join((REPOSITORY / name).read_text() for name in FORMS[1])
    passed_on = re.findall(r"^ +(HEADRACE_\w+):$", text, re.MULTILINE)
    named = {*re.findall(r"\$\{(\w+)", text), *passed_on}
    assert len(named) > 15 and [name for name in sorted(named) if f"{name}=" not in told] == []
    assert "HEADRACE_REDIS_PASSWORD=\n" in told, "no default password"


def test_every_published_port_is_the_loopbacks_and_the_table_of_the_operators_has_it(composed):
    told = operators_table()
    assert set(told) == set(composed["services"])
    for name, service in composed["services"].items():
        port = re.match(r"\d+", told[name]["port on 127.0.0.1"])
        assert published(service) == ([("127.0.0.1", int(port[0]))] if port else []), name
        assert not service.get("network_mode") and "privileged" not in service, name
    assert sum(bool(published(service)) for service in composed["services"].values()) == 3


def test_the_table_of_the_operators_has_the_images_and_every_root_is_read_only(composed):
    for name, row in operators_table().items():
        service = composed["services"][name]
        assert service["image"].removesuffix("-cpu").removesuffix("-cuda") in row["image"]
        assert service["read_only"] is True and row["root file system"].startswith("read-only"), row
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"], row
        assert not service["image"].endswith(":latest") and (":" in service["image"] or "build" in service), row


def operators_table() -> dict[str, dict[str, str]]:
    """The services as docs/operations.md lists them, by name."""
    lines = (REPOSITORY / "docs" / "operations.md").read_text().splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| service |"))
    rows = []
    for line in (lines[head], *lines[head + 2 :]):
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {re.split(r"[ ,]", row[0])[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}


@pytest.mark.parametrize(
    ("ports", "wanted"),
    [
        (["127.0.0.1:80:8001"], [("127.0.0.1", 80)]),
        (["80:8001/tcp"], [("0.0.0.0", 80)]),
        (["[::1]:80:8001"], [("::1", 80)]),
        ([{"target": 8001, "published": "80"}], [("0.0.0.0", 80)]),
        ([{"target": 8001, "published": 80, "host_ip": "127.0.0.1"}], [("127.0.0.1", 80)]),
    ],
)
def test_a_port_is_seen_in_whichever_way_it_is_written(ports, wanted):
    assert published({"ports": ports}) == wanted


def test_the_gpu_form_is_the_other_one_with_gpus_for_learner_and_actors_alone():
    variables = {"HEADRACE_REDIS_PASSWORD": "x"}
    cpu, gpu = (loaded(files, variables)["services"] for files in FORMS)
    changed = {name for name in cpu if cpu[name] != gpu[name]}
    assert changed == {"learner", "actor"} and set(cpu) == set(gpu)
    for name in changed:
        assert gpu[name]["build"]["args"] == cpu[name]["build"]["args"] | {"ACCELERATOR": "cuda"}
        assert cpu[name]["environment"].items() <= gpu[name]["environment"].items()
        assert gpu[name]["environment"]["HEADRACE_RUN__GPUS"] == "lease"
        (devices,) = gpu[name]["deploy"]["resources"]["reservations"]["devices"]
        assert devices["capabilities"] == ["gpu"] and devices["count"] == "all"


def test_base_images_are_of_a_version_and_the_same_wherever_they_are_named():
    lines = (REPOSITORY / "deploy" / "docker" / "Dockerfile").read_text().splitlines()
    named = {
        line.split()[1].split("=")[0]: line.split("=")[1] for line in lines if line.startswith("ARG ") and "=" in line
    }
    taken = defaults(FORMS[1])
    for image in ("PYTHON_IMAGE", "VLLM_IMAGE"):
        assert named[image] == taken[f"HEADRACE_{image}"]
    pinned = [taken[f"HEADRACE_{image}_IMAGE"] for image in ("PYTHON", "VLLM", "REDIS")]
    assert all(re.search(r":v?\d+\.\d+\.\d+", image) for image in pinned), pinned
    assert [line for line in lines if line.startswith("FROM ") and ":" in line] == []
