"""The ASGI application, as a value made of lists: routes, errors, and what stands before them."""

import os

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from server.edge.body_limit import BodyLimit
from server.edge.cors import Cors
from server.edge.door import Door, Gate
from server.errors import KNOWN, PathUnknown, error_response
from server.model_swap import ServedModels
from server.openapi import openapi_route
from server.routes import (
    adapter_loading,
    adapters,
    admin,
    counting,
    embeddings,
    infill,
    info,
    messages,
    mixes,
    native,
    openai,
    responses,
    slots,
)
from server.routes.predict import predict_routes


def create_app(door: Door, models: ServedModels) -> Starlette:
    """Return the application behind `door`. It answers at once, and serves when `door.engine` is set."""
    routes = [
        *info.routes,
        *slots.routes,
        *adapters.routes,
        *adapter_loading.routes,
        *mixes.routes,
        *native.routes,
        *openai.routes,
        *responses.routes,
        *messages.routes,
        *embeddings.routes,
        *infill.routes,
        *admin.routes,
        *counting.routes,
        *predict_routes(os.environ),
    ]
    app = Starlette(
        routes=[*routes, openapi_route(routes)],
        middleware=[Middleware(Cors, origins=door.cors_origins), Middleware(Gate, door=door), Middleware(BodyLimit)],
        exception_handlers={
            HTTPException: _unknown_path,
            **dict.fromkeys(KNOWN, _answer_error),
            Exception: _answer_error,
        },
    )
    app.state.door = door
    app.state.models = models
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    return error_response(error, request.url.path)


async def _unknown_path(request: Request, _error: Exception) -> Response:
    # Starlette raises it for a path or a method that no route takes.
    return error_response(PathUnknown(), request.url.path)
