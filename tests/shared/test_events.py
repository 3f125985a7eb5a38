"""Records of the events stream: whoever reads them may rely on the fields they have."""

import json

import pytest

from shared.events import parse
from shared.streams import FIELD

STEP = {"kind": "step", "time": 1.0, "step": 3, "seconds": 0.5, "learner": {"loss": None}, "ages": [1]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[" * 5000,
        b'{"kind": "step"}',
        *(
            json.dumps(STEP | wrong).encode()
            for wrong in (
                {"kind": "session"},
                {"step": "3"},
                {"seconds": "long"},
                {"learner": {"loss": []}},
                {"time": 1e300},
            )
        ),
    ],
)
def test_what_is_no_record_is_read_as_a_warning_and_takes_no_other_with_it(data: bytes):
    whole = {FIELD: json.dumps(STEP).encode()}
    (_, first), (_, strange), (_, last) = parse([(b"1-0", whole), (b"5000-0", {FIELD: data}), (b"6000-0", whole)])
    assert first == last == STEP
    assert (strange["kind"], strange["time"]) == ("warning", 5.0) and "cannot be read" in strange["text"]
