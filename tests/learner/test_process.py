"""`python -m services.learner` as a real process against a real Redis."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from cli.run.redis_binary import find_redis_binary
from shared import streams, weights
from shared.config import Config, build
from shared.messages import (
    Batch,
    Checkpointed,
    Finish,
    Hello,
    Message,
    Result,
    Scan,
    ScanResult,
    Trained,
    WeightsNotice,
    decode,
    encode,
)
from shared.payload import encode_payload
from shared.streams import FIELD, Keys
from shared.versions import Version

REPOSITORY = Path(__file__).resolve().parents[2]
KEYS = Keys("test")
PATIENCE_S = 120.0  # importing torch and transformers on a machine with other work to do


class Process:
    """A running learner and the eyes of a replay service on its results."""

    def __init__(self, folder: Path, config: Config) -> None:
        file = folder / "run.toml"
        file.write_text(config.to_toml())
        self.log = folder / "learner.log"
        environment = os.environ | {
            "HEADRACE_CONFIG": str(file),
            "HEADRACE_REDIS__URL": config.redis.url,  # the file leaves the password out
            "OMP_NUM_THREADS": "1",
        }
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "services.learner"], cwd=REPOSITORY, env=environment, stderr=log, stdout=log
            )
        self.client: Any = redis.Redis.from_url(config.redis.url)
        self.last = b"0"

    def next(self, kind: type) -> Any:
        """The next result of this kind; others are passed over."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for id, fields in self.client.xrange(KEYS.results, min=b"(" + self.last, count=1):
                self.last = id
                if isinstance(result := decode(fields[FIELD], Result), kind):
                    return result
            assert self.popen.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(f"no {kind.__name__} within {PATIENCE_S} s:\n{self.log.read_text()}")

    def send(self, message: Message) -> None:
        streams.add(self.client, KEYS.work, encode(message))

    def wait(self, seconds: float) -> int:
        return self.popen.wait(seconds)


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait()
        process.client.close()


def config_of(tmp_path: Path, policy_dir: Path, redis_url: str, **learner: Any) -> Config:
    return build(
        {
            "run": {"name": "test", "root": str(tmp_path / "runs"), "steps": 3},
            "model": {"path": str(policy_dir)},
            "learner": {"batch": 2, "lr": 1e-3, "device": "cpu"} | learner,
            "replay": {"select": 1},
            "redis": {"url": redis_url, "wait_s": 5},
        }
    )


def store(client: Any, make_payload: Any, *ids: str) -> None:
    for i, id in enumerate(ids):
        client.set(KEYS.payload(id), encode_payload(make_payload(id, i)))


@pytest.mark.slow
def test_three_steps_from_first_hello_to_exit_zero(
    tmp_path: Path, policy_dir: Path, redis_url: str, make_payload: Any, processes: list[Process]
) -> None:
    config = config_of(tmp_path, policy_dir, redis_url)
    learner = Process(tmp_path, config)
    processes.append(learner)
    store(learner.client, make_payload, *(f"{s}{x}" for s in range(3) for x in "ab"))
    assert learner.next(Hello).version == (0, 0)
    for step in range(3):
        replay = []
        if step:
            learner.send(Scan(scan=f"scan{step}", step=step, ids=[f"{step - 1}a"]))
            scanned = learner.next(ScanResult)
            assert scanned.version == (0, step)
            replay = [r.id for r in scanned.records]
        learner.send(Batch(step=step, replay=replay, fresh=[f"{step}a", f"{step}b"]))
        trained = learner.next(Trained)
        assert trained.version == (0, step + 1)
        assert [r.id for r in trained.records] == [*replay, f"{step}a", f"{step}b"]
        notice = decode(learner.client.xrevrange(KEYS.weights)[0][1][FIELD], WeightsNotice)
        assert notice.version == trained.version
        weights.verify(config.weights_dir / notice.location, notice.digest)
    learner.send(Finish())
    assert learner.next(Checkpointed).step == 3
    assert learner.wait(20) == 0
    assert learner.client.xlen(KEYS.work) == 0
    assert (config.checkpoints_dir / "latest" / "model.safetensors").is_file()


@pytest.mark.slow
def test_it_leaves_within_five_seconds_of_a_signal_and_the_next_one_resumes(
    tmp_path: Path, policy_dir: Path, redis_url: str, make_payload: Any, processes: list[Process]
) -> None:
    config = config_of(tmp_path, policy_dir, redis_url, checkpoint_every=1)
    first = Process(tmp_path, config)
    processes.append(first)
    store(first.client, make_payload, "a", "b")
    first.next(Hello)
    first.send(Batch(step=0, replay=[], fresh=["a", "b"]))
    first.next(Checkpointed)
    first.popen.send_signal(signal.SIGTERM)
    assert first.wait(5) == 0
    second = Process(tmp_path, config)
    processes.append(second)
    second.last = first.last
    assert second.next(Hello).version == (1, 1)
    second.popen.send_signal(signal.SIGINT)
    assert second.wait(5) == 0


@pytest.mark.slow
def test_redis_away_is_waited_for_and_an_empty_one_is_taken_up(
    tmp_path: Path, policy_dir: Path, make_payload: Any, processes: list[Process]
) -> None:
    socket_path = tmp_path / "redis.sock"

    def serve() -> subprocess.Popen[bytes]:
        command = [
            find_redis_binary().path,
            "--port",
            "0",
            "--unixsocket",
            socket_path,
            "--save",
            "",
            "--dir",
            tmp_path,
        ]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                with redis.Redis(unix_socket_path=str(socket_path)) as client:
                    client.ping()
                return server
            except redis.ConnectionError:
                time.sleep(0.05)
        raise AssertionError("Redis did not start")

    server = serve()
    try:
        learner = Process(tmp_path, config_of(tmp_path, policy_dir, f"unix://{socket_path}"))
        processes.append(learner)
        learner.next(Hello)
        server.terminate()
        server.wait(10)
        deadline = time.monotonic() + 20
        while "waiting for Redis to read work" not in learner.log.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "waiting for Redis to read work" in learner.log.read_text()
        server = serve()
        store(learner.client, make_payload, "a", "b")
        learner.last = b"0"
        learner.send(Batch(step=0, replay=[], fresh=["a", "b"]))
        assert learner.next(Trained).step == 0

        server.terminate()
        server.wait(10)
        learner.popen.send_signal(signal.SIGTERM)
        assert learner.wait(5) == 0  # also while Redis is away
    finally:
        server.kill()
        server.wait(10)


def tried(config: Config, tmp_path: Path, **environ: str) -> tuple[int, str]:
    file = tmp_path / "run.toml"
    file.write_text(config.to_toml())
    environment = os.environ | {"HEADRACE_CONFIG": str(file), "HEADRACE_REDIS__URL": config.redis.url} | environ
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "services.learner"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "|torch\n" not in done.stderr.replace(" ", ""), "a mistake must be told before torch is imported"
    return done.returncode, "\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time:"))


@pytest.mark.parametrize(
    "missing", ["config.json", *(pytest.param(m, marks=pytest.mark.slow) for m in ("tokenizer.json", "*.safetensors"))]
)
def test_an_incomplete_model_folder_is_told_in_one_sentence(
    tmp_path: Path, policy_dir: Path, redis_url: str, missing: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in policy_dir.iterdir():
        if not file.match(missing):
            (folder / file.name).write_bytes(file.read_bytes())
    code, said = tried(config_of(tmp_path, folder, redis_url), tmp_path)
    assert code == 2
    assert said.startswith("learner: model.path = ")
    assert missing in said
    assert len(said.splitlines()) == 1


@pytest.mark.slow
def test_mistakes_are_told_in_one_sentence_and_exit_two(tmp_path: Path, policy_dir: Path, redis_url: str) -> None:
    good = config_of(tmp_path, policy_dir, redis_url)
    no_model = good.model_copy(update={"model": good.model.model_copy(update={"path": ""})})
    no_url = good.model_copy(update={"redis": good.redis.model_copy(update={"url": ""})})
    away = {"url": "redis://127.0.0.1:1/0", "wait_s": 0.2}
    no_server = good.model_copy(update={"redis": good.redis.model_copy(update=away)})
    no_reference = {"kl": 0.1}
    no_frozen = good.model_copy(
        update={
            "learner": good.learner.model_copy(update=no_reference),
            "model": good.model.model_copy(update={"kl_reference": "/nowhere"}),
        }
    )
    expected = [
        (no_model, "model.path is empty"),
        (no_url, "redis.url is empty"),
        (no_server, "did not answer within 0.2 s"),
        (no_frozen, "model.kl_reference = '/nowhere' is neither a folder"),
    ]
    for config, sentence in expected:
        code, said = tried(config, tmp_path)
        assert code == 2, said
        assert sentence in said
        assert len(said.splitlines()) == 1, said


@pytest.mark.slow
def test_a_metrics_port_in_use_is_told(tmp_path: Path, policy_dir: Path, redis_url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = tried(config_of(tmp_path, policy_dir, redis_url, port=port), tmp_path)
    assert code == 2
    assert f"port {port}" in said


@pytest.mark.slow
def test_a_second_learner_is_refused_and_a_password_that_changes_meanwhile_ends_the_first(
    tmp_path: Path, policy_dir: Path, redis_url: str, change_password: Any, processes: list[Process]
) -> None:
    config = config_of(tmp_path, policy_dir, redis_url)
    first = Process(tmp_path, config)
    processes.append(first)
    first.next(Hello)
    code, said = tried(config, tmp_path)
    assert code == 2
    assert said.startswith(f"learner: another learner of run 'test' is at work ({socket.gethostname()}-")
    assert len(said.splitlines()) == 1
    change_password()
    assert first.wait(60) == 2
    last = first.log.read_text().splitlines()[-1]
    assert last == "learner: Redis refuses the password: put the right one into redis.url."
    assert "Traceback" not in first.log.read_text()


@pytest.mark.slow
def test_a_learner_none_of_whose_checkpoints_is_whole_leaves_with_a_sentence_and_deletes_no_weights(
    tmp_path: Path, policy_dir: Path, redis_url: str, processes: list[Process]
) -> None:
    config = config_of(tmp_path, policy_dir, redis_url)
    published = config.weights_dir / Version(0, 2).directory
    for folder in (config.checkpoints_dir / "step_2", published):
        folder.mkdir(parents=True)
    process = Process(tmp_path, config)
    processes.append(process)
    assert process.wait(PATIENCE_S) == 2
    said = process.log.read_text()
    assert f"\nlearner: {config.checkpoints_dir} holds no whole checkpoint any more (step_2 " in said
    assert "Traceback" not in said
    assert published.is_dir() and not process.client.exists(KEYS.weights)
