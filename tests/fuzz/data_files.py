"""Training and evaluation files: every row a task that can be sent, or a sentence that names file and row."""

import io
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from services.replay.tasks import train_task
from shared.config import Config, build
from shared.errors import UserError
from shared.prompts import open_prompts
from tests.fuzz.harness import Target
from tests.fuzz.made import JSON, near, nearly_tags

FOLDER = Path(tempfile.mkdtemp(prefix="headrace-fuzz-"))
VALUES = nearly_tags() | JSON
_RIGHT: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"question": nearly_tags().map("who? {}".format), "answer": st.lists(st.just("me") | nearly_tags(), min_size=1)}
)
_ROWS: st.SearchStrategy[Any] = _RIGHT | st.fixed_dictionaries(
    {},
    optional={
        "question": VALUES,
        "answer": VALUES,
        "golden_answers": st.lists(VALUES, max_size=3),
        "prompt": st.lists(st.fixed_dictionaries({"role": VALUES, "content": VALUES}), max_size=2) | JSON,
        "reward_model": st.fixed_dictionaries({"ground_truth": st.fixed_dictionaries({"target": VALUES}) | JSON})
        | JSON,
        "id": JSON,
        "data_source": JSON,
        "solution": VALUES,
    },
)
_LINES = (st.lists(_RIGHT, min_size=1, max_size=3) | st.lists(_ROWS | JSON, min_size=1, max_size=3)).map(
    lambda rows: b"\n".join(json.dumps(row).encode() for row in rows)
)
_STRANGE = [b"\n", b"\r\n", b"\xff", b"[" * 2000, b"\xef\xbb\xbf", b"\\ud800", b"1" * 5000, b"NaN", b"\x00"]


@cache
def _config() -> Config:
    return build({"data": {"shuffle": False}})


def _read(path: Path, data: bytes) -> bool:
    path.write_bytes(data)
    try:
        prompts = open_prompts(str(path))
        for number in range(min(len(prompts), 5)):
            msgspec.msgpack.encode(train_task(_config(), prompts, number, attempt=0, min_version=0))
    except UserError as error:
        assert path.name in str(error)
        return False
    return True


def check_json_lines(data: bytes) -> bool:
    """True where every row became a task."""
    return _read(FOLDER / "rows.jsonl", data)


def check_parquet(data: bytes) -> bool:
    """The same."""
    return _read(FOLDER / "rows.parquet", data)


_ROW = b'{"question": "q", "answer": ["a"], "reward_model": {"ground_truth": {"target": ["t"]}}, "id": 1}\n'


@cache
def _parquet() -> bytes:
    chat = [[{"role": "user", "content": f"q{i}"}] for i in range(4)]
    truth = [{"style": "rule", "ground_truth": {"target": [f"a{i}"]}} for i in range(4)]
    table = pa.table({"data_source": ["nq"] * 4, "prompt": chat, "reward_model": truth, "id": list(range(4))})
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


TARGETS = [
    Target("JSON lines", near(_LINES, _STRANGE), check_json_lines, check_json_lines, 5, lambda: [_ROW]),
    Target(
        "parquet",
        st.deferred(lambda: near(st.just(_parquet()))),
        check_parquet,
        check_parquet,
        5,
        lambda: [_parquet()],
        _parquet,
    ),
]
