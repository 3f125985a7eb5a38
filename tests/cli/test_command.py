"""What the command says of itself, and how it resolves a configuration."""

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from cli import demo, up
from cli.compare.study import read_study
from cli.main import COMMANDS, main
from cli.overrides import split_overrides
from cli.run import plan
from shared.config import build, known_keys, load

EXAMPLES = plan.PACKAGE_ROOT / "examples"


@pytest.mark.alone
def test_help_is_quick_and_teaches() -> None:
    seconds = []
    said = ""
    for _ in range(3):
        began = time.monotonic()
        said = subprocess.check_output([sys.executable, "-P", "-m", "cli.main", "--help"], text=True)
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 0.5
    assert all(f"headrace {command}" in said for command in COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert f"headrace {command}" in capsys.readouterr().out


def test_the_settings_are_a_configuration_with_comments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["config"]) == 0
    said = capsys.readouterr().out
    file = _written(tmp_path, said)
    assert load(file, environ={}) == build({})
    assert "# tau = 0.01                                # largest Drift (how far" in said
    assert main(["up", str(file), "--dry-run"]) == 2
    assert "model.path is empty: name the folder of the model to train" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["learner.loss=gspo", "learner.loss=dr_grpo", "replay.policy=exgrpo"])
def test_settings_that_nobody_uncommented_leave_a_papers_in_force(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, word: str
) -> None:
    assert main(["config"]) == 0
    file, words = _written(tmp_path, capsys.readouterr().out), [f"--{word}"]
    assert load(file, words, environ={}) == load(None, words, environ={})
    uncommented = file.read_text().replace("# clip_low = 0.2", "clip_low = 0.1")
    assert load(_written(tmp_path, uncommented), words, environ={}).learner.clip_low == 0.1


def test_every_setting_has_its_meaning_and_an_enumeration_its_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    said = capsys.readouterr().out
    settings = [line.removeprefix("# ") for line in said.splitlines() if re.match(r"(# )?\w+ = ", line)]
    lines = {line.split()[0]: line for line in settings}
    assert set(lines) == {key.partition(".")[2] for key in known_keys()}
    assert [line for line in settings if not line.partition("  # ")[2]] == []
    assert [line for line in settings if line.startswith("dtype ") and "# auto | float32 | bfloat16; " in line]
    for policy in ("headroom_drift", "none", "naive"):
        assert f" {policy} |" in lines["policy"]
    assert "golden_answers" in lines["train"]


def test_a_dry_run_prints_a_configuration_that_resolves_to_itself(
    write_config: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", str(write_config()), "--dry-run", "--learner.lr", "2e-6", "--replay.tau=.02"]) == 0
    said = capsys.readouterr().out
    again = load(_written(tmp_path, said), environ={})
    assert (again.learner.lr, again.replay.tau) == (2e-6, 0.02)
    assert "# would start: redis (its own, on a free port), replay, learner, actor-0" in said
    assert "# a step: 16 fresh groups of 8, at most 8 replayed (replay.select)" in said
    assert not again.run_dir.exists()


def test_a_dry_run_says_who_takes_which_gpu_and_that_the_folder_is_taken(
    write_config: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HEADRACE_GPUS", "GPU-a,GPU-b,GPU-c,GPU-d")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = tmp_path / "runs" / "test"
    folder.mkdir(parents=True)
    (folder / "mine.txt").touch()
    assert main(["up", str(write_config()), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "# GPUs, 4 visible: learner 0; actors 1, 1 each\n" in said
    assert "# note: 2 of 4 GPUs stay unused: --actor.count 3 uses them.\n" in said
    assert f"# note: the run folder {folder} exists already: continue it with" in said
    assert main(["up", str(write_config()), "--dry-run", "--learner.ranks", "6"]) == 0
    said = capsys.readouterr().out
    assert "# note: learner.ranks = 6 needs a GPU for each" in said and "# GPUs" not in said


@pytest.mark.parametrize("name", ["search-r1-3b", "search-r1-7b"])
def test_the_configurations_of_the_paper_are_sound(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", str(EXAMPLES / f"{name}.toml"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    settings = tomllib.loads(said)
    assert (settings["learner"]["batch"], settings["replay"]["select"], settings["replay"]["tau"]) == (128, 64, 0.01)
    first, last = said.splitlines()[0], said.splitlines()[-1]
    assert first.startswith("# note: model.path = 'Qwen/Qwen2.5-"), "what is not here is noted above and below"
    assert last.startswith("# note: ") and last in said.splitlines()[:10]
    assert "env_search" in said


def test_the_pretrained_example_is_sound_with_files_of_ones_own(
    model_dir: Path, data_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model_dir / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 2048}')
    corpus = tmp_path / "passages.jsonl"
    corpus.write_text('{"id": "0", "contents": "\\"Weir\\"\\nA weir is a low dam."}\n')
    words = ["--data.train", str(data_file), "--data.eval", str(data_file), "--search.corpus", str(corpus)]
    words += ["--model.path", str(model_dir), "--replay.port", "0", "--search.port", "0", "--run.root", str(tmp_path)]
    assert main(["up", str(EXAMPLES / "smollm2-search.toml"), *words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    settings = tomllib.loads(said)
    assert (settings["actor"]["engine"], settings["env"]["max_turns"], settings["learner"]["batch"]) == ("vllm", 2, 2)
    assert [settings["search"]["corpus"], settings["data"]["eval"]] == [str(corpus), str(data_file)]
    assert settings["env"]["url"].endswith(str(settings["search"]["port"]))
    assert "replay, env_search, learner, actor-0" in said


def test_the_papers_mathematics_and_its_controls_are_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", str(EXAMPLES / "math-1.5b.toml"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    settings = tomllib.loads(said)
    learner, replay = settings["learner"], settings["replay"]
    assert (learner["batch"], learner["mini_batch"], settings["rollout"]["group_size"]) == (256, 64, 16)
    assert (replay["policy"], replay["select"], replay["tau"], replay["capacity"]) == ("headroom_drift", 128, 1e-3, 512)
    assert (settings["env"]["prompt"], settings["reward"]["kind"]) == ("qwen_math", "math")
    assert "env_search" not in said
    study = read_study(EXAMPLES / "studies" / "math-1.5b.toml")
    arms = {run.arm: run for run in study.runs}
    batches = {arm: (run.config.learner.batch, run.wanted, run.config.run.steps) for arm, run in arms.items()}
    assert batches == {
        "b256": (256, 0, 150),
        "b384": (384, 0, 100),
        "b256 + naive r128": (256, 128, 150),
        "b256 + naive r256": (256, 256, 150),
        "b256 + HD r128": (256, 128, 150),
        "DAPO": (256, 0, 150),
        "ExGRPO": (128, 128, 300),
        "BAPO": (256, 128, 150),
    }
    assert all(run.config.replay.max_lag == 0 for run in arms.values())
    dapo = arms["DAPO"].config.learner
    assert (dapo.loss, dapo.clip_low, dapo.clip_high) == ("dapo", 0.2, 0.28)


def test_the_demo_finds_its_files_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = up.resolve(str(EXAMPLES / "atlas.toml"), None, ["--search.port", "0", "--replay.port", "0"])
    assert Path(config.data.train).is_file()
    assert Path(config.search.corpus).is_file()
    assert config.run_dir == tmp_path / "runs" / "atlas"
    assert config.env.url == f"http://127.0.0.1:{config.search.port}"
    assert plan.serves_search(config)


def test_the_demo_takes_the_next_free_name(tmp_path: Path) -> None:
    (tmp_path / "atlas-001").mkdir()
    (tmp_path / "atlas-002").mkdir()
    assert demo.free_name(tmp_path) == "atlas-003"


def test_the_demo_looks_for_a_free_name_where_it_will_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there" / "atlas-001").mkdir(parents=True)
    started = []
    monkeypatch.setattr(up, "launch", lambda checked: started.append(checked.config.run.name) or 1)
    assert main(["demo", "--run.root", str(tmp_path / "there")]) == 1 and started == ["atlas-002"]
    assert main(["demo", "--name", "a", "--run.name", "b"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_overrides_are_told_apart_from_options() -> None:
    words = ["up", "--learner.lr", "2e-6", "run.toml", "--dry-run", "--replay.tau=.02", "--rollout.top_k", "-1"]
    own, overrides = split_overrides(words)
    assert own == ["up", "run.toml", "--dry-run"]
    assert overrides == ["--learner.lr", "2e-6", "--replay.tau=.02", "--rollout.top_k", "-1"]


def test_the_retriever_follows_its_port(write_config: Callable[..., Path], data_file: Path) -> None:
    file, search = str(write_config()), ["--env.kind", "search", f"--search.corpus={data_file}"]
    config = up.resolve(file, None, [*search, "--search.port", "9123"])
    assert config.env.url == "http://127.0.0.1:9123"
    assert plan.serves_search(config)
    elsewhere = up.resolve(file, None, [*search, "--env.url", "http://retriever:8000", "--search.port", "9123"])
    assert elsewhere.env.url == "http://retriever:8000"
    assert not plan.serves_search(elsewhere)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://localhost:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:7000"]
)
@pytest.mark.parametrize("port", ["0", "9123"])
def test_a_url_in_the_file_follows_the_port_where_it_is_that_of_the_runs_own_retriever(
    write_config: Callable[..., Path], data_file: Path, port: str, url: str
) -> None:
    file = write_config()
    file.write_text(file.read_text().replace("[env]", f'[env]\nurl = "{url}"'))
    config = up.resolve(
        str(file), None, ["--env.kind", "search", f"--search.corpus={data_file}", "--search.port", port]
    )
    assert plan.serves_search(config) == (":8000" in url)
    assert config.env.url == (plan.search_url(config.search.port) if plan.serves_search(config) else url)


@pytest.mark.parametrize("url", ["http://retriever:8000", "http://127.0.0.1:7000"])
@pytest.mark.parametrize("port", ["0", "9123"])
@pytest.mark.parametrize("written", ["file", "environment", "override"])
def test_a_url_that_the_user_wrote_stays(
    write_config: Callable[..., Path],
    data_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: str,
    port: str,
    url: str,
) -> None:
    file = write_config()
    search = ["--env.kind", "search", f"--search.corpus={data_file}", "--search.port", port]
    if written == "file":
        file.write_text(file.read_text().replace("[env]", f'[env]\nurl = "{url}"'))
    elif written == "environment":
        monkeypatch.setenv("HEADRACE_ENV__URL", url)
    else:
        search.append(f"--env.url={url}")
    assert up.resolve(str(file), None, search).env.url == url


@pytest.mark.parametrize("url", ["http://127.0.0.1:9123", "http://127.0.0.1:7000", "http://retriever:9123"])
def test_a_resumed_run_moves_its_own_retriever_only(
    write_config: Callable[..., Path], data_file: Path, tmp_path: Path, url: str
) -> None:
    search = ["--env.kind", "search", f"--search.corpus={data_file}", "--search.port", "9123", f"--env.url={url}"]
    config = up.resolve(str(write_config()), None, search)
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "config.toml").write_text(config.to_toml())
    again = up.resolve(None, str(config.run_dir), ["--search.port", "0"])
    own = url == "http://127.0.0.1:9123"
    assert again.env.url == (plan.search_url(again.search.port) if own else url)


def test_a_path_in_a_file_means_the_file_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    for folder in (tmp_path, tmp_path / "configs"):
        (folder / "here.jsonl").touch()
    (tmp_path / "below.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "configs" / "run.toml"
    file.write_text('[data]\ntrain = "here.jsonl"\neval = "below.jsonl"\n[model]\npath = "owner/name"\n')
    config = load(file, environ={})
    assert config.data.train == str(tmp_path / "configs" / "here.jsonl")
    assert config.data.eval == "below.jsonl"
    assert config.model.path == "owner/name"
    assert load(file, ["--data.train", "here.jsonl"], environ={}).data.train == "here.jsonl"


def test_a_service_sees_the_resolved_file_and_no_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LEARNER__LR", "1")
    monkeypatch.setenv("HEADRACE_LOG", "DEBUG")
    seen = plan.child_environment(Path("runs/x/config.toml"), "redis://:secret@127.0.0.1:1/0", {"OMP_NUM_THREADS": "1"})
    assert "HEADRACE_LEARNER__LR" not in seen
    assert seen["HEADRACE_LOG"] == "DEBUG"
    assert seen["HEADRACE_REDIS__URL"] == "redis://:secret@127.0.0.1:1/0"
    assert seen["PATH"] == os.environ["PATH"]


def test_metrics_ports_of_several_actors_differ() -> None:
    specs = plan.services_of(build({"actor": {"count": 2, "port": 9100}, "env": {"kind": "single"}}), range(2))
    assert [s.name for s in specs] == ["replay", "learner", "actor-0", "actor-1"]
    assert [s.environment.get("HEADRACE_ACTOR__PORT") for s in specs[2:]] == ["9100", "9101"]


def _written(folder: Path, text: str) -> Path:
    file = folder / "written.toml"
    file.write_text(text)
    return file
