"""What /v1/responses and /v1/messages answer, whole, in streams and as errors, fits the OpenAPI document."""

from typing import Any

import httpx
import pytest
from openapi_schema_validator import OAS31Validator

from tests.server.live import named_events

MESSAGES = [{"role": "user", "content": "abc"}]
EXAMPLES: dict[str, dict[str, object]] = {
    "/v1/responses": {"input": "abc", "instructions": "x", "max_output_tokens": 3, "timings_per_token": True},
    "/responses": {"input": [{"role": "user", "content": "abc"}], "metadata": {"a": "b"}, "timings_per_token": True},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3, "stop_sequences": ["0"], "system": "x"},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
}


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    """The document as it is served."""
    served: dict[str, Any] = client.get("/openapi.json").json()
    return served


def check(document: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    """Fail where `value` does not fit `schema`."""
    whole = {**schema, "components": document["components"]}
    errors = [error.message for error in OAS31Validator(whole).iter_errors(value)]
    assert not errors, str(errors)[:2000]


@pytest.mark.parametrize("path", EXAMPLES)
def test_requests_and_answers_fit(client: httpx.Client, document: dict[str, Any], path: str) -> None:
    described = document["paths"][path]["post"]
    check(document, described["requestBody"]["content"]["application/json"]["schema"], EXAMPLES[path])
    answer = client.post(path, json=EXAMPLES[path])
    assert answer.status_code == 200
    schema = described["responses"]["200"]["content"]["application/json"]["schema"]
    check(document, schema, answer.json())
    name = schema["$ref"].rpartition("/")[2]
    assert set(answer.json()) == set(document["components"]["schemas"][name]["properties"])


@pytest.mark.parametrize("path", [path for path in EXAMPLES if "count" not in path])
def test_events_fit(client: httpx.Client, document: dict[str, Any], path: str) -> None:
    content = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    _, carried = content["properties"]["data"]["anyOf"]
    with client.stream("POST", path, json=EXAMPLES[path] | {"stream": True}) as response:
        events = list(named_events(response))
    assert len(events) > 6
    for event in events:
        check(document, carried["contentSchema"], event)


@pytest.mark.parametrize("path", EXAMPLES)
def test_errors_fit(client: httpx.Client, document: dict[str, Any], path: str) -> None:
    answer = client.post(path, json={"lora": 5, **EXAMPLES[path]})
    assert answer.status_code == 400
    described = document["paths"][path]["post"]["responses"]["4XX"]
    check(document, described["content"]["application/json"]["schema"], answer.json())
