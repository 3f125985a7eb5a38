"""Where a request to an address goes."""

import pytest

from shared.addresses import host_and_port


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://h:8000", ("h", 8000)),
        ("http://h/path", ("h", 80)),
        ("https://user:secret@h", ("h", 443)),
        ("http://[::1]:8000", ("::1", 8000)),
    ],
)
def test_the_port_is_that_of_the_scheme_where_none_is_written(url: str, place: tuple[str, int]) -> None:
    assert host_and_port(url) == place
