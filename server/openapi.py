"""The OpenAPI document of the whole surface, GET /openapi.json: every route of the app, with the schemas of bodies that
the routes read and answers that they give. Knows paths and types, no field.

Source: the OpenAPI specification, version 3.1.1; JSON Schema 2020-12.
"""

import asyncio
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

from pydantic import AliasChoices, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.edge.door import PUBLIC_PATHS
from server.embeddings.schema import EmbeddingsBody
from server.errors import JsonResponse, dump_json
from server.fields import JsonObject
from server.messages import answers as messages_answers
from server.messages.schema import MessagesBody, MessagesFields
from server.responses import answers as responses_answers
from server.responses.schema import ResponsesBody
from server.routes.adapter_loading import LoadBody, UnloadBody
from server.routes.admin import LoadModelBody
from server.routes.infill import InfillBody
from server.routes.mixes import MixBody, MixName
from server.routes.slots import SlotFileBody
from server.schemas import ChatBody, ChatFields, CompletionBody, DetokenizeBody, TokenizeBody
from server.shapes import answers, generated_answers
from server.shapes.fields import AdapterList
from server.version import VERSION

JSON = "application/json"
STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    """What a route reads and answers."""

    answer: Any = JsonObject
    """The type of its JSON body, or of its text."""
    body: Any = None
    """The type of the request's JSON body; None: it has none."""
    frames: Any = None
    """The type of the JSON in each event of its stream; None: it never streams."""
    error: Any = answers.ErrorBody
    media_type: str = JSON
    query: Mapping[str, str] = field(default_factory=dict)
    """Parameters in the query, with what each is for."""

    @property
    def types(self) -> Mapping[str, Any]:
        """Its types by what they are for, without those that it lacks."""
        types = {"body": self.body, "answer": self.answer, "frames": self.frames, "error": self.error}
        return {role: kind for role, kind in types.items() if kind is not None}


_NATIVE = Operation(generated_answers.CompletionAnswer, CompletionBody, frames=generated_answers.CompletionFrame)
_CHAT = Operation(generated_answers.ChatCompletion, ChatBody, frames=generated_answers.ChatChunk)
_COUNT_CHAT = Operation(answers.PromptTokens, ChatFields)
_COUNT_RESPONSES = Operation(answers.PromptTokens, ResponsesBody)
_RESPONSES = Operation(responses_answers.Response, ResponsesBody, frames=responses_answers.ResponsesFrame)
_EMBEDDING = Operation(list[answers.EmbeddingRows], EmbeddingsBody)

OPERATIONS: Mapping[str, Operation] = {
    "GET /health": Operation(answers.Health),
    "GET /v1/health": Operation(answers.Health),
    "GET /models": Operation(answers.ServedModels),
    "GET /v1/models": Operation(answers.ServedModels),
    "GET /props": Operation(answers.Props),
    "GET /slots": Operation(list[answers.Slot], query={"fail_on_no_slot": "1: answer 503 where no slot is idle"}),
    "POST /slots/{id_slot}": Operation(
        answers.SlotSaved | answers.SlotRestored | answers.SlotErased,
        SlotFileBody,
        query={"action": "save, restore or erase; only the first two need a body"},
    ),
    "GET /metrics": Operation(str, media_type="text/plain"),
    "GET /lora-adapters": Operation(list[answers.LoadedAdapter]),
    "POST /lora-adapters": Operation(answers.Success, AdapterList),
    "POST /v1/load_lora_adapter": Operation(str, LoadBody, media_type="text/plain"),
    "POST /v1/unload_lora_adapter": Operation(str, UnloadBody, media_type="text/plain"),
    "GET /v1/mixes": Operation(answers.ShownMixes),
    "POST /v1/mixes": Operation(answers.ShownMix, MixBody),
    "DELETE /v1/mixes": Operation(answers.MixDeleted, MixName),
    "POST /completion": _NATIVE,
    "POST /completions": _NATIVE,
    "POST /infill": Operation(generated_answers.CompletionAnswer, InfillBody, frames=generated_answers.CompletionFrame),
    "POST /embedding": _EMBEDDING,
    "POST /embeddings": _EMBEDDING,
    "POST /v1/embeddings": Operation(answers.Embeddings | list[answers.EmbeddingRows], EmbeddingsBody),
    "POST /tokenize": Operation(answers.Tokens, TokenizeBody),
    "POST /detokenize": Operation(answers.Detokenized, DetokenizeBody),
    "POST /apply-template": Operation(answers.RenderedPrompt, ChatFields),
    "POST /v1/completions": Operation(
        generated_answers.TextCompletion, CompletionBody, frames=generated_answers.TextChunk
    ),
    "POST /v1/chat/completions": _CHAT,
    "POST /chat/completions": _CHAT,
    **{f"POST {prefix}/chat/completions/input_tokens": _COUNT_CHAT for prefix in ("", "/v1")},
    **{f"POST {prefix}/responses/input_tokens": _COUNT_RESPONSES for prefix in ("", "/v1")},
    "POST /v1/responses": _RESPONSES,
    "POST /responses": _RESPONSES,
    "POST /v1/messages": Operation(
        messages_answers.AssistantMessage,
        MessagesBody,
        frames=messages_answers.MessagesFrame,
        error=messages_answers.MessagesErrorBody,
    ),
    "POST /v1/messages/count_tokens": Operation(
        messages_answers.TokenCount, MessagesFields, error=messages_answers.MessagesErrorBody
    ),
    "POST /admin/models/load": Operation(answers.ModelLoaded, LoadModelBody),
    "GET /openapi.json": Operation(),
}
"""By method and path. A route that is not here is in the document all the same, with a JSON object as its answer."""


class _BodySchemas(GenerateJsonSchema):
    """JSON Schema of bodies as routes read them: a field has several names, and null is absent."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        json_schema = super().model_schema(schema)
        properties = json_schema["properties"]
        for name, value in list(properties.items()):
            properties[name] = _or_null(value)
        for model_field in schema["cls"].model_fields.values():
            names = model_field.validation_alias
            if isinstance(names, AliasChoices):
                first, *others = map(str, names.choices)
                properties.update(dict.fromkeys(others, properties[first]))
        return json_schema


def _or_null(schema: JsonSchemaValue) -> JsonSchemaValue:
    if {"type": "null"} in schema.get("anyOf", []) or not schema.keys() & {"type", "anyOf", "$ref"}:
        return schema
    about: JsonSchemaValue = {name: schema[name] for name in ("title", "description", "default") if name in schema}
    kind = {name: value for name, value in schema.items() if name not in about}
    return about | {"anyOf": [kind, {"type": "null"}]}


def openapi_route(routes: Sequence[Route]) -> Route:
    """Return the route that serves the document of `routes` and of itself."""

    @cache
    def rendered() -> bytes:
        return dump_json(openapi_document([*routes, route]))

    async def openapi(request: Request) -> Response:
        """Describe every route, as an OpenAPI document."""
        return Response(await asyncio.to_thread(rendered), media_type=JsonResponse.media_type)

    route = Route("/openapi.json", openapi, methods=["GET"])
    return route


def openapi_document(routes: Sequence[Route]) -> dict[str, object]:
    """Return the document of `routes`, but for those that are marked as not in it: they do nothing."""
    described = [
        _Described(route, method)
        for route in routes
        if route.include_in_schema
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]
    schemas, definitions = _schemas(described)
    paths: dict[str, dict[str, object]] = {}
    for item in described:
        paths.setdefault(item.route.path, {})[item.method.lower()] = item.as_json(schemas)
    return {
        "openapi": "3.1.1",
        "info": {"title": "Cohort", "version": VERSION, "description": "One language model with many LoRA adapters."},
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
    }


_Key: TypeAlias = tuple[str, str]
"""The id of an operation, and which of its types, as in `Operation.types`."""
_Schemas: TypeAlias = Mapping[_Key, JsonSchemaValue]


def _schemas(described: Sequence["_Described"]) -> tuple[_Schemas, JsonSchemaValue]:
    """Return the schema of every body, and the definitions that they refer to."""
    inputs: list[tuple[_Key, JsonSchemaMode, TypeAdapter[Any]]] = [
        ((item.operation_id, role), "validation", TypeAdapter(kind))
        for item in described
        for role, kind in item.operation.types.items()
    ]
    found, rest = TypeAdapter.json_schemas(
        inputs, ref_template="#/components/schemas/{model}", schema_generator=_BodySchemas
    )
    return {key: schema for (key, _), schema in found.items()}, rest["$defs"]


@dataclass(frozen=True, slots=True)
class _Described:
    """A route under one of its methods."""

    route: Route
    method: str

    @property
    def operation(self) -> Operation:
        return OPERATIONS.get(f"{self.method} {self.route.path}", Operation())

    @property
    def operation_id(self) -> str:
        return re.sub(r"\W+", "_", f"{self.method.lower()}{self.route.path}")

    def as_json(self, schemas: _Schemas) -> dict[str, object]:
        """Return its Operation Object."""
        operation = self.operation
        about = inspect.getdoc(self.route.endpoint) or ""
        error = {
            "description": "A refusal or a failure.",
            "content": {JSON: {"schema": schemas[self.operation_id, "error"]}},
        }
        described: dict[str, object] = {
            "operationId": self.operation_id,
            "summary": about.partition(".")[0].replace("\n", " "),
            "description": about,
            "responses": {
                "200": {"description": "The answer.", "content": self._contents(schemas)},
                "4XX": error,
                "5XX": error,
            },
        }
        if self.route.path in PUBLIC_PATHS:
            described["security"] = []
        if parameters := [*self._path_parameters(), *self._query_parameters()]:
            described["parameters"] = parameters
        if operation.body is not None:
            content = {JSON: {"schema": schemas[self.operation_id, "body"]}}
            described["requestBody"] = {"required": True, "content": content}
        return described

    def _path_parameters(self) -> list[dict[str, object]]:
        return [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in self.route.param_convertors
        ]

    def _query_parameters(self) -> list[dict[str, object]]:
        return [
            {"name": name, "in": "query", "description": purpose, "schema": {"type": "string"}}
            for name, purpose in self.operation.query.items()
        ]

    def _contents(self, schemas: _Schemas) -> dict[str, object]:
        contents: dict[str, object] = {self.operation.media_type: {"schema": schemas[self.operation_id, "answer"]}}
        if self.operation.frames is not None:
            contents[STREAM] = {"schema": _event({"anyOf": [schemas[self.operation_id, role] for role in _IN_EVENTS]})}
        return contents


_IN_EVENTS = ("frames", "error")


def _event(content: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of each event of a stream, as an object of its fields; OpenAPI 3.2 describes streams so."""
    carried = {"type": "string", "contentMediaType": JSON, "contentSchema": content}
    data = {"anyOf": [{"const": "[DONE]", "description": "The last one, on OpenAI's routes."}, carried]}
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}
