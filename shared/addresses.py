"""Host and port in the address of a service that speaks HTTP."""

from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}


def host_and_port(url: str) -> tuple[str, int]:
    """Where a request to `url` goes. Raises ValueError for what is no such address."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError
    parts.hostname.encode("idna")  # a name that no resolver takes
    return parts.hostname, parts.port or PORTS[parts.scheme]
