"""Strategies that several targets share: bytes close to valid ones, extreme numbers, text that is nearly a tag."""

from hypothesis import strategies as st

EXTREME_INTS = st.sampled_from([0, 1, -1, 7, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, 2**64 - 1])
ANY_INT = EXTREME_INTS | st.integers(-3, 20)
EXTREME_FLOATS = st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf"), -float("inf"), 1e-320, 3.5e38, 1e300])
ANY_FLOAT = EXTREME_FLOATS | st.floats(-2, 2)

# msgpack heads that claim 2 to 4 GB or billions of items behind them, and the deepest nesting in the fewest bytes
CLAIMS = [b"\xc6\x80\x00\x00\x00", b"\xdb\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"]
CLAIMS += [b"\x91" * 5000, b"\x81\xa1a" * 3000, b"\xc9\x7f\xff\xff\xff\x01", b"\xcf" + b"\xff" * 8, b"\xc1"]


@st.composite
def near(draw: st.DrawFn, valid: st.SearchStrategy[bytes], splices: list[bytes] | None = None) -> bytes:
    """Valid bytes with a few of them changed, taken out, doubled or replaced by one of `splices`."""
    data = draw(valid)
    for _ in range(draw(st.sampled_from([0, 0, 1, 2, 4]))):
        at = draw(st.integers(0, len(data)))
        until = min(len(data), at + draw(st.sampled_from([0, 1, 2, 4, 16, 200, 10_000])))
        middle = draw(st.binary(max_size=6) | st.sampled_from([b"", data[at:until] * 2, *(splices or [])]))
        data = data[:at] + middle + data[until:]
    return data


NAMES = st.sampled_from(["think", "search", "information", "answer", "SEARCH", "boxed", "", "sea"])
PIECES = st.one_of(
    st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>", "</information>", "\n"]),
    st.sampled_from(["<|end|>", "<|im_end|>", "\\boxed{", "}", "{", "####", "<", ">", "</", " ", "\x00", "\ud800"]),
    st.builds("<{}{}{}>".format, st.sampled_from(["", "/", " /", "< "]), NAMES, st.sampled_from(["", " ", "<"])),
    st.text(max_size=8),
)


@st.composite
def nearly_tags(draw: st.DrawFn) -> str:
    """Text of tags and pieces of tags; some of it is very long or deeply nested."""
    pieces = draw(st.lists(PIECES, max_size=12))
    times = draw(st.sampled_from([1] * 12 + [2, 50, 3000]))
    nested = draw(st.booleans())
    if nested and pieces:
        return pieces[0] * times + "".join(pieces[1:]) + pieces[-1] * times
    return "".join(pieces) * times


JSON = st.recursive(
    st.none() | st.booleans() | ANY_INT | ANY_FLOAT | nearly_tags(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
