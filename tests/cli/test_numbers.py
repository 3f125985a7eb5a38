"""Every number of every command: one that is none, or out of bounds, is refused in one sentence at once."""

import argparse
import importlib
import re
from pathlib import Path

import pytest

from cli.main import COMMANDS, main
from shared.config import build
from shared.errors import UserError

CHAOS, EVALUATE = ["chaos", "absent.toml"], ["eval", "absent"]
BUILD, LETTERS = ["index", "build", "absent", "absent"], ["deadletters", "absent"]
NUMBERS = {  # the words before the option, the option: lowest, highest that are taken, and one beyond them
    "k1": (BUILD, "0", "1e308", "-1"),
    "b": (BUILD, "0", "1", "1.1"),
    "minutes": (CHAOS, "0.1", "10080", "0"),
    "seed": (CHAOS, "0", "2147483647", "-1"),
    "every": (CHAOS, "1", "86400", "0.9"),
    "max-stop": (CHAOS, "0.1", "86400", "0"),
    "n": (LETTERS, "1", "2147483647", "0"),
    "steps": (["tau", "absent.toml"], "3", "2147483647", "0"),
    "k": (EVALUATE, "1", "65536", "0"),
    "samples": (EVALUATE, "1", "65536", "0"),
    "temperature": (EVALUATE, "0", "99", "100"),
    "eval's seed": (EVALUATE, "0", "2147483647", "-1"),
    "limit": (EVALUATE, "0", "2147483647", "-1"),
    "texts": (EVALUATE, "0", "2147483647", "-1"),
    "demo's steps": (["demo", "--run.name", "/"], "1", "2147483647", "0"),
}
WHOLE = {"seed", "n", "steps", "k", "samples", "eval's seed", "limit", "texts", "demo's steps"}


def said(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert main(words) == 2
    [sentence] = capsys.readouterr().err.splitlines()
    return sentence


def option(name: str) -> str:
    short = name.rpartition(" ")[2]
    return f"-{short}" if short == "n" else f"--{short}"


@pytest.mark.parametrize("value", ["beyond", "-1", "nan", "inf", "9" * 400, "text", ""])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_none_or_out_of_bounds(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, *_, beyond = NUMBERS[name]
    value = beyond if value == "beyond" else value
    sentence = said(capsys, [*words, option(name), value])
    must = "(above|below|a number|a finite number|a whole number|-?[0-9.e+,]+ or (more|less))"
    assert re.match(rf"headrace: {option(name)} must be {must}.* \(given: {re.escape(value[:20])}", sentence), sentence


@pytest.mark.parametrize("name", NUMBERS)
def test_the_lowest_and_the_highest_are_taken(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, lowest, highest, _ = NUMBERS[name]
    for value in (lowest, highest):
        assert f"{option(name)} must be" not in said(capsys, [*words, option(name), value])


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_part_of_what_is_counted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "must be a whole number (given: 1.5)" in said(capsys, [*NUMBERS[name][0], option(name), "1.5"])


@pytest.mark.parametrize("value", ["-1.0", "nan", "inf", "x"])
@pytest.mark.parametrize("key", ["k1", "b"])
def test_it_is_refused_in_the_words_of_the_setting(key: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError) as of_setting:
        build({"search": {key: float(value) if value != "x" else value}})
    must = re.search(r"must be [^(]*", str(of_setting.value))
    assert must and f"--{key} {must[0]}" in said(capsys, [*BUILD, f"--{key}", value])


def test_no_option_with_a_number_of_its_own_is_left_out() -> None:
    found = set()
    for command, module in COMMANDS.items():
        subparsers = argparse.ArgumentParser().add_subparsers()
        importlib.import_module(module).add_parser(subparsers)
        parsers = [*subparsers.choices.values()]
        while parsers:
            for action in parsers.pop()._actions:
                if isinstance(action, argparse._SubParsersAction):
                    parsers += action.choices.values()
                elif action.type is not None and getattr(action.type, "__name__", "") != "Path":
                    found.add((command, action.option_strings[0]))
    assert found == {(words[0], option(name)) for name, (words, *_) in NUMBERS.items()}


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        ("steps=-1", "steps must be 1 or more (given: -1)."),
        ("steps=0", "steps must be 1 or more (given: 0)."),
        ("repetitions=nan", "repetitions must be a whole number (given: nan)."),
        ("step_s=inf", "step_s must be a finite number (given: inf)."),
        ("step_s=-1", "step_s must be 0 or more (given: -1)."),
        ("tokens=3.5", "tokens must be a whole number (given: 3.5)."),
        ("lags=0,x", "lags must be a whole number (given: x)."),
        ("lags=", "write --size SIZE=VALUE, like --size groups=1000."),
        ("steps=99999999999", "steps must be 2147483647 or less (given: 99999999999)."),
    ],
)
def test_a_size_of_a_benchmark(size: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, ["bench", "bubble", "learner", "--size", size]).endswith(sentence)
