"""Which Host headers are answered: without this, any page a user visits could read the window through its own name.

A browser on this machine takes a stranger's page as one origin with this service once the stranger's name resolves to
127.0.0.1 ("DNS rebinding"). Such a name is registered, so it has a dot: addresses and names without one (localhost, a
container's) are ours, and so is the one that `replay.public_name` says.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class OwnNames:
    """Middleware that answers requests for other names with status 421."""

    def __init__(self, app: ASGIApp, public_name: str = "") -> None:
        self.app, self.public_name = app, public_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if is_own(host, self.public_name):
            await self.app(scope, receive, send)
        else:
            sentence = "This service does not go by the name it was asked for: set replay.public_name to it.\n"
            await PlainTextResponse(sentence, 421)(scope, receive, send)


def is_own(host: str, public_name: str = "") -> bool:
    """Whether `host`, as in a Host header (name or address, maybe a port), may be this service's. Empty: HTTP/1.0."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return "." not in name or name.endswith(".localhost") or name == public_name.lower() or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
