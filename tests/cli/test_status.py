"""`headrace status` reads a real Redis, and says plainly when nothing runs."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from cli.main import main
from cli.run import local_redis
from cli.run.recorder import Recorder
from cli.status import newest_run, read_state
from shared import events, streams
from shared.config import build
from shared.gpu_lease import mark_of
from shared.messages import EVAL, Task, WeightsNotice, encode
from shared.streams import Keys
from shared.versions import Version


@pytest.fixture
def run_in_redis(redis_url: str) -> str:
    """A run with two waiting tasks, a pending one, one actor, a version and a few events."""
    keys = Keys("exp7")
    with redis.Redis.from_url(redis_url) as client:
        client.xgroup_create(keys.tasks, streams.ACTORS, id="0", mkstream=True)
        for number in range(3):
            streams.add(client, keys.tasks, encode(_task(number)))
        client.xgroup_create(keys.work, streams.LEARNER, id="0", mkstream=True)
        streams.add(client, keys.work, b"an entry")
        client.xreadgroup(streams.LEARNER, "learner", {keys.work: ">"}, count=1)
        client.xreadgroup(streams.ACTORS, "one", {keys.tasks: ">"}, count=1)
        notice = WeightsNotice(version=Version(0, 7), location="v", digest="d", size=1, published=0.0, canary=[])
        streams.add(client, keys.weights, encode(notice))
        client.sadd(keys.actors, "host-1", "host-dead")
        beat = {"version": [0, 7], "engine": "torch", "groups_running": 3, "tokens_per_s": 2000.0, "pid": 1}
        client.set(keys.actor("host-1"), json.dumps(beat), ex=10)
        events.emit(client, keys, "step", step=6, steps=100, reward_mean=0.5, acceptance=0.75, buffer_groups=32)
        events.emit(client, keys, "eval", round=0, em=0.35, n=400)
        events.emit(client, keys, "warning", service="replay", text="acceptance is low")
        streams.bury(client, keys, "groups", "not a message", b"x")
    return redis_url


def test_the_state_as_json(run_in_redis: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--redis", run_in_redis, "--run", "exp7", "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["running"]
    assert state["version"] == "0.7"
    assert state["step"]["step"] == 6
    assert state["streams"]["tasks"] == {"length": 3, "pending": 1}
    assert [a["id"] for a in state["actors"]] == ["host-1"]
    assert 0 <= state["actors"][0]["heartbeat_age_s"] < 5
    assert state["dead_letters"] == 1
    assert state["services"]["replay"] is None and 0 <= state["services"]["learner"] < 5
    assert state["warnings"][-1]["text"] == "acceptance is low"
    assert state["events"][-1]["kind"] == "eval"


def test_a_run_that_was_resumed_for_more_steps_has_not_finished(run_in_redis: str) -> None:
    with redis.Redis.from_url(run_in_redis) as client:
        for kind, finished in (("finished", True), ("resumed", False), ("step", False), ("finished", True)):
            events.emit(client, Keys("exp7"), kind, step=7)
            assert read_state(client, "exp7")["finished"] == finished


def test_the_state_for_a_person(run_in_redis: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--redis", run_in_redis, "--run", "exp7"]) == 0
    said = capsys.readouterr().out
    for shown in (
        "step 7/100, weights 0.7",
        "replay is not up yet, learner was heard",
        "host-1",
        "torch",
        "75.0 %",
        "32 groups",
        "last warnings",
        "replay: acceptance is low",
    ):
        assert shown in said


def test_a_warning_is_shown_however_many_swaps_come_behind_it(
    run_in_redis: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = Keys("exp7")
    with redis.Redis.from_url(run_in_redis) as client:
        events.emit(client, keys, "refused", actor="host-1", version="0.8", reason="the canary is off by 0.4")
        for number in range(700):
            events.emit(client, keys, "swap", actor="host-1", version=[0, number], seconds=0.1)
            if number % 10 == 0:
                events.emit(client, keys, "warning", actor="host-1", text="Redis is full")  # said again and again
        state = read_state(client, "exp7")
    assert [event.get("text") for event in state["warnings"]] == ["acceptance is low", None, "Redis is full"]
    assert [event["kind"] for event in state["events"]] == ["swap"] * 6
    assert main(["status", "--redis", run_in_redis, "--run", "exp7"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "replay: acceptance is low" in said and "host-1 refused weights 0.8: the canary is off by 0.4" in said
    assert said.count("host-1: Redis is full") == 1


def test_services_that_neither_report_nor_ask_are_named(run_in_redis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys("exp7")
    monkeypatch.setattr("cli.status.ASKS_S", 0.05)
    with redis.Redis.from_url(run_in_redis) as client:
        time.sleep(0.1)
        [learner] = read_state(client, "exp7")["troubles"]  # nobody has asked as replay yet
        assert learner.startswith("the learner has stopped reporting (hung, stopped, cut off or ended): no step is")
        client.set(mark_of("exp7"), "it trains a long step")
        assert read_state(client, "exp7")["troubles"] == []
        client.xgroup_create(keys.groups, streams.REPLAY, mkstream=True)
        streams.add(client, keys.groups, b"an entry")
        client.xreadgroup(streams.REPLAY, "replay-1", {keys.groups: ">"})
        time.sleep(0.1)
        [replay] = read_state(client, "exp7")["troubles"]
        assert replay.startswith("replay has stopped reporting (hung, stopped, cut off or ended): no task is issued")
        events.emit(client, keys, "finished", step=100)
        assert read_state(client, "exp7")["troubles"] == []


def test_a_run_that_is_not_there_is_told_with_what_is(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["status", "--redis", redis_url, "--run", "exp7"]
    nothing = "This database holds nothing of a run 'exp7'"
    assert main(words) == 1
    assert capsys.readouterr().out.startswith(f"{nothing}: the run has not begun, or the address")
    with redis.Redis.from_url(redis_url) as client:
        client.set("session:42", "x")
        assert main(words) == 1
        assert f"{nothing}, and 1 keys of others, such as 'session:42': the" in capsys.readouterr().out
        client.set(mark_of("exp7"), "of a GPU's lease alone, no run's key")
        client.set(Keys("exp8").state, "x")
    assert main(words) == 1
    assert capsys.readouterr().out == f"{nothing}; did you mean 'exp8'?\n"
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["running"] is False


def test_a_server_that_is_none_for_the_run_is_named_in_one_sentence(
    redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = f"redis://:wrong@{redis_url.rpartition('@')[2]}"
    assert main(["status", "--redis", wrong, "--run", "exp7"]) == 2
    assert "refuses the password: put the right one into redis.url." in _flat(capsys.readouterr().err)
    monkeypatch.setattr("shared.redis_client.MINIMUM_VERSION", (99, 1))
    assert main(["status", "--redis", redis_url, "--run", "exp7"]) == 2
    assert "XAUTOCLAIM needs 99.1 or newer: upgrade it." in _flat(capsys.readouterr().err)


def _flat(said: str) -> str:
    return " ".join(said.split())


@pytest.mark.slow
def test_a_run_that_does_not_run_is_said_plainly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "runs" / "x"
    run_dir.mkdir(parents=True)
    (run_dir / "config.toml").write_text(build({"run": {"name": "x"}}).to_toml())
    local_redis.prepare(run_dir, 0)
    assert main(["status", str(run_dir)]) == 1
    assert f"Nothing runs for {run_dir}" in capsys.readouterr().out
    assert main(["status", str(run_dir), "--json"]) == 1
    state = json.loads(capsys.readouterr().out)
    assert (state["running"], state["run"], state["finished"], state["steps"]) == (False, "x", False, 0)


@pytest.mark.slow
def test_a_run_that_has_finished_is_said_to_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "runs" / "x"
    (run_dir / "checkpoints" / "step_2").mkdir(parents=True)
    (run_dir / "config.toml").write_text(
        build({"run": {"name": "x", "root": str(tmp_path / "runs"), "steps": 2}}).to_toml()
    )
    local_redis.prepare(run_dir, 0)
    recorder = Recorder(run_dir)
    for number, em in ((0, 0.36), (2, 0.812)):
        recorder.note("eval", round=number, em=em, n=400)
    for step in range(2):
        recorder.note("step", step=step)
    assert main(["status", str(run_dir)]) == 1
    assert "its Redis does not answer, and 2 of 2 steps are trained. Continue it with" in capsys.readouterr().out
    recorder.note("finished", step=2)
    recorder.close()
    for command in (["status", str(run_dir)], ["top", "--once", str(run_dir)]):
        assert main(command) == 0
        assert "has finished: 2 of 2 steps, EM 36.0 → 81.2 %; the summary is in" in capsys.readouterr().out


def test_a_file_that_goes_while_runs_are_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([folder / "config.toml.partial", *listed(folder)]))
    assert newest_run(tmp_path) == tmp_path / "run"


def test_the_newest_run_is_meant_when_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 2
    assert "there is no run under" in capsys.readouterr().err
    for name in ("old", "new"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").write_text(build({"run": {"name": name}}).to_toml())
        local_redis.prepare(tmp_path / "runs" / name, 0)
        time.sleep(0.02)
    assert main(["status"]) == 1
    assert "runs/new" in capsys.readouterr().out


def test_the_own_redis_keeps_its_secret_and_its_data(tmp_path: Path) -> None:
    first = local_redis.prepare(tmp_path, 2**26)
    password = first.url.split(":")[2].partition("@")[0]
    assert password not in " ".join(first.command)
    for file in (tmp_path / "redis" / "redis.conf", tmp_path / "redis" / "url"):
        assert file.stat().st_mode & 0o777 == 0o600
    _with_server(first, lambda client: client.set("key", "value"))
    second = local_redis.prepare(tmp_path, 2**26)
    assert second.url != first.url
    settings: dict = {}

    def look(client: redis.Redis) -> None:
        assert client.get("key") == b"value"
        settings.update(client.config_get("*"))

    _with_server(second, look)
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["maxmemory"] == str(2**26)
    assert (settings["appendonly"], settings["appendfsync"], settings["save"]) == ("yes", "everysec", "")
    assert settings["bind"] == "127.0.0.1"


def _with_server(server: local_redis.LocalRedis, work: Callable[[redis.Redis], object]) -> None:
    process = subprocess.Popen(server.command, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis.from_url(server.url) as client:
            deadline = time.monotonic() + 10
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            work(client)
    finally:
        process.terminate()
        process.wait(timeout=10)


def _task(number: int) -> Task:
    return Task(
        id=f"t{number}",
        kind=EVAL,
        number=number,
        attempt=0,
        seed=0,
        group_size=1,
        temperature=0.0,
        min_version=0,
        data_source="x",
        messages=[],
        ground_truth=[],
    )


def test_the_newest_run_is_found_where_a_link_points_to_a_checkpoint_that_was_pruned(tmp_path: Path) -> None:
    for number, name in enumerate(("older", "newer")):
        file = tmp_path / name / "config.toml"
        file.parent.mkdir()
        file.touch()
        os.utime(file, (number, number))
        (file.parent / "final").symlink_to("checkpoints/step_8")
        os.utime(file.parent / "final", (number, number), follow_symlinks=False)
    assert newest_run(tmp_path) == tmp_path / "newer"


def test_a_run_that_is_named_is_not_taken_for_the_newest_here(
    run_in_redis: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("HEADRACE_REDIS__URL", raising=False)
    assert main(["status", "--run", "exp7"]) == 2
    assert "--run needs the address of its Redis" in capsys.readouterr().err
    monkeypatch.setenv("HEADRACE_REDIS__URL", run_in_redis)
    assert main(["status", "--run", "exp7"]) == 0
    assert "exp7" in capsys.readouterr().out
