"""The four services started by hand, as in containers: HEADRACE_* variables and nothing else; a single-turn math run.

They share a Redis and a folder. The run is two steps of mathematics, by a tiny random policy that is right at times.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load_file

from cli.run import local_redis
from cli.run.ports import free_port
from shared.events import parse
from shared.messages import EVAL, FINISHED, TRAIN, TRUNCATED
from shared.streams import Keys
from tests.e2e.command import REPOSITORY
from tests.e2e.tap import Tap, Traffic
from tests.tiny_model import BOXED, END, FIRST_BOX, STOP, write_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

NAME, STEPS, BATCH, GROUP_SIZE, TURN_TOKENS, QUESTIONS = "alone", 2, 4, 8, 30, 24
SERVICES = ("replay", "env_search", "learner", "actor")
RUN_S = 400.0


@dataclass(frozen=True)
class Run:
    """What was seen of a run that has ended."""

    folder: Path
    traffic: Traffic
    events: list[dict[str, Any]]
    first: dict[str, str]  # the first thing each service said to Prometheus
    metrics: dict[str, str]  # and the last
    statuses: dict[str, int]  # with which each left


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The run of this module, from four processes that know each other's ports and no more."""
    root = tmp_path_factory.mktemp("alone")
    folder = root / NAME
    server = local_redis.prepare(folder, 0)
    ports = {name: free_port() for name in SERVICES}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        processes["redis"] = subprocess.Popen(server.command, stdout=subprocess.DEVNULL)
        tap = Tap(folder)
        tap.wait_until_listening()
        variables = settings(root, server.url, ports)
        for name in SERVICES:
            processes[name] = start(name, variables, root)
        first, last = scrape_until_the_end(processes, ports, root)
        assert processes["actor"].wait(30) == 0, "it leaves by itself, as the learner has"
        with redis.Redis.from_url(server.url) as client:
            events = [record for _, record in parse(client.xrange(Keys(NAME).events))]
        for name in SERVICES:
            processes[name].send_signal(signal.SIGTERM)
        statuses = {name: processes[name].wait(10) for name in SERVICES}
        processes["redis"].terminate()
        yield Run(folder, tap.close(), events, first, last, statuses)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def settings(root: Path, redis_url: str, ports: Mapping[str, int]) -> dict[str, str]:
    """The variables of all services."""
    write_model(root / "model", seed=0)
    questions = "abcdefghijklmnopqrstuvwxyz"
    lines = [f'{{"problem": "{a} ( ?", "answer": ["1", "3", "5", "7", "9"]}}\n' for a in questions]
    (root / "train.jsonl").write_text("".join(lines[:12]))
    (root / "held_out.jsonl").write_text("".join(lines))
    (root / "corpus.jsonl").write_text('{"id": "0", "contents": "\\"Weir\\"\\nA weir is a low dam."}\n')
    tree: dict[str, dict[str, object]] = {
        "run": {"name": NAME, "root": root, "steps": STEPS},
        "model": {"path": root / "model"},
        "data": {"train": root / "train.jsonl", "eval": root / "held_out.jsonl"},
        "env": {"kind": "single", "prompt": "plain"},
        "reward": {"kind": "math"},
        "rollout": {
            "group_size": GROUP_SIZE,
            "max_prompt_tokens": 40,
            "max_turn_tokens": TURN_TOKENS,
            "max_tokens": 100,
        },
        "eval": {"limit": QUESTIONS},
        "actor": {"engine": "torch", "threads": 1, "port": ports["actor"]},
        "replay": {"select": 2, "capacity": 8, "max_lag": 1, "port": ports["replay"]},
        "learner": {"batch": BATCH, "lr": 1e-3, "device": "cpu", "threads": 1, "port": ports["learner"]},
        "redis": {"url": redis_url},
        "search": {"corpus": root / "corpus.jsonl", "port": ports["env_search"]},
    }
    return {f"HEADRACE_{s}__{k}".upper(): str(v) for s, values in tree.items() for k, v in values.items()}


def start(name: str, variables: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """`python -m services.<name>`."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    environment = {**inherited, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **variables}
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, "-P", "-m", f"services.{name}"]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def scrape_until_the_end(
    processes: Mapping[str, subprocess.Popen[bytes]], ports: Mapping[str, int], folder: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """The first and the last metrics of each service, looked at until the learner has left by itself."""
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    deadline = time.monotonic() + RUN_S
    with httpx.Client(trust_env=False, timeout=5.0) as client:
        while processes["learner"].poll() is None:
            assert time.monotonic() < deadline, f"not finished after {RUN_S:g} s:\n{logs(folder)}"
            for name in SERVICES:
                assert processes[name].poll() in (None, 0), f"{name} died:\n{logs(folder)}"
                try:
                    last[name] = client.get(f"http://127.0.0.1:{ports[name]}/metrics").raise_for_status().text
                except httpx.TransportError:
                    continue  # not up yet, or just gone
                first.setdefault(name, last[name])
            time.sleep(0.1)
    assert processes["learner"].returncode == 0, logs(folder)
    return first, last


def logs(folder: Path) -> str:
    """What the services wrote."""
    return "\n".join(f"--- {file.stem}\n{file.read_text()}" for file in sorted(folder.glob("*.log")))


def test_each_is_up_within_five_seconds_of_work(run: Run) -> None:
    for name in SERVICES:  # CPU seconds, so that a busy machine does not decide
        families = {family.name: family for family in text_string_to_metric_families(run.first[name])}
        assert families["process_cpu_seconds"].samples[0].value < 5, name


def test_each_leaves_in_good_order(run: Run) -> None:
    assert run.statuses == dict.fromkeys(SERVICES, 0)


def test_two_steps_of_mathematics_are_trained_and_both_evaluations_are_in(run: Run) -> None:
    steps = [e for e in run.events if e["kind"] == "step"]
    assert [e["step"] for e in steps] == list(range(STEPS))
    assert [(e["round"], e["n"], e["failed"]) for e in run.events if e["kind"] == "eval"] == [
        (0, QUESTIONS, 0),
        (STEPS, QUESTIONS, 0),
    ]
    assert sum(e["kind"] == "finished" for e in run.events) == 1  # a swap to the last version may still follow it
    assert [len(batch.fresh) for batch in run.traffic.batches] == [BATCH] * STEPS
    before = load_file(run.folder.parent / "model" / "model.safetensors")
    after = load_file(run.folder / "checkpoints" / "latest" / "model.safetensors")
    assert any((after[name] - before[name]).abs().max() > 0 for name in before)


def test_a_rollout_is_one_turn_all_of_it_sampled_and_right_when_its_last_box_is(run: Run) -> None:
    boxes = dict(enumerate(BOXED, FIRST_BOX))
    outcomes = []
    for id, payload in run.traffic.payloads.items():
        header = run.traffic.headers[id]
        assert payload.documents == [[]] * GROUP_SIZE and header.searches == [0] * GROUP_SIZE
        assert payload.turns.tolist() == [[i, 0, n] for i, n in enumerate(payload.lengths.tolist())]
        for i in range(GROUP_SIZE):
            ids, mask = payload.rollout(i)
            assert mask.all()
            ended = int(ids[-1]) in (END, STOP)
            assert header.statuses[i] == (FINISHED if ended else TRUNCATED)
            assert ended or len(ids) == TURN_TOKENS
            said = [boxes[token] for token in ids.tolist() if token in boxes]
            right = bool(said) and said[-1] in {f"\\boxed{{{odd}}}" for odd in (1, 3, 5, 7, 9)}
            assert (header.correct[i], header.rewards[i]) == (right, float(right))
            outcomes.append(right)
    assert len(run.traffic.payloads) == STEPS * BATCH
    assert 0 < sum(outcomes) < len(outcomes)
    assert any(header.mixed for header in run.traffic.headers.values() if header.kind == TRAIN)
    evaluated = [h for h in run.traffic.headers.values() if h.kind == EVAL]
    assert len(evaluated) == 2 * QUESTIONS


@pytest.fixture(scope="module")
def families(run: Run) -> dict[str, dict[str, Any]]:
    """By service, each metric family by its name."""
    return {name: {f.name: f for f in text_string_to_metric_families(text)} for name, text in run.metrics.items()}


def test_every_metric_that_a_page_a_dashboard_or_an_alert_names_is_served(
    families: dict[str, dict[str, Any]],
) -> None:
    served: set[str] = set()
    for family in (f for service in families.values() for f in service.values()):
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ())
        served |= {family.name, *(family.name + ending for ending in endings)}
    files = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    files += [f for f in (REPOSITORY / "deploy").rglob("*") if f.suffix in (".json", ".yml", ".yaml")]
    pattern = rf"\bheadrace_(?:{'|'.join(families)})_[a-z_]*[a-z]\b"  # other names are those of volumes
    named = {name for file in files for name in re.findall(pattern, file.read_text())}
    assert "headrace_learner_idle_seconds_total" in named  # the pattern finds what it is meant to find
    assert sorted(named - served) == []


def test_every_metric_carries_its_service_and_says_what_it_is(families: dict[str, dict[str, Any]]) -> None:
    for service in SERVICES:
        own = [f for f in families[service].values() if f.name.startswith("headrace_")]
        assert len(own) > 5
        assert [f.name for f in own if not f.name.startswith(f"headrace_{service}_")] == []
        assert [f.name for f in own if len(f.documentation) < 5] == []


def test_the_figures_are_those_of_the_run(families: dict[str, dict[str, Any]]) -> None:
    def value(service: str, family: str) -> float:
        return families[service][f"headrace_{service}_{family}"].samples[0].value

    assert value("learner", "version") >= 1
    assert value("learner", "idle_seconds") > 0
    assert value("learner", "tokens_trained") > 0
    assert value("replay", "step") >= 1
    assert value("env_search", "documents") == 1
    assert value("actor", "weights_version_number") >= 1
    assert value("actor", "sampled_tokens") > 100


def test_no_metric_tells_of_prompts_or_ids(run: Run) -> None:
    everything = "".join(run.metrics.values())
    assert not any(task.id in everything for task in run.traffic.tasks)
    assert "( ?" not in everything
