"""What a study file means: runs, steps, settings; and what is refused, in one sentence with the nearest right name."""

from pathlib import Path

import pytest

from cli.compare.study import Study, read_study, run_name
from cli.main import main
from cli.run.plan import PACKAGE_ROOT
from shared.errors import UserError

EXAMPLES = sorted((PACKAGE_ROOT / "examples" / "studies").glob("*.toml"))
HEAD = """
[study]
name = "s"
base = "base.toml"
seeds = [3, 5]
fresh_groups = 48
"""
ARMS = """
[common]
"learner.lr" = 1e-3
env.latency = 0.5
replay.capacity = 48
[[arm]]
name = "b"
settings = { "replay.policy" = "none", "learner.batch" = 16 }
[[arm]]
name = "1.5 b"
settings = { replay.policy = "none", learner.batch = 24 }
[[arm]]
name = "b + HD b/2"
settings = { "learner.batch" = 16, "replay.tau" = 1e-3 }
steps = 2
"""


@pytest.fixture
def study(tmp_path: Path):
    """Write a study beside a base and read it."""
    (tmp_path / "base.toml").write_text('[model]\npath = "m"\n[data]\neval = "held.jsonl"\n')

    def read(text: str, **more) -> Study:
        file = tmp_path / "study.toml"
        file.write_text(text)
        return read_study(file, **more)

    return read


def test_steps_are_the_budget_over_the_batch_unless_an_arm_says_otherwise(study):
    read = study(HEAD + ARMS)
    steps = {run.arm: run.config.run.steps for run in read.runs}
    assert steps == {"b": 3, "1.5 b": 2, "b + HD b/2": 2}
    assert {run.arm: run.budget for run in read.runs} == {"b": 48, "1.5 b": 48, "b + HD b/2": None}


def test_runs_go_seed_by_seed_and_differ_by_arm_and_seed_alone(study):
    runs = study(HEAD + ARMS).runs
    assert [run.name for run in runs] == [
        *("b-s3", "1.5-b-s3", "b-HD-b-over-2-s3", "b-s5", "1.5-b-s5", "b-HD-b-over-2-s5"),
    ]
    assert [run.config.run.seed for run in runs] == [3, 3, 3, 5, 5, 5]
    assert all(run.config.learner.lr == 1e-3 and run.config.env.latency == "0.5" for run in runs)
    assert runs[0].config.model_copy(update={"run": runs[3].config.run}) == runs[3].config
    assert runs[2].config.replay.tau == 1e-3 and runs[2].config.replay.policy == "headroom_drift"


def test_words_of_the_command_line_go_on_top_of_what_all_arms_have(study):
    runs = study(HEAD + ARMS, overrides=[("learner.lr", 2e-4)]).runs
    assert {run.config.learner.lr for run in runs} == {2e-4}


def test_the_environment_does_not_change_a_study(study, monkeypatch):
    monkeypatch.setenv("HEADRACE_LEARNER__LR", "0.5")
    assert {run.config.learner.lr for run in study(HEAD + ARMS).runs} == {1e-3}


def test_differences_are_taken_to_the_first_arm_and_to_the_pairs(study):
    read = study(HEAD + 'pairs = [["b + HD b/2", "1.5 b"]]\n' + ARMS)
    assert read.pairs == [("1.5 b", "b"), ("b + HD b/2", "b"), ("b + HD b/2", "1.5 b")]
    assert study(HEAD + 'against = "1.5 b"\n' + ARMS).pairs == [("b", "1.5 b"), ("b + HD b/2", "1.5 b")]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seeds = [3, 5]", "seed = [3]", "unknown key 'seed'; did you mean 'seeds'?"),
        ("[common]", "[comon]", "unknown key 'comon'; did you mean 'common'?"),
        ('"replay.tau"', '"replay.taw"', r"arm 'b \+ HD b/2': unknown key 'replay.taw'; did you mean 'replay.tau'?"),
        ("steps = 2", "step = 2", "unknown key 'step'; did you mean 'steps'?"),
        ("fresh_groups = 48", "fresh_groups = 50", r"50 = 3 x 16 \+ 2\): 48 fits every arm"),
        ("fresh_groups = 48", "", "'fresh_groups' is missing"),
        ("seeds = [3, 5]", "seeds = [3, 3]", "names a seed twice"),
        ("seeds = [3, 5]", 'seeds = "3"', "'seeds': input should be a valid list"),
        ('name = "1.5 b"', 'name = "b "', "'b' and 'b ' have one name as folders"),
        ("fresh_groups = 48", 'fresh_groups = 48\nagainst = "bb"', "there is no arm 'bb'; did you mean 'b'?"),
        ("[common]", '[common]\n"run.seed" = 3', "run.seed is the study's own"),
        ("[common]", '[common]\n"redis.url" = "redis://x"', "redis.url is the study's own"),
        ('base = "base.toml"', 'base = "bass.toml"', "there is no configuration file"),
        ("[common]", "[[common]]", r"must be one table, \[common\]"),
        ("[common]", "[[common]]\nx = 1\n[[common]]", r"must be one table, \[common\]"),
        ("fresh_groups = 48", "fresh_groups = ", "is not valid TOML"),
    ],
)
def test_a_mistake_is_said_in_a_sentence(study, old, new, said):
    assert (HEAD + ARMS).count(old) == 1
    with pytest.raises(UserError, match=said):
        study((HEAD + ARMS).replace(old, new))


def test_a_setting_of_the_command_line_is_blamed_there(study):
    with pytest.raises(UserError, match=r"^--learner\.lrr in arm 'b' of .*: unknown key 'learner\.lrr'; did you mean"):
        study(HEAD + ARMS, overrides=[("learner.lrr", 1), ("learner.lr", 1e-4)])
    with pytest.raises(
        UserError, match=r"^--learner\.mini_batch in arm 'b' of .*: learner\.batch = 16 is not a multiple"
    ):
        study(HEAD + ARMS, overrides=[("learner.mini_batch", 5)])
    with pytest.raises(UserError, match=r"study\.toml, arm 'b \+ HD b/2': unknown key 'replay\.taw'"):
        study(HEAD + ARMS.replace("replay.tau", "replay.taw"), overrides=[("replay.tau", 0.1)])
    with pytest.raises(UserError, match=r"study\.toml, arm 'b \+ HD b/2': 'replay\.tau' must be"):
        study(HEAD + ARMS.replace('"replay.tau" = 1e-3', '"replay.tau" = -1'), overrides=[("replay.tau", 0.1)])


def test_the_configuration_of_a_run_is_no_study(study):
    with pytest.raises(UserError, match=r"is the configuration of a run, not a study: `headrace up .*` takes it"):
        study("[run]\nsteps = 1\n")


def test_a_study_without_arms_or_file_is_refused(study, tmp_path):
    with pytest.raises(UserError, match=r"has no \[\[arm\]\]"):
        study(HEAD)
    with pytest.raises(UserError, match=r"write \[\[arm\]\] before"):
        study(f"arm = 3\n{HEAD}")
    with pytest.raises(UserError, match=r"must be one table, \[common\]"):
        study(f"common = 3\n{HEAD}")
    with pytest.raises(UserError, match="there is no study"):
        read_study(tmp_path / "nothing.toml")


def test_names_of_arms_become_names_of_folders():
    assert run_name("b + HD b/2", 0) == "b-HD-b-over-2-s0"
    assert run_name("1.5 b", 12) == "1.5-b-s12"
    assert run_name("τ = .02", 0) == "02-s0"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
@pytest.mark.slow
def test_the_examples_are_studies_that_could_start(file, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(file), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "seeds" in said and "left" in said
    assert list(tmp_path.iterdir()) == []


def test_a_report_of_nothing_is_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(EXAMPLES[0]), "--report-only"]) == 2
    assert "no run of the study is made yet" in capsys.readouterr().err
