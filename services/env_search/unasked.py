"""Whether a run without a corpus is right to have none."""

import socket

from shared.addresses import host_and_port
from shared.config import Config


def why_unasked(config: Config, port: int) -> str:
    """Why nobody asks the retriever of this process, at `port`: empty where somebody may, as far as can be known."""
    if config.env.kind == "single":
        return 'env.kind is "single"'
    if "url" not in config.env.model_fields_set:
        return ""
    host, theirs = host_and_port(config.env.url)
    return "" if theirs == port and _is_here(host) else f"env.url is another retriever's, at {host}:{theirs}"


def _is_here(host: str) -> bool:
    """Whether a name leads to this machine, or this container: an address can be bound to only where it is."""
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(address)
        return True
    except OSError:
        return False
