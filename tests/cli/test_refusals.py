"""What is wrong is said in one sentence with exit status 2, before anything is started or written."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.main import main
from cli.run import untrained
from cli.run.preflight import Preflight
from services.env_search.backend import IndexSpec
from services.env_search.index import build_index
from shared.config import build
from shared.errors import UserError

WriteConfig = Callable[..., Path]


def test_a_prompt_over_the_limit_names_the_question_and_both_numbers(refused: Callable[..., str]) -> None:
    said = refused("--rollout.max_prompt_tokens", "13")
    assert "data.train: the prompt of example 2 ('where where" in said
    assert "has 14 tokens, and rollout.max_prompt_tokens is 13" in said


@pytest.mark.parametrize(
    ("template", "prompt", "why"),
    [
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}",
            "qwen_math",
            "refuses the prompt of example 1 ('who is it', of the roles system, user): System role not supported. ",
        ),
        ("{{ messages[0].missing.more }}", "plain", "refuses the prompt of example 1 ('who is it', of the roles user)"),
        ("{% if %}", "plain", "the chat template is no template: Expected an expression"),
    ],
)
def test_a_chat_template_that_refuses_a_prompt(
    refused: Callable[..., str], model_dir: Path, template: str, prompt: str, why: str
) -> None:
    (model_dir / "chat_template.jinja").write_text(template)
    assert why in refused("--env.prompt", prompt)


@pytest.mark.parametrize(
    "settings",
    [
        '"num_attention_heads": 14',
        '"text_config": {"num_attention_heads": 14}',
        '"num_attention_heads": 14, "text_config": null',
        '"num_attention_heads": 14, "text_config": [1]',
    ],
)
def test_attention_heads_that_the_gpus_of_an_actor_cannot_share(
    refused: Callable[..., str], model_dir: Path, settings: str
) -> None:
    (model_dir / "config.json").write_text(f'{{"model_type": "qwen2", {settings}}}')
    assert "actor.tensor_parallel = 4 does not divide the 14 attention heads" in refused("--actor.tensor_parallel", "4")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"{", b"[" * 100_000, b"[1]"], ids=["bytes", "cut", "nested", "a list"]
)
def test_settings_of_a_model_that_nobody_can_read(
    refused: Callable[..., str], model_dir: Path, file: str, content: bytes
) -> None:
    (model_dir / file).write_bytes(content)
    said = refused()
    assert f"{model_dir / file}" in said and said.endswith("copy the model again.")


def test_several_gpus_for_the_torch_engine(refused: Callable[..., str]) -> None:
    said = refused("--actor.tensor_parallel", "2", "--actor.engine", "torch")
    assert "actor.tensor_parallel = 2 is of the vLLM engine" in said


def test_an_empty_data_set(refused: Callable[..., str], data_file: Path) -> None:
    data_file.write_text("")
    assert "holds no prompts" in refused()


def test_a_data_set_with_a_broken_line(refused: Callable[..., str], data_file: Path) -> None:
    data_file.write_text(data_file.read_text() + "{oops\n")
    assert "train.jsonl line 4 is not JSON" in refused()


def test_a_data_set_that_is_not_there(refused: Callable[..., str]) -> None:
    assert "/nowhere/x.jsonl" in refused("--data.train", "/nowhere/x.jsonl")


def test_an_unknown_key_with_the_nearest_one(refused: Callable[..., str]) -> None:
    assert "unknown key 'learner.lrr'; did you mean 'learner.lr'?" in refused("--learner.lrr", "1")


def test_an_unknown_policy_with_the_nearest_one(refused: Callable[..., str]) -> None:
    said = refused("--replay.policy", "headroom_drft")
    assert said == "replay.policy = 'headroom_drft' is no policy; did you mean 'headroom_drift'?"
    assert "is no policy" in refused("--replay.policy", "nave", "--dry-run")


def test_a_redis_too_small_for_the_weights_that_travel_through_it(refused: Callable[..., str]) -> None:
    small = ("--redis.max_memory_bytes", "10")
    said = refused(*small, "--weights.transport", "redis")
    assert said.startswith("redis.max_memory_bytes = 10 ") and "set weights.transport to 'folder'" in said
    assert "weights" not in refused(*small, "--data.train", "/nowhere/x.jsonl")


def test_groups_of_one(refused: Callable[..., str]) -> None:
    assert "'rollout.group_size' must be 2 or more (given: 1)" in refused("--rollout.group_size", "1")


def test_a_batch_that_is_no_multiple_of_its_mini_batches_shows_the_arithmetic(refused: Callable[..., str]) -> None:
    said = refused("--learner.mini_batch", "5")
    assert (
        "learner.batch = 16 is not a multiple of learner.mini_batch = 5 (16 = 3 x 5 + 1): set learner.batch to" in said
    )


def test_replayed_groups_that_are_no_multiple_of_the_unit(refused: Callable[..., str]) -> None:
    assert "replay.select = 8 is not a multiple of replay.unit = 3" in refused("--replay.unit", "3")


def test_a_missing_corpus(refused: Callable[..., str]) -> None:
    said = refused("--env.kind", "search", "--search.corpus", "/nowhere/corpus.jsonl", "--search.port", "0")
    assert "search.corpus = '/nowhere/corpus.jsonl' is not a file" in said


def test_a_missing_index_says_how_to_build_it(refused: Callable[..., str], data_file: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    files = [f"--search.corpus={data_file}", f"--search.index={index}"]
    said = refused("--env.kind", "search", "--search.port", "0", *files, "--search.stemmer=none", "--search.k1=1.2")
    assert f"`headrace index build {data_file} {index} --backend bm25 --k1 1.2 --stemmer none`" in said


@pytest.mark.parametrize("where", [[], ["--dry-run"]])
def test_passages_and_an_index_that_are_not_what_the_retriever_wants(
    refused: Callable[..., str], data_file: Path, tmp_path: Path, where: list[str]
) -> None:
    search = ["--env.kind", "search", "--search.port", "0", *where]
    said = refused(*search, f"--search.corpus={data_file}")
    assert "search.corpus: " in said and 'train.jsonl line 1: has no "contents"' in said
    passages, index = tmp_path / "passages.jsonl", tmp_path / "index"
    passages.write_text('\n{"contents": "a weir"}\n\r\n')  # empty lines are no passages
    build_index(passages, index, IndexSpec())
    files = [f"--search.corpus={passages}", f"--search.index={index}"]
    said = refused(*search, *files, "--search.k1", "2.0", "--search.stemmer", "none")
    assert "k1 = 0.9 but search.k1 is 2.0 and stemmer = 'english' but search.stemmer is 'none'" in said


def test_no_actor_for_a_redis_that_nobody_else_can_reach(refused: Callable[..., str]) -> None:
    assert refused("--actor.count", "0", "--dry-run").startswith("actor.count = 0 and redis.url is empty")


def test_a_search_run_without_a_corpus_or_a_retriever(refused: Callable[..., str], unused_port: int) -> None:
    said = refused("--env.kind", "search", "--env.url", f"http://127.0.0.1:{unused_port}")
    assert "no retriever answers at env.url" in said
    assert "set search.corpus" in said


@pytest.mark.parametrize("where", [[], ["--dry-run"]])
def test_a_retriever_here_that_is_not_the_runs_own(
    refused: Callable[..., str], data_file: Path, where: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        url = f"http://localhost:{somebody.getsockname()[1]}"
        settings = ["--env.kind", "search", "--search.corpus", str(data_file), "--search.port", "9123"]
        said = refused(*settings, "--env.url", url, *where)
    assert said.startswith(f"env.url = '{url}' is not the retriever that this run starts over search.corpus, at ")
    assert said.endswith("search.port = 9123: leave env.url out, or, to ask the other one, set search.corpus to ''.")


def test_a_resumed_run_is_not_told_to_leave_out_what_stands_in_its_configuration(data_file: Path) -> None:
    search, env = {"corpus": str(data_file), "port": 9123}, {"kind": "search", "url": "http://localhost:7000"}
    with pytest.raises(UserError, match=r"at search\.port = 9123: to ask the other one, set search\.corpus to ''\.$"):
        Preflight(build({"search": search, "env": env}), resuming=True)._retrieval()


def test_a_retriever_on_another_machine_that_does_not_answer(refused: Callable[..., str]) -> None:
    said = refused("--env.kind", "search", "--env.url", "http://retriever.invalid:8000")
    assert said.startswith("no retriever answers at env.url = 'http://retriever.invalid:8000': start it there")


def answering(status: int, body: str) -> type[BaseHTTPRequestHandler]:
    """Answers each POST so, and knows no other method."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    return Handler


@pytest.fixture
def served() -> Iterator[Callable[[int, str], str]]:
    """Serve such answers; the address."""
    servers: list[ThreadingHTTPServer] = []

    def serve(status: int, body: str) -> str:
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), answering(status, body)))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,)).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, "<html>it works</html>", "gave no result in 1 try (the answer is not JSON)"),
        (200, '{"result": []}', "gave no result in 1 try (no list of 1 results in the answer)"),
        (500, "no", "gave no result in 1 try (status 500)"),
        (404, "no\nsuch\npage", "refused the query: 404 no such page"),
    ],
)
def test_what_answers_and_is_no_retriever(
    refused: Callable[..., str], served: Callable[[int, str], str], status: int, body: str, why: str
) -> None:
    url = served(status, body)
    said = refused("--env.kind", "search", "--env.url", url, "--env.retries", "0")
    assert said == (
        f"what answers at env.url is no retriever: {url} {why}. It must answer POST /retrieve, "
        "as docs/environments.md says."
    )


def test_a_retriever_of_one_route_is_one_and_a_tool_that_refuses_a_query_is_noted(
    served: Callable[[int, str], str],
) -> None:
    for status, body, notes in ((200, '{"result": [[]]}', 0), (422, "no expression", 1)):
        check = Preflight(build({"env": {"kind": "search", "url": served(status, body)}}))
        check._retrieval()
        assert len(check.notes) == notes and all("422 no expression. Rollouts" in note for note in check.notes)


@pytest.mark.parametrize("words", [["--help"], ["status", "--help"], ["config"], ["--version"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])  # it fails at the exit, or at once
def test_an_output_that_takes_nothing_is_one_sentence(words: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cli.main", *words],
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == f"headrace: {words[0].lstrip('-')} cannot go on: No space left on device.\n"


def test_a_port_in_use(refused: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"replay.port = {port} is in use on this machine" in refused("--replay.port", str(port))


def test_two_services_on_one_port(refused: Callable[..., str], data_file: Path, unused_port: int) -> None:
    ports = ["--search.port", str(unused_port), "--replay.port", str(unused_port)]
    said = refused("--env.kind", "search", "--search.corpus", str(data_file), *ports)
    assert f"search.port and replay.port are both {unused_port}" in said


def test_learner_and_actors_on_one_port(refused: Callable[..., str]) -> None:
    said = refused("--learner.port", "9455", "--actor.port", "9455")
    assert "actor.port and learner.port are both 9455" in said


def test_the_second_actor_on_the_port_of_the_learner(refused: Callable[..., str]) -> None:
    said = refused("--learner.port", "9456", "--actor.port", "9455", "--actor.count", "2")
    assert "actor.port and learner.port are both 9456 (a port for each actor, from actor.port on)" in said


def test_more_actors_than_ports_are_left(refused: Callable[..., str]) -> None:
    said = refused("--actor.port", "65535", "--actor.count", "2")
    assert "needs the ports up to 65536, and the highest is 65535: set actor.port to 65534 or less" in said


def test_a_port_is_tried_on_the_address_of_its_service(refused: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        port = str(server.getsockname()[1])
        setting = ["--learner.port", port, "--run.metrics_host", "127.0.0.2"]
        assert f"learner.port = {port} is in use on this machine (127.0.0.2)" in refused(*setting)


@pytest.mark.parametrize(
    ("file", "missing"),
    [
        ("tokenizer.json", "a tokenizer"),
        ("config.json", "config.json"),
        ("model.safetensors", "weights"),
    ],
)
def test_a_model_folder_that_is_not_complete(
    refused: Callable[..., str], model_dir: Path, file: str, missing: str
) -> None:
    (model_dir / file).unlink()
    said = refused()
    assert "model.path" in said
    assert f"lacks {missing}" in said


def test_a_model_that_is_nowhere(refused: Callable[..., str]) -> None:
    assert "neither a folder nor" in refused("--model.path", "nobody/nothing-7b")


def test_a_tokenizer_that_is_none(refused: Callable[..., str], model_dir: Path) -> None:
    (model_dir / "tokenizer.json").write_text("{}")
    assert "is not a tokenizer" in refused()


def test_more_tokens_than_the_model_has_positions(refused: Callable[..., str]) -> None:
    assert "rollout.max_tokens = 600 exceeds the 512 positions" in refused("--rollout.max_tokens", "600")


def test_a_run_that_is_there_already(refused: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "test"
    folder.mkdir(parents=True)
    (folder / "config.toml").touch()
    said = refused()
    assert f"the run folder {folder} exists already: continue it with `headrace up --resume {folder}`" in said


@pytest.mark.parametrize("name", ["runs", "runs/test", "weights"])
def test_a_file_where_a_folder_is_to_be_made(refused: Callable[..., str], tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    said = refused("--weights.dir", str(tmp_path / "weights"))
    assert said.startswith(f"{tmp_path / name} is no folder, and the run needs one at {tmp_path}")


def test_an_override_without_a_value(refused: Callable[..., str]) -> None:
    assert "--learner.lr has no value" in refused("--learner.lr")


def test_a_configuration_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "/nowhere.toml"]) == 2
    assert "there is no configuration file /nowhere.toml" in capsys.readouterr().err


def test_neither_a_configuration_nor_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up"]) == 2
    assert "name either a configuration" in capsys.readouterr().err


def test_resuming_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--resume", str(tmp_path)]) == 2
    assert "holds no config.toml" in capsys.readouterr().err


def test_an_unknown_command_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["statsu"]) == 2
    assert "did you mean 'status'?" in capsys.readouterr().err
    assert main(["trian"]) == 2
    assert "there is no command 'trian'; there are up, demo, " in capsys.readouterr().err, "and not 'tau'"


def test_a_value_is_blamed_on_the_place_it_came_from(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused("--learner.lr", "fast").startswith("--learner.lr: ")
    assert refused("--search.k1", "inf").startswith("--search.k1: ")
    said = refused("--learner.mini_batch", "5")
    assert "run.toml with --learner.mini_batch: learner.batch = 16 is not a multiple" in said
    monkeypatch.setenv("HEADRACE_LEARNER__LRR", "1")
    assert refused().startswith("HEADRACE_LEARNER__LRR: unknown key 'learner.lrr'")
    monkeypatch.delenv("HEADRACE_LEARNER__LRR")
    assert "run.toml: 'learner.lr'" in refused("--run.steps", "3", more="lr = -1.0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dryrun"], "up has no option --dryrun; did you mean '--dry-run'?"),
        (["--lr", "1e-4"], "up has no option --lr; did you mean '--learner.lr'?"),
        (["--topk=3"], "up has no option --topk; did you mean one of --env.topk, --search.topk?"),
        (["more.toml"], "up has no use for 'more.toml'; `headrace up --help` says what it takes."),
    ],
)
def test_an_option_that_is_none(refused: Callable[..., str], words: list[str], said: str) -> None:
    assert refused(*words) == said


def test_a_start_that_was_cut_off_at_its_configuration_does_not_block_its_name(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "test"
    (folder / "logs").mkdir(parents=True)
    for name in (".lock", "config.toml.partial"):
        (folder / name).touch()
    assert untrained.is_untrained(folder)
    untrained.clear(folder)
    assert [path.name for path in folder.iterdir()] == [".lock"]
    (folder / "logs").mkdir()
    (folder / "logs" / "mine").touch()
    assert not untrained.is_untrained(folder)


def test_a_run_that_was_refused_at_its_start_does_not_block_its_name(
    write_config: WriteConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "test"
    for name in ("redis", "logs", "index"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
    (folder / "events.jsonl").write_text('{"kind": "session", "time": 0}\n')
    assert main(["up", str(write_config()), "--dry-run"]) == 0
    untrained.clear(folder)
    assert [path.name for path in folder.iterdir()] == ["index"]

    (folder / "redis").mkdir()
    for file, content in {"mine.txt": "", "events.jsonl": '{"kind": "step", "step": 0, "time": 0}\n'}.items():
        (folder / file).write_text(content)
        untrained.clear(folder)
        assert (folder / "redis").is_dir(), file
        assert main(["up", str(write_config())]) == 2
        assert "exists already" in capsys.readouterr().err
        (folder / file).unlink()
