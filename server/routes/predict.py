"""Vertex AI's prediction protocol, where that platform runs the server (AIP_MODE=PREDICTION): one request holds several
for other routes, and gets their answers together.

Source: Google Cloud's requirements for custom containers (the AIP_… variables), and llama-server's `@requestFormat`.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from server.errors import BodyInvalid, FieldInvalid, JsonResponse, error_body
from server.fields import json_type
from server.routes.info import health

FORMAT = "@requestFormat"
MAX_INSTANCES = 128
_FORMATS = {
    "chatCompletions": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "completion": "/completion",
    "embeddings": "/v1/embeddings",
    "tokenize": "/tokenize",
    "detokenize": "/detokenize",
    "applyTemplate": "/apply-template",
}
"""The routes that an instance may be for; it may also name one of their paths."""


async def predict(request: Request) -> Response:
    """Answer every instance as the route that it names does; one that fails has its error in its place."""
    try:
        body = json.loads(await request.body())
    except ValueError as error:
        raise BodyInvalid(f"Request body is not JSON: {error}") from error
    instances = body.get("instances") if isinstance(body, dict) else None
    if not isinstance(instances, list):
        raise FieldInvalid("instances", f"must be an array, but is {json_type(instances)}")
    if len(instances) > MAX_INSTANCES:
        raise FieldInvalid("instances", f"{MAX_INSTANCES} are taken at most, but got {len(instances)}")
    answers = await asyncio.gather(*(_answer(request, index, each) for index, each in enumerate(instances)))
    return JsonResponse({"predictions": answers})


async def _answer(request: Request, index: int, instance: object) -> object:
    format_ = instance.get(FORMAT) if isinstance(instance, dict) else None
    path = _FORMATS.get(format_, format_) if isinstance(format_, str) else None
    if not isinstance(instance, dict) or path is None or path not in _FORMATS.values():
        known = ", ".join(_FORMATS)
        return error_body(FieldInvalid(f"instances[{index}].{FORMAT}", f"must be one of {known}, but got {format_!r}"))
    fields: dict[str, Any] = {name: value for name, value in instance.items() if name != FORMAT}
    if "stream" in fields:
        fields["stream"] = False
    return json.loads(await _post(request, path, json.dumps(fields).encode()))


async def _post(request: Request, path: str, body: bytes) -> bytes:
    """Return the body of what another route answers."""
    parts: list[bytes] = []
    is_sent = False

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            return await request.receive()  # the client's leaving
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    headers = [(name, value) for name, value in request.headers.raw if name != b"content-length"]
    scope = {**request.scope, "path": path, "raw_path": path.encode(), "headers": headers}
    await request.app(scope, receive, send)
    return b"".join(parts)


def predict_routes(environment: Mapping[str, str]) -> list[Route]:
    """Return the routes that the platform's variables ask for: none where it does not run the server."""
    if environment.get("AIP_MODE") != "PREDICTION":
        return []
    routes = [Route(environment.get("AIP_PREDICT_ROUTE", "/predict"), predict, methods=["POST"])]
    if path := environment.get("AIP_HEALTH_ROUTE"):
        routes.append(Route(path, health, methods=["GET"]))
    return routes
