"""Settings of other systems are refused with ours, and the page that lists them says what the command says."""

import re
from pathlib import Path

import pytest

from cli.main import main
from shared.config import build, known_keys, load
from shared.errors import UserError
from shared.foreign import SYSTEMS, ours

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coming-from.md").read_text()


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"actor_rollout_ref": {"rollout": {"n": 8}}}, "'actor_rollout_ref.rollout.n'; here it is rollout.group_size"),
        ({"rollout": {"n": 8}}, "'rollout.n'; here it is rollout.group_size"),
        ({"num_generations": 8}, "'num_generations'; here it is rollout.group_size"),
        ({"learner": {"beta": 0.1}}, "'learner.beta'; here it is learner.kl"),
        (
            {"algorithm": {"gamma": 1, "kl_ctrl": {"kl_coef": 0.1}}},
            "'algorithm.kl_ctrl.kl_coef'; here it is learner.kl",
        ),
        ({"data": {"train_batch_size": 8}}, "'data.train_batch_size'; here it is learner.batch"),
        ({"train_batch_size": 8}, "'train_batch_size'; here it is learner.mini_batch"),
        ({"model": {"name": "x"}}, "'model.name'; here it is model.path"),
        ({"custom_reward_function": {"path": "r.py"}}, "here it is reward.function"),
    ],
)
def test_a_foreign_setting_is_refused_with_ours(tree: dict, said: str):
    with pytest.raises(UserError) as refused:
        build(tree)
    assert f"unknown key {said}" in str(refused.value) or said in str(refused.value)
    assert "docs/coming-from.md" in str(refused.value)


def test_what_is_called_alike_elsewhere_and_means_another_model_is_not_taken_for_ours():
    assert ours("critic.optim.lr") is None and ours("trainer.optim.lr") == "learner.lr"
    with pytest.raises(UserError, match=r"unknown key 'learner.lrr'; did you mean 'learner.lr'"):
        load(None, ["--learner.lrr", "1"], {})


def test_tables_nested_without_end_are_an_unknown_key_like_any_other():
    tree: dict = {"n": 1}
    for _ in range(3000):
        tree = {"rollout": tree}
    with pytest.raises(UserError, match=r"unknown key 'learner\.rollout'"):
        build({"learner": tree})


@pytest.mark.parametrize(
    "word", ["--num_generations", "--num-generations", "actor_rollout_ref.rollout.n=8", "+rollout.n=8"]
)
def test_a_foreign_word_of_the_command_line_is_too(word: str, capsys: pytest.CaptureFixture[str]):
    assert main(["up", "run.toml", word]) == 2
    assert "here it is rollout.group_size" in capsys.readouterr().err


def test_every_name_of_ours_is_one_and_none_of_theirs_is():
    known = set(known_keys())
    for system, table in SYSTEMS.items():
        for theirs, name in table.items():
            named = set(re.findall(r"\b[a-z]+\.\w+", name))
            assert named and named <= known, f"{system} {theirs}: {name}"
            assert theirs not in known and theirs not in {key.partition(".")[2] for key in known}, theirs


def test_the_page_says_what_the_command_says():
    for system, table in SYSTEMS.items():
        section = PAGE.partition(f"\n## {system}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (`.+?`) \| `(.+?)` \|", section, re.M)
        assert {theirs: name for cell, name in rows for theirs in re.findall(r"`(.+?)`", cell)} == table


def test_a_name_of_two_systems_means_the_same_in_both():
    seen: dict[str, str] = {}
    for table in SYSTEMS.values():
        for theirs, name in table.items():
            assert seen.setdefault(theirs, name) == name
