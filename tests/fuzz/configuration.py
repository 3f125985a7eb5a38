"""TOML files, overrides and variables: a Config that can be written and read again, or one sentence."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from shared.config import known_keys, load
from shared.errors import UserError
from shared.foreign import SYSTEMS
from tests.fuzz.harness import Target
from tests.fuzz.made import ANY_FLOAT, ANY_INT, near

FILE = Path(tempfile.mkdtemp(prefix="headrace-fuzz-")) / "run.toml"
DEFAULT = load(None, environ={}).to_toml().encode()
FOREIGN = sorted({name for table in SYSTEMS.values() for name in table})
KEYS = (
    st.sampled_from(known_keys())
    | st.sampled_from(FOREIGN).map("learner.{}".format)
    | st.sampled_from(["run", "run.", ".x", "learner.lrr", "replay.tau.x", ""])
)
WORDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["true", "nan", "inf", "-1", "1e400", "[1]", "{}", '"', "'a'", "headroom_drift", "grpo", "x" * 5000]
    ),
    ANY_INT.map(str),
    ANY_FLOAT.map(repr),
)
_TOML = [
    b"[[",
    b"[run]",
    b"=",
    b"[" * 3000,
    b"a.b.c=1\n",
    b"a." * 1500 + b"b=1\n",
    *(f"{name} = 1\n".encode() for name in FOREIGN),
    b'"""',
    b"'''",
    b"nan",
    b"\xff",
    b"1e999",
    b"\\u0000",
    b"\x00",
]
_CASES = st.tuples(
    near(st.just(DEFAULT) | st.just(b""), _TOML) | st.binary(max_size=60),
    st.lists(st.tuples(KEYS, WORDS), max_size=3),
    st.dictionaries(KEYS, WORDS, max_size=2),
)


def check_configuration(case: tuple[bytes, list[tuple[str, str]], dict[str, str]]) -> bool:
    """True for a configuration, which comes back as it was from its own TOML."""
    data, overrides, variables = case
    FILE.write_bytes(data)
    words: list[str] = [word for key, value in overrides for word in (f"--{key}", value)]
    environ: dict[str, Any] = {f"HEADRACE_{k.replace('.', '__').upper()}": v for k, v in variables.items()}
    try:
        config = load(FILE, words, environ)
    except UserError as error:
        assert str(error).strip()
        return False
    text = config.to_toml()
    FILE.write_text(text)
    assert load(FILE, (), {}).to_toml() == text
    return True


TARGETS = [
    Target(
        "configurations",
        _CASES,
        check_configuration,
        lambda data: check_configuration((data, [], {})),
        5,
        lambda: [DEFAULT],
    )
]
