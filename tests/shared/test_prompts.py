"""Prompt sources in every accepted form, and the order over them."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shared.errors import UserError
from shared.prompts import Example, open_prompts, order


def lines(path: Path, *rows: object) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return str(path)


def verl_row(index: int) -> dict:
    return {
        "id": f"train_{index}",
        "data_source": "nq",
        "question": f"question {index}?",
        "prompt": [{"role": "user", "content": f"Answer the question. question {index}?"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": [f"answer {index}", "other"]}},
        "extra_info": {"split": "train", "index": index},
    }


def test_search_r1_parquet(tmp_path: Path):
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist([verl_row(index) for index in range(5)]), path, row_group_size=2)
    prompts = open_prompts(str(path))
    assert len(prompts) == 5
    assert prompts[3] == Example(
        id="train_3",
        data_source="nq",
        messages=[{"role": "user", "content": "Answer the question. question 3?"}],
        question="question 3?",
        ground_truth=["answer 3", "other"],
    )


def test_verl_parquet_without_question_or_id(tmp_path: Path):
    row = {
        "data_source": "gsm8k",
        "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "1+1?"}],
        "reward_model": {"style": "rule", "ground_truth": "2"},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "math.parquet")
    prompt = open_prompts(str(tmp_path / "math.parquet"))[0]
    assert (prompt.id, prompt.question, prompt.ground_truth) == ("math:0", "1+1?", ["2"])
    assert prompt.messages == row["prompt"]


def test_a_row_of_a_parquet_file_that_is_no_text_is_named(tmp_path: Path):
    questions = pa.array([b"q", b"\x80"]).view(pa.string())
    pq.write_table(pa.table({"question": questions, "answer": ["a", "b"]}), tmp_path / "rows.parquet")
    rows = open_prompts(str(tmp_path / "rows.parquet"))
    assert rows[0].question == "q"
    with pytest.raises(UserError, match=r"rows\.parquet row 1 holds text that is not UTF-8"):
        rows[1]


@pytest.mark.parametrize(
    ("row", "question", "answers"),
    [
        ({"question": " who? ", "golden_answers": ["A", "B"]}, "who?", ["A", "B"]),
        ({"question": "who?", "answer": "A"}, "who?", ["A"]),
        ({"question": "who?", "answer": ["A"]}, "who?", ["A"]),
        ({"question": "who?", "ground_truth": {"target": "A"}}, "who?", ["A"]),
        ({"question": "how many?", "answer": "9*2\n#### 18"}, "how many?", ["18"]),
        ({"problem": "x?", "answer": 27.0}, "x?", ["27"]),
        ({"problem": "x?", "solution": "so \\boxed{\\frac{1}{2}}"}, "x?", ["\\frac{1}{2}"]),
        ({"prompt": "x?", "answer": "A"}, "x?", ["A"]),
        ({"prompt": [{"role": "user", "content": "x?"}], "answer": "A"}, "x?", ["A"]),
        ({"messages": [{"role": "user", "content": "x?"}], "answer": 0}, "x?", ["0"]),
    ],
)
def test_json_lines_in_every_form(tmp_path: Path, row: dict, question: str, answers: list[str]):
    prompt = open_prompts(lines(tmp_path / "set.jsonl", row))[0]
    assert (prompt.id, prompt.data_source) == ("set:0", "set")
    assert (prompt.question, prompt.ground_truth) == (question, answers)
    has_chat = not isinstance(row.get("prompt", ""), str) or "messages" in row
    assert (prompt.messages is not None) is has_chat


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("{oops", r"set.jsonl line 4 is not JSON\."),
        ("[1]", r"set.jsonl line 4 is not a JSON object\."),
        ({"answer": "A"}, r"set.jsonl line 4 has no question: one of question, problem"),
        ({"question": "who?"}, r"set.jsonl line 4 has no answer: reward_model.ground_truth or one of"),
        ({"question": "who?", "golden_answers": []}, r"set.jsonl line 4 has no answer"),
        ({"prompt": ["x"], "answer": "A"}, r"set.jsonl line 4 has a prompt that is not a list of"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, row: object, sentence: str):
    good = {"question": "who?", "answer": "A"}
    prompts = open_prompts(lines(tmp_path / "set.jsonl", good, "", good, row))
    assert prompts[1].question == "who?"
    with pytest.raises(UserError, match=sentence):
        prompts[2]


def test_a_parquet_row_that_cannot_be_used_is_named(tmp_path: Path):
    rows = [{"question": "who?", "answer": "A"}, {"question": "who?", "answer": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "set.parquet")
    prompts = open_prompts(str(tmp_path / "set.parquet"))
    with pytest.raises(UserError, match=r"set.parquet row 1 has no answer"):
        prompts[1]
    with pytest.raises(IndexError):
        prompts[2]


def test_what_cannot_be_opened_is_said_in_one_sentence(tmp_path: Path, monkeypatch):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    for source, sentence in [
        ("", r"No data set is named: set data\.train"),
        (str(tmp_path / "none.jsonl"), r"none.jsonl cannot be read \(No such file"),
        (str(tmp_path / "none.parquet"), r"none.parquet cannot be read \(No such file"),
        (str(tmp_path / "broken.parquet"), r"broken.parquet cannot be read as parquet"),
        (lines(tmp_path / "empty.jsonl"), r"empty.jsonl holds no prompts"),
        (lines(tmp_path / "bad.jsonl", {"question": "who?"}), r"bad.jsonl line 1 has no answer"),
    ]:
        with pytest.raises(UserError, match=sentence) as error:
            open_prompts(source)
        assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"owner/name is no file here, and reading it from the hub needs the package"):
        open_prompts("owner/name")


def test_rows_are_read_only_when_asked_for_and_without_torch(tmp_path: Path):
    good = {"question": "who?", "answer": "A"}
    source = lines(tmp_path / "set.jsonl", good, *["broken"] * 1000, good)
    prompts = open_prompts(source)
    assert len(prompts) == 1002
    assert prompts[1001].question == "who?"
    script = (
        "import sys; from shared.prompts import open_prompts; open_prompts(sys.argv[1]); "
        "assert not {'torch', 'transformers', 'pyarrow', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, source], check=True)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 1000])
def test_every_epoch_visits_every_example_once(n: int):
    for seed in (0, 1, 2**31 - 1):
        for epoch in (0, 1, 7):
            assert sorted(order(seed, n, epoch * n + place) for place in range(n)) == list(range(n))


def test_epochs_and_seeds_differ_and_places_are_even():
    assert (
        len({tuple(order(seed, 50, epoch * 50 + i) for i in range(50)) for seed in range(5) for epoch in range(5)})
        == 25
    )
    n, draws = 10, 4000
    for place in (0, 9):
        counts = Counter(order(3, n, epoch * n + place) for epoch in range(draws))
        # 400 expected for each, standard deviation 19
        assert all(abs(counts[index] - draws / n) < 100 for index in range(n))
    followers = Counter((order(3, n, epoch * n), order(3, n, epoch * n + 1)) for epoch in range(draws))
    assert len(followers) == n * (n - 1), "some pairs of neighbours never occur"


def test_a_place_needs_no_state():
    assert order(7, 170_000, 123_456_789) == order(7, 170_000, 123_456_789)
    assert 0 <= order(7, 170_000, 123_456_789) < 170_000


def test_real_files_open(shared_data: Path):
    for name, count in [("qa/nq_open.dev", 3610), ("qa/xquad_qa.train", 800), ("math/gsm8k.train", 7473)]:
        prompts = open_prompts(str(shared_data / f"{name}.jsonl"))
        assert len(prompts) == count
        assert all(prompts[index].ground_truth for index in range(count))
    for name in ("aime24.test", "amc23.test", "minerva_math.test"):
        prompts = open_prompts(str(shared_data / "math" / f"{name}.jsonl"))
        assert all(prompts[index].ground_truth for index in range(len(prompts)))


def test_a_parquet_whose_column_names_are_no_text_is_a_sentence(tmp_path: Path):
    path = tmp_path / "set.parquet"
    pq.write_table(pa.table({"questionx": ["q"]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"questionx", b"question\x8f"))
    with pytest.raises(UserError, match="cannot be read as parquet"):
        open_prompts(str(path))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"question": "q", "answer": "a", "prompt": 5}', "has a prompt that is not a list"),
        ("[" * 100_000, "is not JSON"),
        ('{"question": "q", "answer": ' + "9" * 5000 + "}", "line 1"),
    ],
)
def test_a_line_that_is_hostile_is_a_sentence(tmp_path: Path, line: str, said: str):
    with pytest.raises(UserError, match=said):
        open_prompts(lines(tmp_path / "set.jsonl", line))


def test_half_a_surrogate_pair_does_not_stand_in_the_way_of_a_message(tmp_path: Path):
    row = '{"question": "\\ud800 q", "answer": ["\\udc00"], "id": "\\ud800", "data_source": "\\ud800"}'
    example = open_prompts(lines(tmp_path / "set.jsonl", row))[0]
    assert (example.question, example.ground_truth, example.id) == ("? q", ["?"], "?")
