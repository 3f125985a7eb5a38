"""A small run of the whole system, looked at from every side: its files, its traffic, its stored groups."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cli.run.local_redis import stored_url
from cli.run.questions import kept
from cli.run.recorder import read_records
from examples.smollm2.check_masks import check_run
from shared.versions import Version
from tests.e2e.command import ATLAS, overrides
from tests.e2e.conftest import Start
from tests.e2e.tap import Tap, Traffic

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, BATCH, GROUP_SIZE, QUESTIONS = 6, 8, 4, 24
# fmt: off
SUMMARY_FIELDS = [
    "steps", "seconds", "em_first", "em_last", "reward_first", "reward_last", "groups_generated", "groups_trained",
    "groups_replayed", "groups_lost", "groups_trained_twice", "learner_idle_share", "scan_seconds_hidden",
    "scan_seconds_exposed", "selection_ms_p99", "publish_to_swap_ms_p50", "engine_gap", "acceptance",
    "payload_bytes_in", "payload_bytes_out",
]
# fmt: on
SETTINGS = overrides(
    run={"name": "whole", "root": ".", "steps": STEPS},
    rollout={"group_size": GROUP_SIZE, "max_tokens": 384},
    env={"max_observation_tokens": 128},  # so that no passage is cut and the stored tokens can be foretold
    eval={"limit": QUESTIONS, "every": 0},
    actor={"count": 2, "engine": "torch"},
    replay={"port": 0, "select": 4, "capacity": 16},
    search={"port": 0},
    learner={"batch": BATCH, "checkpoint_every": 1, "keep_last": STEPS},  # a checkpoint is the version of that number
)


@dataclass(frozen=True)
class Finished:
    """A run that has ended."""

    folder: Path
    summary: dict[str, Any]
    steps: list[dict[str, Any]]
    traffic: Traffic
    redis_at: list[str]  # the addresses that its own server listened on


@pytest.fixture(scope="module")
def run(start: Start, folder: Path, policy: Path) -> Iterator[Finished]:
    """The run of this module."""
    tap = Tap(folder / "whole")
    command = start("up", str(ATLAS.parent / "atlas.toml"), f"--model.path={policy}", *SETTINGS)
    tap.wait_until_listening()
    port = urlsplit(stored_url(folder / "whole") or "").port
    listening = [c.laddr for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr]
    assert command.wait(400) == 0, command.said
    command.assert_gone()
    run_dir = folder / "whole"
    summary = json.loads((run_dir / "summary.json").read_text())
    redis_at = [address.ip for address in listening if address.port == port]
    yield Finished(run_dir, summary, read_records(run_dir / "metrics.jsonl"), tap.close(), redis_at)


@pytest.fixture(scope="module")
def tokenizer(policy: Path) -> Any:
    """The policy's."""
    return AutoTokenizer.from_pretrained(policy)


def test_the_summary_is_complete_and_consistent(run: Finished) -> None:
    s = run.summary
    missing = [name for name in SUMMARY_FIELDS if s.get(name) is None]
    assert missing == []
    assert (s["steps"], s["groups_trained"], s["eval_questions"]) == (STEPS, STEPS * BATCH, QUESTIONS)
    assert (s["groups_lost"], s["groups_trained_twice"]) == (0, 0)
    assert s["groups_generated"] == STEPS * BATCH  # nothing is generated that no step will train
    assert 0 < s["groups_replayed"] <= (STEPS - 1) * 4
    assert s["groups_replayed"] <= s["accepted"] <= s["scanned"]
    assert 0 <= s["learner_idle_share"] <= 1
    assert s["engine_gap"] < 1e-9
    assert s["lag_max"] <= 1
    assert s["restarts"] == 0


def test_what_a_person_looks_at_is_there(run: Finished) -> None:
    assert run.summary["finished"]
    assert run.summary["peak_memory_bytes"] < 4 * 2**30
    assert "Before training" in (run.folder / "samples.md").read_text()
    assert (run.folder / "curves.png").stat().st_size > 10_000
    assert {key: mark.rows > 0 for key, mark in kept(run.folder).items()} == {"data.train": True, "data.eval": True}


def test_no_readable_file_of_a_run_holds_its_password(run: Finished) -> None:
    secret = (run.folder / "redis" / "url").read_text().split(":")[2].partition("@")[0]
    files = [
        f for f in run.folder.rglob("*") if f.is_file() and f.parent.name != "redis" and f.suffix != ".safetensors"
    ]
    assert len(files) > 10
    assert [f for f in files if secret.encode() in f.read_bytes()] == []


def test_the_runs_own_redis_listens_to_this_machine_alone(run: Finished) -> None:
    assert run.redis_at == ["127.0.0.1"]


def test_there_is_one_line_of_metrics_a_step(run: Finished) -> None:
    assert [record["step"] for record in run.steps] == list(range(STEPS))
    assert all(np.isfinite(record["learner"]["loss"]) for record in run.steps)
    assert all(record["learner"]["grad_norm"] > 0 for record in run.steps if record["mixed_groups"])


def test_the_final_checkpoint_is_a_model_that_transformers_loads(run: Finished, policy: Path) -> None:
    final = AutoModelForCausalLM.from_pretrained(run.folder / "final")
    first = AutoModelForCausalLM.from_pretrained(policy)
    tokenizer = AutoTokenizer.from_pretrained(run.folder / "final")
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(policy).get_vocab()
    moved = [(a - b).abs().max().item() for a, b in zip(final.parameters(), first.parameters(), strict=True)]
    assert min(moved) > 0


def test_redis_takes_a_payload_once_and_gives_it_at_most_once_per_use(run: Finished) -> None:
    t = run.traffic
    uses = t.uses()
    assert len(t.payloads) == STEPS * BATCH
    assert set(t.written.values()) == {1}
    assert set(t.read) <= set(uses)
    assert all(t.read[id] <= uses[id] for id in t.read)
    assert t.other == []
    assert run.summary["payload_bytes_in"] == sum(t.sizes.values())
    assert run.summary["payload_bytes_out"] == sum(t.sizes[id] * times for id, times in t.read.items())
    assert run.summary["payload_reads"] == t.read.total()


def test_replay_reads_no_payload(run: Finished) -> None:
    assert run.traffic.task_writers
    assert run.traffic.payload_readers
    assert run.traffic.payload_readers.isdisjoint(run.traffic.task_writers)


def test_a_group_is_fresh_in_one_step_and_never_replayed_in_the_step_it_came_from(run: Finished) -> None:
    batches = run.traffic.batches
    fresh_in = {id: batch.step for batch in batches for id in batch.fresh}
    assert Counter(id for batch in batches for id in batch.fresh).most_common(1)[0][1] == 1
    assert set(fresh_in) == set(run.traffic.payloads)
    for batch in batches:
        assert all(fresh_in[id] < batch.step for id in batch.replay)
        assert all(run.traffic.headers[id].mixed for id in batch.replay)


def test_what_is_masked_out_is_the_environments_text_token_by_token(run: Finished, tokenizer: Any) -> None:
    lines = (ATLAS / "data" / "corpus.jsonl").read_text().splitlines()
    passages = {row["id"]: row["contents"] for row in map(json.loads, lines)}
    hints = searches = spoken = 0
    for payload in run.traffic.payloads.values():
        for i in range(payload.group_size):
            tokens, mask = payload.rollout(i)
            turns = [(start, end) for rollout, start, end in payload.turns.tolist() if rollout == i]
            sampled = np.zeros(len(tokens), bool)
            for start, end in turns:
                sampled[start:end] = True
            assert (mask == sampled).all()

            found = iter(payload.documents[i])
            after = [start for start, _ in turns[1:]] + [len(tokens)]
            gaps = [(end, next_start) for (_, end), next_start in zip(turns, after, strict=True)]
            for gap_start, gap_end in filter(lambda gap: gap[0] < gap[1], gaps):
                between = tokens[gap_start:gap_end].tolist()
                if "<information>" not in tokenizer.decode(between):
                    hints += 1
                    assert "invalid" in tokenizer.decode(between) or tokenizer.unk_token_id in between
                    continue
                searches += 1
                assert between == tokenizer.encode(observation(passages, next(found)), add_special_tokens=False)
            spoken += tokenizer.decode(tokens[mask].tolist()).count("<information>")
    assert searches > STEPS * BATCH  # the test saw what it is about
    assert spoken <= 0.01 * searches  # the policy hardly ever writes the tag itself; copied text would count each time


def test_the_script_that_checks_a_runs_masks_sees_every_group_of_it(run: Finished) -> None:
    counts = check_run(run.folder)
    payloads = run.traffic.payloads.values()
    assert counts.groups == len(payloads)
    assert counts.rollouts + counts.unscored == GROUP_SIZE * len(payloads)
    assert counts.sampled == sum(len(p.l_gen) for p in payloads)
    assert counts.searches > STEPS * BATCH


def observation(passages: dict[str, str], ids: list[str]) -> str:
    """The text that answers a search that found these documents."""
    lines = []
    for number, id in enumerate(ids, 1):
        title, _, text = passages[id].partition("\n")
        title = title.strip('"')
        lines.append(f"Doc {number}(Title: {title}) {text}\n")
    return "\n\n<information>" + "".join(lines) + "</information>\n\n"


def test_the_stored_log_probabilities_are_those_of_the_version_they_name(run: Finished, policy: Path) -> None:
    torch.set_num_threads(1)
    models: dict[Version, Any] = {}
    compared: Counter[Version] = Counter()
    for id, payload in run.traffic.payloads.items():
        versions, at = [Version(*v) for n, *v in payload.version_runs.tolist() for _ in range(n)], 0
        for i in range(payload.group_size):
            tokens, mask = payload.rollout(i)
            count = int(mask.sum())
            stored, named = payload.l_gen[at : at + count], versions[at : at + count]
            at += count
            ids = torch.from_numpy(np.concatenate([payload.prompt, tokens]).astype(np.int64))[None]
            for version in set(named):
                model = models.get(version) or models.setdefault(version, load(run.folder, policy, version))
                with torch.no_grad():
                    logits = model(input_ids=ids, use_cache=False).logits[0, len(payload.prompt) - 1 : -1]
                logp = logits.log_softmax(-1).gather(-1, ids[0, len(payload.prompt) :, None])[:, 0].numpy()[mask]
                here = np.array([v == version for v in named])
                assert np.abs(logp[here] - stored[here]).max() < 1e-4, f"{id}, rollout {i}, version {version}"
                compared[version] += int(here.sum())
    assert len(compared) >= 3  # several versions, each with a forward of its own; an actor skips one that is overtaken
    assert compared.total() == sum(len(p.l_gen) for p in run.traffic.payloads.values())


def load(run_dir: Path, policy: Path, version: Version) -> Any:
    """The model of a version of this run, which was never resumed."""
    assert version.lineage == 0
    folder = run_dir / "checkpoints" / f"step_{version.number}" if version.number else policy
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_every_rollout_is_sampled_by_itself(run: Finished) -> None:
    seeds = [task.seed for task in run.traffic.tasks if task.kind == "train"]
    assert len(set(seeds)) == len(seeds) == STEPS * BATCH
    texts = [{tuple(p.rollout(i)[0].tolist()) for i in range(GROUP_SIZE)} for p in run.traffic.payloads.values()]
    assert sum(len(t) == 1 for t in texts) < len(texts) / 10
    assert sum(map(len, texts)) > 0.75 * GROUP_SIZE * len(texts)


def test_resuming_a_finished_run_says_so_and_makes_its_artefacts_again(run: Finished, start: Start) -> None:
    (run.folder / "curves.png").unlink()  # as if Ctrl-C had come while it was drawn
    again = start("up", "--resume", run.folder.name)
    assert again.wait(60) == 0, again.said
    said = " ".join(again.said.split())
    assert f"The run in whole has trained all of its {STEPS} steps; go on with --run.steps {2 * STEPS}" in said
    assert "EM on held-out questions" in said
    assert (run.folder / "curves.png").stat().st_size > 10_000
    assert json.loads((run.folder / "summary.json").read_text()) == run.summary
