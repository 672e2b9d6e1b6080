"""The OpenAPI document: it is valid, has every route, and tells the truth about what routes read and answer."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from pydantic import BaseModel
from starlette.routing import Route

from server.app import create_app
from server.edge.door import Door
from server.model_swap import ServedModels
from server.openapi import OPERATIONS, openapi_document
from server.schemas import UnknownFields
from tests.server.fakes import BODIES, FakeExecutor, fake_engine, fake_settings
from tests.server.live import LiveServer, frames

GENERATING = ("/completion", "/completions", "/v1/completions", "/chat/completions", "/v1/chat/completions")
EXAMPLES: dict[str, object] = {
    **{f"POST {path}": {**BODIES[path], "n_predict": 3, "temperature": 0.5} for path in GENERATING},
    "POST /lora-adapters": [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 1}],
    "POST /v1/load_lora_adapter": {"lora_name": "added", "lora_path": "FOLDER/added.gguf"},
    "POST /v1/unload_lora_adapter": {"lora_name": "added", "force": True},
    "POST /v1/mixes": {"name": "both", "adapters": {"adapter0": 0.5, "adapter1": 1}},
    "DELETE /v1/mixes": {"name": "both"},
    "POST /embedding": {"content": ["abc", [1, 2]], "embd_normalize": -1},
    "POST /embeddings": {"input": {"content": [{"type": "text", "text": "abc"}]}},
    "POST /v1/embeddings": {"input": ["abc", [1, "b"]], "encoding_format": "base64", "embd_normalize": 1},
    "POST /tokenize": {"content": "abc", "with_pieces": True},
    "POST /detokenize": {"tokens": [97, 98]},
    "POST /apply-template": {"messages": [{"role": "user", "content": "a"}]},
    **{f"POST {path}/input_tokens": BODIES[path] for path in GENERATING if "chat" in path},
    **{f"POST {prefix}/responses/input_tokens": {"input": "a"} for prefix in ("", "/v1")},
    "POST /admin/models/load": {"model": "FOLDER/other.gguf"},
}
"""In an order in which they succeed. FOLDER stands for a folder that adapters and models may be in."""
Document = dict[str, Any]


class Recorder(UnknownFields):
    """Records the schema that a route reads its body as."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, type[BaseModel]] = {}

    def note(self, route: str, body: Mapping[str, object], schema: type[BaseModel]) -> None:
        """Record `schema`."""
        self.seen[route] = schema


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with every route switched on, and a folder of adapters and models."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("added.gguf", "other.gguf"):
        (folder / name).touch()
    folders = {"lora_load_dir": (str(folder),), "model_dir": (str(folder),)}
    settings = fake_settings().model_copy(update=folders)
    with LiveServer(
        lambda settings: fake_engine(FakeExecutor(), settings),
        settings,
        load_next=lambda settings, previous: fake_engine(FakeExecutor(), settings, previous=previous),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> Document:
    """The document as it is served."""
    response = client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    document: Document = response.json()
    return document


def test_the_document_is_valid(document: Document) -> None:
    validate(document)


def test_every_route_that_does_something_is_in_the_document() -> None:
    door = Door()
    app = create_app(door, ServedModels(door, lambda settings, previous: previous))
    routes = [route for route in app.routes if isinstance(route, Route)]
    assert len(routes) == len(app.routes)
    served = {
        (route.path, method.lower())
        for route in routes
        if route.include_in_schema
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert {route.path for route in routes if not route.include_in_schema} == {
        *("/props", "/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
    }
    paths: dict[str, dict[str, object]] = openapi_document(routes)["paths"]  # type: ignore[assignment]
    assert {(path, method) for path, operations in paths.items() for method in operations} == served
    assert {(path, method.lower()) for method, path in map(str.split, OPERATIONS)} <= served


def test_operations_have_ids_of_their_own(document: Document) -> None:
    ids = [item["operationId"] for operations in document["paths"].values() for item in operations.values()]
    assert len(ids) == len(set(ids))


def test_an_operation_is_described_by_its_route(document: Document) -> None:
    operation = document["paths"]["/detokenize"]["post"]
    assert operation["summary"] == "Turn tokens into text, special tokens included"


def test_fields_have_all_their_names_and_bounds_and_may_be_null(document: Document) -> None:
    fields = document["components"]["schemas"]["CompletionBody"]["properties"]
    assert fields["max_tokens"] == fields["n_predict"]
    assert {"type": "null"} in fields["stream"]["anyOf"]
    bounds, _ = fields["top_p"]["anyOf"]
    assert (bounds["type"], bounds["minimum"], bounds["maximum"]) == ("number", 0, 1)


@pytest.mark.parametrize("operation", EXAMPLES)
def test_examples_and_their_answers_fit_the_document(
    server: LiveServer, client: httpx.Client, document: Document, operation: str
) -> None:
    recorder = server.engine.unknown_fields = Recorder()
    folder = Path(*server.settings.model_dir)
    body = json.loads(json.dumps(EXAMPLES[operation]).replace("FOLDER", folder.as_posix()))
    described = described_as(document, operation)
    check(document, described["requestBody"]["content"]["application/json"]["schema"], body)
    method, path = operation.split()
    response = client.request(method, path, json=body)
    assert response.status_code == 200, response.text
    if is_model(OPERATIONS[operation].body):
        assert recorder.seen == {path: OPERATIONS[operation].body}
    check_answer(document, described, response)


@pytest.mark.parametrize("operation", [operation for operation in OPERATIONS if operation.startswith("GET")])
def test_what_is_read_fits_the_document(client: httpx.Client, document: Document, operation: str) -> None:
    response = client.get(operation.removeprefix("GET "))
    assert response.status_code == 200
    check_answer(document, described_as(document, operation), response)


@pytest.mark.parametrize("path", GENERATING)
def test_frames_of_streams_fit_the_document(client: httpx.Client, document: Document, path: str) -> None:
    body = BODIES[path] | {"n_predict": 3, "stream": True, "timings_per_token": True}
    schema = described_as(document, f"POST {path}")["responses"]["200"]["content"]["text/event-stream"]["schema"]
    with client.stream("POST", path, json=body) as response:
        received = list(frames(response))
    _, carried = schema["properties"]["data"]["anyOf"]
    assert len(received) > 3
    for content in received:
        check(document, carried["contentSchema"], content)


@pytest.mark.parametrize(("path", "content"), [("/completion", b"{"), ("/v1/completions", b"[]"), ("/tokenize", b"5")])
def test_errors_fit_the_document(client: httpx.Client, document: Document, path: str, content: bytes) -> None:
    answer = client.post(path, content=content)
    assert answer.status_code == 400
    described = described_as(document, f"POST {path}")["responses"]["4XX"]
    check(document, described["content"]["application/json"]["schema"], answer.json())


def test_it_is_served_behind_the_api_key() -> None:
    settings = fake_settings().model_copy(update={"api_key": "key"})
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(), settings), settings) as server,
        server.client() as client,
    ):
        assert client.get("/openapi.json").status_code == 401
        assert client.get("/openapi.json", headers={"X-Api-Key": "key"}).status_code == 200


def is_model(kind: Any) -> bool:
    """Whether a body is read as a pydantic model."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def described_as(document: Document, operation: str) -> Document:
    """Return what the document says about `METHOD /path`."""
    method, path = operation.split()
    described: Document = document["paths"][path][method.lower()]
    return described


def check_answer(document: Document, described: Document, response: httpx.Response) -> None:
    """Fail where an answer is not as described."""
    media_type = response.headers["content-type"].partition(";")[0]
    schema = described["responses"]["200"]["content"][media_type]["schema"]
    check(document, schema, response.json() if media_type == "application/json" else response.text)


def check(document: Document, schema: Document, value: object) -> None:
    """Fail where `value` does not fit `schema`."""
    errors = list(OAS31Validator({**schema, "components": document["components"]}).iter_errors(value))
    assert not errors, json.dumps([error.message for error in errors])[:2000]
