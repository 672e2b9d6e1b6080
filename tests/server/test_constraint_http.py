"""Constrained requests over real HTTP: every field on every route, and what is refused."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.server.constrained import SamplingExecutor
from tests.server.fakes import BODIES, fake_engine
from tests.server.live import LiveServer

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
DIGITS = re.compile(r"[0-9]{3}")


@pytest.fixture(scope="module")
def constrained() -> Iterator[httpx.Client]:
    with LiveServer(lambda settings: fake_engine(SamplingExecutor())) as server, server.client() as client:
        yield client


def content(answer: dict[str, object]) -> str:
    """The text of an answer of any route."""
    if "content" in answer:
        return str(answer["content"])
    choice = answer["choices"][0]  # type: ignore[index]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": "root ::= [0-9]{3}"},
        {"grammar": "%llguidance {}\nstart: /[0-9]{3}/"},
        {"guided_regex": "[0-9]{3}"},
        {"regex": "[0-9]{3}"},
        {"guided_grammar": "root ::= digit digit digit\ndigit ::= [0-9]"},
        {"ebnf": "root ::= [0-9]{3}"},
        {"guided_choice": ["123", "456"]},
        {"structured_outputs": {"regex": "[0-9]{3}", "json": None}},
        {"structured_outputs": {"choice": ["123"]}},
        {"structured_outputs": {"grammar": "root ::= [0-9]{3}"}},
    ],
)
def test_the_text_keeps_to_a_constraint(constrained: httpx.Client, path: str, fields: dict[str, object]) -> None:
    answer = constrained.post(path, json=BODIES[path] | fields | {"n_predict": 50}).json()
    assert DIGITS.fullmatch(content(answer)), answer
    if "choices" in answer:
        assert answer["choices"][0]["finish_reason"] == "stop"
    else:
        assert answer["stop_type"] == "eos"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
    ],
)
def test_the_text_keeps_to_a_schema(constrained: httpx.Client, path: str, fields: dict[str, object]) -> None:
    answer = constrained.post(path, json=BODIES[path] | fields | {"n_predict": 200, "temperature": 0}).json()
    value = json.loads(content(answer))
    assert set(value) == {"ok", "kind"}
    assert isinstance(value["ok"], bool)
    assert value["kind"] in ("a", "b")
