"""`headrace watch` records a run whose processes are not its own, and goes on where it was."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import redis

from cli.main import main
from cli.run.progress import doing
from cli.run.recorder import EVENTS, METRICS, read_records
from cli.run.view import RunView
from cli.run.watching import waits
from shared import events
from shared.streams import Keys

NAME = "watched"


def _command(redis_url: str, root: Path) -> list[str]:
    return ["watch", "--redis.url", redis_url, "--run.name", NAME, "--run.root", str(root), "--run.steps", "2"]


def _say(redis_url: str, kind: str, **fields: object) -> None:
    with redis.Redis.from_url(redis_url) as client:
        events.emit(client, Keys(NAME), kind, **fields)


def test_a_finished_run_is_recorded_and_summarised(redis_url: str, tmp_path: Path, capsys) -> None:
    for step in range(2):
        _say(redis_url, "step", step=step, steps=2, reward_mean=0.5 + step, fresh_groups=4, seconds=1.0)
    _say(redis_url, "finished", step=2, elapsed_s=2.0)
    assert main(_command(redis_url, tmp_path)) == 0
    assert [r["step"] for r in read_records(tmp_path / NAME / METRICS)] == [0, 1]
    summary = json.loads((tmp_path / NAME / "summary.json").read_text())
    assert summary["finished"] and summary["steps"] == 2 and summary["reward_last"] == 1.5
    assert "2 steps" in capsys.readouterr().out
    assert (tmp_path / NAME / "curves.png").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_watcher_that_was_stopped_goes_on_where_it_was(
    number: signal.Signals, redis_url: str, tmp_path: Path
) -> None:
    _say(redis_url, "step", step=0, steps=2)
    heard = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and children are born so
    process = subprocess.Popen([sys.executable, "-m", "cli.main", *_command(redis_url, tmp_path)])
    signal.signal(signal.SIGHUP, heard)
    deadline = time.monotonic() + 60
    while not read_records(tmp_path / NAME / METRICS):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(10) == 130
    assert (tmp_path / NAME / "summary.json").is_file()
    _say(redis_url, "step", step=1, steps=2)
    _say(redis_url, "finished", step=2, elapsed_s=2.0)
    assert main(_command(redis_url, tmp_path)) == 0
    kinds = [r["kind"] for r in read_records(tmp_path / NAME / EVENTS)]
    assert kinds.count("step") == 2 and kinds.count("finished") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_waits_for_redis_leaves_at_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        command = _command(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", tmp_path)
        process = subprocess.Popen([sys.executable, "-m", "cli.main", *command], stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(number)
            _, said = process.communicate(timeout=10)
    assert process.returncode in (130, -signal.SIGTERM) and "Traceback" not in said


def test_a_server_that_is_made_a_replica_meanwhile_is_named(redis_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "cli.main", *_command(redis_url, tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    ends = threading.Timer(20, process.kill)
    ends.start()
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            said = ""
            assert process.stdout is not None
            while "step 0/2, waiting for Redis, which is a read-only replica now" not in said:
                line = process.stdout.readline()
                assert line, said
                said += line
            assert "! Redis has become a read-only replica, and what is done waits to be stored" in said
            assert said.startswith(f"Following '{NAME}' in Redis at redis://{redis_url.rpartition('@')[2]}, for which")
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")
            ends.cancel()
            process.kill()
            process.communicate()


def test_a_user_who_may_not_read_the_run_is_told_so(redis_url: str, tmp_path: Path, capsys) -> None:
    with redis.Redis.from_url(redis_url) as owner:
        owner.execute_command("ACL", "SETUSER", "other", "on", ">x", "~elsewhere:*", "+@all")
        try:
            assert main(_command(f"redis://other:x@{redis_url.rpartition('@')[2]}", tmp_path)) == 2
        finally:
            owner.execute_command("ACL", "DELUSER", "other")
    assert "Redis forbids the user of redis.url what a run does (" in capsys.readouterr().err


def test_it_says_what_is_waited_for_before_the_first_step_and_where_a_wait_is_long() -> None:
    view = RunView(NAME, steps=4, started=0.0)
    beat = {"waiting_for": "the learner to come up", "waiting_s": 2.0}
    view.waiting_for = waits(view, beat)
    assert doing(view) == "waiting for the learner to come up"
    assert waits(view, None) == ["a replay service to report"]
    view.update({"kind": "step", "step": 0})
    assert waits(view, beat) == [] and waits(view, beat | {"waiting_s": 20.0}) == [beat["waiting_for"]]
    view.update({"kind": "finished", "step": 2})  # before it was resumed for more steps
    assert waits(view, None) == ["a replay service to report"]
    view.update({"kind": "finished", "step": 4})
    assert waits(view, None) == []


def test_a_full_disk_is_one_sentence_and_leaves_the_configuration(redis_url, tmp_path: Path, capsys, full_disk) -> None:
    file = tmp_path / NAME / "config.toml"
    file.parent.mkdir()
    file.write_text("# as it was")
    with full_disk(20):
        assert main(_command(redis_url, tmp_path)) == 2
    assert "headrace: watch cannot go on: File too large" in capsys.readouterr().err
    assert file.read_text() == "# as it was"


def test_no_server_named_is_one_sentence(capsys, monkeypatch) -> None:
    monkeypatch.delenv("HEADRACE_REDIS__URL", raising=False)
    assert main(["watch"]) == 2
    assert "redis.url is empty" in capsys.readouterr().err


def test_the_folder_of_a_run_that_records_itself_is_left_alone(tmp_path: Path, capsys) -> None:
    config = tmp_path / NAME / "config.toml"
    (tmp_path / NAME / "redis").mkdir(parents=True)
    config.write_text("its own")
    assert main(_command("redis://127.0.0.1:1", tmp_path)) == 2
    assert "records itself" in capsys.readouterr().err and config.read_text() == "its own"
