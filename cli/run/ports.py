"""TCP ports on this machine: which are free, and which already answer."""

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return listener.getsockname()[1]


def can_listen(host: str, port: int) -> bool:
    """Whether a service could open this port on this address."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            return False
    return True


def answers(host: str, port: int, timeout_s: float = 2.0) -> bool:
    """Whether something listens on this port."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False
