"""What every HTTP request passes before it reaches a route: the API key, and whether the model is there yet.

Pure ASGI, so that streams and disconnects pass through untouched. Routes ask `engine_of` for the model: a request has
one from its beginning to its end, whichever is served to others meanwhile.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from server.edge.cors import ANY_ORIGIN
from server.engine import Engine
from server.engine_users import EngineUsers
from server.errors import ApiKeyInvalid, ModelLoading, RequestError, error_response

_ENGINE = "cohort.engine"
"""Its key in the scope of a request."""
PUBLIC_PATHS = frozenset({"/health", "/v1/health"})
"""Need no API key."""
_QUIET_PATHS = PUBLIC_PATHS | {"/props", "/models", "/v1/models", "/metrics", "/openapi.json"}
"""Read without the model: they neither wake a server that sleeps nor keep one from it."""


@dataclass(slots=True)
class Door:
    """The state of the server as connections see it. One for each app."""

    api_keys: frozenset[str] = field(default=frozenset(), repr=False)
    cors_origins: str = ANY_ORIGIN
    """Of the web pages that may use the API, as `Cors` reads them."""
    engine: Engine | None = None
    """What new requests get; None until the first model is ready."""
    callers: EngineUsers = field(default_factory=EngineUsers)
    """The requests that need the model."""
    wake: Callable[[], Awaitable[Engine]] | None = None
    """Loads the model of a dormant engine again; raises RequestError."""
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
        if scope["method"] == "GET" and scope["path"] in _QUIET_PATHS:
            await self._serve(engine, scope, receive, send)
            return
        with self.door.callers:
            try:
                if engine.is_dormant:
                    assert self.door.wake is not None
                    engine = await self.door.wake()
            except RequestError as error:
                await error_response(error, scope["path"])(scope, receive, send)
            else:
                await self._serve(engine, scope, receive, send)

    async def _serve(self, engine: Engine, scope: Scope, receive: Receive, send: Send) -> None:
        with engine.users:
            await self.app({**scope, _ENGINE: engine}, receive, send)

    def _refusal(self, scope: Scope) -> RequestError | None:
        if scope["path"] not in PUBLIC_PATHS and not self.door.knows(Headers(scope=scope)):
            return ApiKeyInvalid()
        return None
