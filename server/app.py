"""The ASGI application, as a value made of lists: routes, errors, and what stands before them."""

import os

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from server import (
    routes_adapter_loading,
    routes_adapters,
    routes_admin,
    routes_counting,
    routes_embeddings,
    routes_infill,
    routes_info,
    routes_messages,
    routes_mixes,
    routes_native,
    routes_openai,
    routes_responses,
    routes_slots,
)
from server.body_limit import BodyLimit
from server.cors import Cors
from server.door import Door, Gate
from server.errors import KNOWN, PathUnknown, error_response
from server.model_swap import ServedModels
from server.openapi import openapi_route
from server.routes_predict import predict_routes


def create_app(door: Door, models: ServedModels) -> Starlette:
    """Return the application behind `door`. It answers at once, and serves when `door.engine` is set."""
    routes = [
        *routes_info.routes,
        *routes_slots.routes,
        *routes_adapters.routes,
        *routes_adapter_loading.routes,
        *routes_mixes.routes,
        *routes_native.routes,
        *routes_openai.routes,
        *routes_responses.routes,
        *routes_messages.routes,
        *routes_embeddings.routes,
        *routes_infill.routes,
        *routes_admin.routes,
        *routes_counting.routes,
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
