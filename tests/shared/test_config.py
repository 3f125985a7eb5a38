"""Configuration: files, variables and overrides, and the sentence for each mistake."""

import re
from pathlib import Path

import pytest

from shared import config
from shared.errors import UserError


def test_later_sources_win(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[learner]\nlr = 1e-4\nbatch = 8\n[run]\nname = "a"\n')
    c = config.load(file, ["--learner.lr", "3e-4"], {"HEADRACE_LEARNER__LR": "2e-4", "HEADRACE_REPLAY__TAU": "0.5"})
    assert (c.learner.lr, c.learner.batch, c.replay.tau, c.run.name) == (3e-4, 8, 0.5, "a")


def test_a_resolved_configuration_reads_back_the_same(tmp_path):
    c = config.load(
        None, ["--env.prompt", 'say "{question}"\n\\ now', "--learner.lr=5e-7", "--data.shuffle", "false"], {}
    )
    file = tmp_path / "config.toml"
    file.write_text(c.to_toml())
    assert config.load(file, [], {}) == c


def test_the_password_stays_out_of_the_resolved_configuration():
    c = config.load(None, ["--redis.url", "redis://:secret@host:6379/0"], {})
    assert "secret" not in c.to_toml() and "host:6379" in c.to_toml()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["--learner.lrr", "1"], "unknown key 'learner.lrr'; did you mean 'learner.lr'?"),
        (["--lerner.lr", "1"], "unknown key 'lerner'; did you mean 'learner'?"),
        (["--learner.tau", "1"], "did you mean 'replay.tau'?"),
        (["--learner.batch", "6", "--learner.mini_batch=4"], "(6 = 1 x 4 + 2): set learner.batch to 4 or 8"),
        (["--rollout.group_size", "1"], "'rollout.group_size' must be 2 or more (given: 1)"),
        (["--learner.lr", "fast"], "'learner.lr' must be a number (given: 'fast')"),
        (["--actor.heartbeat_s", "20"], "must be 8 or less (given: 20)"),
        (["--rollout.temperature", "100"], "must be below 100 (given: 100)"),
        (["--replay.tau", "-1"], "'replay.tau' must be 0 or more (given: -1)"),
        (["--learner.lr", "0"], "'learner.lr' must be above 0 (given: 0)"),
        (["--learner.batch", "1.5"], "'learner.batch' must be a whole number (given: 1.5)"),
        (["--learner.packed", "maybe"], "'learner.packed' must be true or false (given: 'maybe')"),
        (["--replay.drift", "l3"], "'replay.drift' must be 'l2' or 'l1' (given: 'l3')"),
        (["--run.name", "a/b"], "must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter"),
        (["--eval.temperature", "100"], "must be below 100 (given: 100)"),
        (["--rollout.top_p", "0.9"], "biased"),
        (["--rollout.top_k", "20"], "biased"),
        (["--rollout.max_tokens", "100"], "exceeds rollout.max_tokens = 100"),
        (["--actor.exact", "true"], "actor.exact is of the torch engine, and actor.engine = 'auto'"),
        (["--replay.capacity", "4", "--learner.batch", "16"], "cannot hold the replay.select = 8 groups"),
        (["--learner.batch", "1"], "replays nothing: set replay.select"),
        (["--env.url", "http://h:abc"], "env.url = 'http://h:abc' is no address of a retriever"),
        (["--env.url", "http://h:99999"], "is no address of a retriever"),
        (["--env.url", "http://a..b"], "is no address of a retriever"),
        (["--env.url", "http://[::1"], "is no address of a retriever"),
        (["--env.url", "http://user:secret@h:abc"], "env.url = 'h:abc' is no address of a retriever"),
        (["--env.url", "127.0.0.1:8000"], "is no address of a retriever: write http://HOST:PORT"),
        (["--replay.select", "3", "--replay.unit", "2"], "groups beyond 2 could never be used"),
        (["--replay.adaptive_tau", "1", "--replay.tau", "0"], "replay.tau = 0 stays 0"),
        (["--search.k1", "nan"], "'search.k1' must be a finite number (given: nan)"),
        (["--search.b", "2"], "'search.b' must be 1 or less (given: 2)"),
        (["--learner.kl", "0.1"], "model.kl_reference"),
        (["--weights.delta", "true"], "weights.delta is of weights.transport = 'redis', and it is 'folder'"),
        (
            ["--weights.address", "10.0.0.1"],
            "weights.address is of weights.transport = 'broadcast', and it is 'folder'",
        ),
        (["--weights.transport", "redis", "--weights.received", "runs/run/weights"], "which is the learner's alone"),
        (["--weights.dtype", "bfloat16", "--learner.ranks", "2"], "leave it at 'model' with learner.ranks > 1"),
        (["--weights.dtype", "bfloat16", "--learner.lora_rank", "8"], "(adapters are float32)"),
        (["--weights.canary_tokens", "4096"], "exceed rollout.max_tokens = 4096: set weights.canary_tokens to 4095"),
        (["--learner.dual_clip", "0.5"], "must be above 1"),
        (["--learner.dual_clip", "3", "--learner.loss", "cispo"], "'cispo'"),
        (["--learner.clip_low", "1"], "without a clip below"),
        (["--learner.denominator_tokens", "9"], "the constant of 'dr_grpo'"),
        (["--learner.replay_shaping", ".1", "--learner.proximal_cap", "5"], "set one of them to 0"),
        (["--reward.overlong_tokens", "500"], "every response would be penalised"),
        (["--learner.loss", "ppo"], "'learner.loss'"),
        (["--learner.lr"], "has no value"),
        (["learner.lr", "1"], "is not an override"),
    ],
)
def test_a_mistake_gets_one_sentence(overrides, said):
    with pytest.raises(UserError) as error:
        config.load(None, overrides, {})
    text = str(error.value)
    assert said in text and "\n" not in text and "Traceback" not in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr = 1", "unknown key 'lr'; did you mean 'learner.lr'?"),
        ("topk = 1", "did you mean 'env.topk' or 'search.topk'?"),
        ("[learner]\nlr = 1\nlr = 2\n", "run.toml line 3: lr is set above already: keep one of the two."),
        ("[learner]\nlr = 1\nlr = 2", "run.toml line 3: lr is set above already"),
        ("[learner]\nlr = 1\n\n[learner]\n", "run.toml line 4: [learner] is set above already"),
        (
            "learner = 3",
            "run.toml: 'learner' must be a section of settings, [section] with a line each, and not a value",
        ),
        ("[study]", "run.toml is a study, not the configuration of a run: `headrace compare "),
    ],
)
def test_what_a_file_may_have_meant(tmp_path, text, said):
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        config.load(file, [], {})
    assert said in str(error.value)


def test_a_folder_is_named_with_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"is a folder, not a configuration file: name a file\."):
        config.load(tmp_path, [], {})
    (tmp_path / "config.toml").touch()
    with pytest.raises(UserError, match=rf"is the folder of a run.*`headrace up --resume {tmp_path}` continues"):
        config.load(tmp_path, [], {})


def test_a_policy_that_stores_nothing_needs_no_room_and_replays_no_part_of_a_batch():
    c = config.load(None, ["--replay.policy", "dapo", "--learner.batch", "1", "--replay.capacity", "0"], {})
    assert c.replay_groups == 0


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"there is no configuration file .*nowhere\.toml"):
        config.load(tmp_path / "nowhere.toml", [], {})
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\nname = 1")
    with pytest.raises(UserError, match=r"broken\.toml is not valid TOML"):
        config.load(broken, [], {})
    broken.write_text("a = " + "[" * 3000)
    with pytest.raises(UserError, match=r"broken\.toml is not valid TOML: its brackets are nested too deep"):
        config.load(broken, [], {})
    broken.write_bytes("[run]\nname = 'caf\u00e9'".encode("latin-1"))
    with pytest.raises(UserError, match=r"broken\.toml is not UTF-8 text: save it as UTF-8"):
        config.load(broken, [], {})
    broken.write_bytes("\ufeff[run]\r\nsteps = 3\r\n".encode())  # as some editors write it
    assert config.load(broken, [], {}).run.steps == 3
    with pytest.raises(UserError, match=r"learner\.lr"):
        config.load(None, ["--learner.lr", "[" * 3000], {})


@pytest.mark.parametrize("name", ["001", "123", "2026-01-05", "nan", "true", "1e3"])
def test_a_text_setting_is_the_text(name):
    assert config.load(None, ["--run.name", name], {}).run.name == name
    assert config.load(None, [], {"HEADRACE_WEIGHTS__DIR": name}).weights.dir == name


def test_a_variable_that_names_no_setting_is_refused():
    with pytest.raises(UserError, match="HEADRACE_LEARNER_LR names no setting: write HEADRACE_SECTION__KEY"):
        config.load(None, [], {"HEADRACE_LEARNER_LR": "2e-6"})
    with pytest.raises(UserError, match=r"did you mean 'learner.lr'"):
        config.load(None, [], {"HEADRACE_LEARNER__LRR": "2e-6"})


def test_an_env_file_of_the_containers_that_an_editor_exports_is_no_mistake():
    text = (Path(__file__).parents[2] / ".env.example").read_text()
    exported = dict(re.findall(r"^(?:# )?(HEADRACE_\w+)=(.*)$", text, re.MULTILINE))
    assert {name for name in exported if "__" not in name} == {*config.COMPOSE_VARIABLES, "HEADRACE_LOG"}
    assert config.load(None, [], exported).learner.lr == float(exported["HEADRACE_LEARNER__LR"])


@pytest.mark.parametrize(
    ("loss", "low", "high", "advantage"),
    [
        ("grpo", 0.2, 0.2, "std"),
        ("dapo", 0.2, 0.28, "std"),
        ("dr_grpo", 0.2, 0.2, "mean"),
        ("gspo", 3e-4, 4e-4, "std"),
        ("cispo", 1.0, 4.0, "std"),
    ],
)
def test_a_loss_takes_its_published_range_where_none_is_set(loss, low, high, advantage):
    s = config.load(None, ["--learner.loss", loss], {}).learner
    assert (s.clip_low, s.clip_high, s.advantage) == (low, high, advantage)


@pytest.mark.parametrize(
    ("policy", "changed"),
    [
        ("headroom_drift", {}),
        ("bapo", {"clip_high": 0.28, "tis_cap": 3.0}),
        ("exgrpo", {"replay_shaping": 0.1}),
        ("rollout_advantage", {"clip_high": 0.28, "dual_clip": 10.0}),
    ],
)
def test_a_policy_takes_its_papers_settings_of_the_learner_where_none_is_set(policy, changed):
    plain = config.build({}).learner
    chosen = ["--replay.policy", policy]
    assert config.load(None, chosen, {}).learner == plain.model_copy(update=changed)
    own = {"clip_low": 0.1, "clip_high": 0.15, "tis_cap": 1.5, "dual_clip": 5.0, "replay_shaping": 0.2}
    given = [word for name, value in own.items() for word in (f"--learner.{name}", str(value))]
    assert config.load(None, [*chosen, *given], {}).learner == plain.model_copy(update=own)
    other = ["--learner.loss", "cispo"]
    assert config.load(None, [*chosen, *other], {}).learner == config.load(None, other, {}).learner


def test_a_clip_range_that_is_set_stays(tmp_path):
    s = config.load(None, ["--learner.loss", "gspo", "--learner.clip_high", ".1"], {}).learner
    assert (s.clip_low, s.clip_high) == (3e-4, 0.1)
    file = tmp_path / "config.toml"
    file.write_text(config.load(None, ["--learner.loss", "dapo"], {}).to_toml())
    assert config.load(file, ["--learner.loss", "gspo"], {}).learner.clip_high == 0.28  # it was in the file


def test_any_character_of_a_setting_comes_back_from_its_toml(tmp_path):
    strange = "".join(map(chr, range(1, 0x80))) + "\x85\u2028"
    (tmp_path / "run.toml").write_text(config.load(None, ["--data.train", f"x{strange}"], {}).to_toml())
    assert config.load(tmp_path / "run.toml", [], {}).data.train == f"x{strange}"
