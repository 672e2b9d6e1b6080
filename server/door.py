"""What every HTTP request passes before it reaches a route: the API key, and whether the model is there yet.

Pure ASGI, so that streams and disconnects pass through untouched. Routes ask `engine_of` for the model: a request has
one from its beginning to its end, whichever is served to others meanwhile.
"""

import secrets
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from server.cors import ANY_ORIGIN
from server.engine import Engine
from server.errors import ApiKeyInvalid, ModelLoading, RequestError, error_response

_ENGINE = "cohort.engine"
"""Its key in the scope of a request."""
PUBLIC_PATHS = frozenset({"/health", "/v1/health"})
"""Need no API key."""


@dataclass(slots=True)
class Door:
    """The state of the server as connections see it. One for each app."""

    api_keys: frozenset[str] = field(default=frozenset(), repr=False)
    cors_origins: str = ANY_ORIGIN
    """Of the web pages that may use the API, as `Cors` reads them."""
    engine: Engine | None = None
    """What new requests get; None until the first model is ready."""
    is_closing: bool = False
    """Whether the server shuts down: /health says so, and the step loop refuses new requests."""

    def knows(self, headers: Headers) -> bool:
        """Whether `headers` carry one of the API keys, or none is needed."""
        if not self.api_keys:
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        offered = token if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Header text is Latin-1 to Starlette, whatever bytes the client sent.
        sent = offered.strip().encode("latin-1")
        return any(secrets.compare_digest(sent, key.encode()) for key in self.api_keys)


def engine_of(request: Request) -> Engine:
    """Return the model of a request; `Gate` lets no route run before there is one."""
    engine: Engine = request.scope[_ENGINE]
    return engine


class Gate:
    """Lets requests in that carry a key, once the model is ready."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app = app
        self.door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        engine = self.door.engine
        refusal = self._refusal(scope)
        if refusal is not None or engine is None:
            await error_response(refusal or ModelLoading(), scope["path"])(scope, receive, send)
            return
        with engine.users:
            await self.app({**scope, _ENGINE: engine}, receive, send)

    def _refusal(self, scope: Scope) -> RequestError | None:
        if scope["path"] not in PUBLIC_PATHS and not self.door.knows(Headers(scope=scope)):
            return ApiKeyInvalid()
        return None
