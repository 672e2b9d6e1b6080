"""How large the body of a request may be. A larger one is refused while it is read: at once where Content-Length says
so, else at the chunk that exceeds the limit, which is not kept.

Pure ASGI. The refusal is raised where a route reads, so that it is answered in the route's dialect.
"""

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.edge.door import engine_of
from server.errors import BodyTooLarge


class BodyLimit:
    """Lets routes read bodies of `--max-body-bytes` at most. Stands behind `Gate`, which gives a request its engine."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = limited(receive, scope, engine_of(Request(scope)).settings.max_body_bytes)
        await self.app(scope, receive, send)


def limited(receive: Receive, scope: Scope, max_bytes: int) -> Receive:
    """Return `receive` with a bound on the bytes that it gives for the body. It raises BodyTooLarge."""
    num_declared = int(Headers(scope=scope).get("content-length", "0"))
    num_received = 0

    async def receive_limited() -> Message:
        nonlocal num_received
        if num_declared > max_bytes:
            raise BodyTooLarge(num_declared, max_bytes)
        message = await receive()
        num_received += len(message.get("body", b""))
        if num_received > max_bytes:
            raise BodyTooLarge(num_received, max_bytes)
        return message

    return receive_limited
