"""Which web pages may use the API (CORS): pages of any origin unless --cors-origins says otherwise, as in llama-server.

Pure ASGI, so that streams pass through untouched.
"""

from functools import partial
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.edge.header_name import HeaderName

ANY_ORIGIN, LOCAL_ORIGINS = "*", "localhost"
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_PREFLIGHT = (
    (HeaderName(b"Access-Control-Allow-Credentials"), b"true"),
    (HeaderName(b"Access-Control-Allow-Methods"), b"GET, POST, DELETE, OPTIONS"),
    (HeaderName(b"Access-Control-Allow-Headers"), b"*"),
)


class Cors:
    """Echoes the origins that are allowed, and answers every OPTIONS."""

    def __init__(self, app: ASGIApp, origins: str = ANY_ORIGIN) -> None:
        """`origins` are separated by commas; `*` is any, `localhost` is this machine at any port."""
        self.app = app
        self._origins = frozenset(origin.strip() for origin in origins.split(","))

    def allows(self, origin: str) -> bool:
        """Whether pages of `origin` may use the API."""
        if self._origins & {ANY_ORIGIN, origin}:
            return True
        return LOCAL_ORIGINS in self._origins and _is_local(origin)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        origin = Headers(scope=scope).get("origin")
        answer = partial(_send_with_origin, origin, send) if origin is not None and self.allows(origin) else send
        if scope["method"] == "OPTIONS":
            preflight = Response()
            preflight.raw_headers.extend(_PREFLIGHT)
            await preflight(scope, receive, answer)
        else:
            await self.app(scope, receive, answer)


def _is_local(origin: str) -> bool:
    try:
        return urlsplit(origin).hostname in _LOCAL_HOSTS
    except ValueError:
        return False


async def _send_with_origin(origin: str, send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        own = [(HeaderName(b"Access-Control-Allow-Origin"), origin.encode("latin-1")), (b"Vary", b"Origin")]
        message = {**message, "headers": [*message["headers"], *own]}
    await send(message)
