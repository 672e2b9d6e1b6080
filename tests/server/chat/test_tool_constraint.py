"""Calls that must come, and calls that have begun, keep to the tools' schemas: over HTTP with a model of random logits,
and token by token.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from model.constraints.constraint import ConstraintCompiler, ConstraintText, Syntax
from server.chat.tool_constraint import tool_constraint
from server.constraint_fields import WantedConstraint
from server.replies.parts import Reply
from server.replies.reasoning import ReasoningTags
from server.reply import ReplyForm, read_reply
from server.tools.fields import Tool, ToolUse
from server.tools.formats import GENERIC, HERMES, CallFormat
from tests.server import chat_templates
from tests.server.constrained import SamplingExecutor
from tests.server.fakes import TURN, byte_tokenizer, fake_engine, fake_limits
from tests.server.live import LiveServer, frames
from tests.server.tools.families import FAMILIES, PROPERTIES, Calls, Family

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["ok", "kind"],
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "first", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "second", "parameters": {**SCHEMA, "required": ["kind"]}}},
]
USER = {"role": "user", "content": "a"}
CHAT: dict[str, Any] = {"messages": [USER], "tools": TOOLS, "tool_choice": "required", "max_tokens": 2000}
TEMPLATES = {
    "PLAIN": chat_templates.PLAIN,
    **{name: chat_templates.FAMILIES[name] for name in ("LLAMA", "MISTRAL", "QWEN_CODER", "KIMI")},
}


@pytest.fixture(scope="module", params=TEMPLATES)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A client of a random model with a template of some family."""
    limits = replace(fake_limits(), num_blocks=1024, max_context=4096)
    template = TEMPLATES[request.param]
    with (
        LiveServer(lambda _: fake_engine(SamplingExecutor(), limits=limits, chat_template=template)) as server,
        server.client() as opened,
    ):
        yield opened


def check(arguments: dict[str, Any], required: set[str]) -> None:
    """Fail where arguments do not fit their schema."""
    assert required <= set(arguments) <= {"ok", "kind"}
    assert isinstance(arguments.get("ok", True), bool)
    assert arguments["kind"] in ("a", "b")


REQUIRED = {"first": {"ok", "kind"}, "second": {"kind"}}


@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_is_required_comes_and_its_arguments_fit(client: httpx.Client, seed: int) -> None:
    [choice] = client.post("/v1/chat/completions", json=CHAT | {"seed": seed}).json()["choices"]
    message = choice["message"]
    assert (message["content"], choice["finish_reason"]) == (None, "tool_calls")
    for call in message["tool_calls"]:
        check(json.loads(call["function"]["arguments"]), REQUIRED[call["function"]["name"]])


def test_a_streamed_call_is_the_same(client: httpx.Client) -> None:
    whole = client.post("/v1/chat/completions", json=CHAT).json()["choices"][0]["message"]["tool_calls"]
    with client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as response:
        deltas = [call for chunk in frames(response) for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    for index, call in enumerate(whole):
        own = [delta["function"] for delta in deltas if delta["index"] == index]
        assert own[0]["name"] == call["function"]["name"]
        assert "".join(function["arguments"] for function in own) == call["function"]["arguments"]


def test_a_tool_that_is_named_is_called_once_where_no_more_may_be(client: httpx.Client) -> None:
    choice = {"type": "function", "function": {"name": "second"}}
    body = CHAT | {"tool_choice": choice, "parallel_tool_calls": False}
    [call] = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "second"
    check(json.loads(call["function"]["arguments"]), {"kind"})


def test_the_other_dialects_require_calls_too(client: httpx.Client) -> None:
    choice = {"type": "tool", "name": "first", "disable_parallel_tool_use": True}
    tools = [{"name": "first", "input_schema": SCHEMA}]
    body = {"messages": [USER], "tools": tools, "tool_choice": choice, "max_tokens": 500}
    message = client.post("/v1/messages", json=body).json()
    assert message["stop_reason"] == "tool_use"
    check(message["content"][0]["input"], {"ok", "kind"})
    functions = [{"type": "function", "name": "first", "parameters": SCHEMA}]
    body = {"input": "a", "tools": functions, "tool_choice": {"type": "function", "name": "first"}}
    response = client.post("/v1/responses", json=body | {"max_output_tokens": 1000}).json()
    check(json.loads(response["output"][0]["arguments"]), {"ok", "kind"})


FORM = {"type": "json_schema", "json_schema": {"schema": {**SCHEMA, "additionalProperties": False}}}


def test_a_reply_beside_tools_is_a_call_or_has_the_form_that_is_asked_for(client: httpx.Client) -> None:
    fields = {"response_format": FORM, "tool_choice": "auto", "max_tokens": 3000}
    for seed in range(4):
        [choice] = client.post("/v1/chat/completions", json=CHAT | fields | {"seed": seed}).json()["choices"]
        message = choice["message"]
        if choice["finish_reason"] == "tool_calls":
            required = {"first": {"ok", "kind"}, "second": {"kind"}}
            for call in message["tool_calls"]:
                check(json.loads(call["function"]["arguments"]), required[call["function"]["name"]])
        else:
            assert choice["finish_reason"] == "stop"
            check(json.loads(message["content"]), {"ok", "kind"})


def test_a_form_of_the_text_means_nothing_where_a_call_must_come(client: httpx.Client) -> None:
    answers = [
        client.post("/v1/chat/completions", json=CHAT | {"seed": 1} | fields).json()["choices"][0]
        for fields in ({}, {"response_format": FORM})
    ]
    assert [answer["finish_reason"] for answer in answers] == ["tool_calls", "tool_calls"]
    first, second = ([call["function"] for call in answer["message"]["tool_calls"]] for answer in answers)
    assert first == second


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "hiccup"}}}]}, "tools"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"grammar": "root ::= x", "tool_choice": "auto"}, "grammar"),
        ({"guided_grammar": "root ::= [x]", "tool_choice": "auto"}, "guided_grammar"),
        ({"ebnf": "root ::= [x]", "tool_choice": "auto"}, "ebnf"),
        ({"response_format": {"type": "json_object", "schema": {"type": "hiccup"}}, "tool_choice": "auto"}, "response"),
        ({"json_schema": {"type": "object", "x-guidance": 1}, "tool_choice": "auto"}, "json_schema"),
    ],
)
def test_what_cannot_be_kept_to_is_refused(client: httpx.Client, fields: dict[str, object], field: str) -> None:
    response = client.post("/v1/chat/completions", json=CHAT | fields)
    assert response.status_code == 400
    assert f"Field '{field}" in response.json()["error"]["message"]


TAGS = ReasoningTags("<think>", "</think>")
USE = ToolUse((Tool("f", "", {"properties": {"a": {"type": "integer"}}}), Tool('"é', "", {})), "required")
COMPILER = ConstraintCompiler()
FITTING = {"text": " a\n<b>", "kind": "b", "count": 5, "flag": None, "list": [1, "x"], "tree": {"a": {"b": True}}}
WRITTEN: Calls = (("sum", {}), ("get_weather", FITTING), ("sum", {"kind": "a", "count": 7}))
SHUFFLED: Calls = (("sum", {"count": 7, "kind": "a"}),)
WRITTEN_TOOLS = (
    Tool("sum", "", {"properties": {key: PROPERTIES[key] for key in ("kind", "count")}}),
    Tool("get_weather", "", {"properties": PROPERTIES, "required": ["text", "kind"]}),
)


def generated(form: ReplyForm, use: ToolUse, seed: int) -> Reply:
    """Return what a constraint lets a model say that wishes for anything, and now and then for the end."""
    tokenizer = byte_tokenizer()
    wanted = tool_constraint(form, use, tokenizer)
    assert wanted is not None
    token_filter = COMPILER.compile(tokenizer, wanted.text).result().begin()
    draw, said = random.Random(seed), bytearray()
    while not token_filter.can_end() or draw.random() < 0.7:
        allowed = [token_id for token_id, is_allowed in enumerate(token_filter.allowed()[:256]) if is_allowed]
        if not allowed:
            break
        # Closing ones are likelier, or a random model never comes to an end.
        token_id = draw.choice([each for each in allowed if each in b'"<}]{,\n'] or allowed)
        said.append(token_id)
        token_filter.accept(token_id)
        assert len(said) < 5000
    return read_reply(form, said.decode())


def refused_from(form: ReplyForm, use: ToolUse, tokens: list[int], text: WantedConstraint | None = None) -> int | None:
    """Return the place of the first token that a constraint forbids; None where the text may also end then."""
    tokenizer = byte_tokenizer()
    wanted = tool_constraint(form, use, tokenizer, text)
    assert wanted is not None
    token_filter = COMPILER.compile(tokenizer, wanted.text).result().begin()
    for place, token_id in enumerate(tokens):
        if not token_filter.allowed()[token_id]:
            return place
        token_filter.accept(token_id)
    return None if token_filter.can_end() else len(tokens)


CALL = '{"name": "f", "arguments": {"a": 1}}'
WRAPPED = f"<tool_call>\n{CALL}\n</tool_call>"


@pytest.mark.parametrize(
    ("form", "choice", "text", "is_whole"),
    [
        (ReplyForm(calls=HERMES), "required", WRAPPED + "\n" + WRAPPED, True),
        (ReplyForm(calls=HERMES), "required", '<tool_call>{"name":"\\"\\u00e9","arguments":{}}</tool_call>', True),
        (ReplyForm(calls=HERMES), "required", "Well", False),
        (ReplyForm(calls=HERMES), "auto", f"Well. {WRAPPED}", True),
        (ReplyForm(calls=HERMES), "auto", "Well.", True),
        (ReplyForm(calls=HERMES), "auto", 'Well. <tool_call>{"name": "g"', False),
        (ReplyForm(calls=HERMES), "auto", f"{WRAPPED} That was all.", False),
        (ReplyForm(calls=HERMES, reasoning=TAGS), "required", f"<think>hm</think>\n\n{WRAPPED}", True),
        (ReplyForm(calls=HERMES, reasoning=TAGS), "required", WRAPPED, True),
        (ReplyForm(calls=HERMES, reasoning=TAGS), "required", "<think>hm</think> Well.", False),
        (ReplyForm(calls=HERMES, reasoning=TAGS, is_reasoning_begun=True), "required", f"hm</think>{WRAPPED}", True),
        (ReplyForm(calls=GENERIC), "required", f"{CALL}\n{CALL}", True),
        (ReplyForm(calls=GENERIC), "required", '{"name": "f", "arguments": {"b"', False),
    ],
)
def test_a_reply_may_be_what_its_family_writes(form: ReplyForm, choice: Any, text: str, is_whole: bool) -> None:
    assert (refused_from(form, replace(USE, choice=choice), list(text.encode())) is None) is is_whole


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_what_a_family_writes_may_be_generated(family: Family) -> None:
    form = ReplyForm(calls=family.form)
    for calls in (WRITTEN[:1], WRITTEN, *([SHUFFLED] if family.is_tagged else [])):
        tokens = list(family.write(calls).encode())
        assert refused_from(form, ToolUse(WRITTEN_TOOLS, "required"), tokens) is None
        if family.form.trigger:
            assert refused_from(form, ToolUse(WRITTEN_TOOLS), [*b"So:\n", *tokens]) is None


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_what_is_generated_is_read_as_calls_that_fit(family: Family) -> None:
    tools = tuple(Tool(name, "", {**SCHEMA, "additionalProperties": False}) for name in REQUIRED)
    for seed in range(3):
        reply = generated(ReplyForm(calls=family.form, tools=tools), ToolUse(tools, "required"), seed)
        assert reply.content == ""
        assert reply.calls
        for call in reply.calls:
            check(json.loads(call.arguments), {"ok", "kind"})


@pytest.mark.parametrize("name", ["qwen_coder", "glm", "minimax", "deepseek_3_2"])
@pytest.mark.parametrize(
    ("schema", "fitting", "wrong"),
    [
        ({"type": "string", "maxLength": 3}, ["", "abc"], ["abcd"]),
        ({"type": "string", "minLength": 2}, ["ab", "a\nb"], ["a"]),
        ({"enum": ["a b", "c"]}, ["a b", "c"], ["a", "d"]),
        ({"enum": ["a", 5]}, ["a", 5], ["b", 6]),
        ({"const": "x"}, ["x"], ["y"]),
        ({"type": "integer", "maximum": 9}, [5, -3], ["x", 10, 1.5]),
        ({"$ref": "#/$defs/pair"}, [[1, 2]], [[1], "x"]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["x", None], []),
        ({"type": "array", "items": {"type": "boolean"}}, [[], [True]], [["x"]]),
    ],
)
def test_the_value_of_a_parameter_fits(
    name: str, schema: dict[str, object], fitting: list[object], wrong: list[object]
) -> None:
    pair = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    tool = Tool("f", "", {"properties": {"a": schema}, "required": ["a"], "$defs": {"pair": pair}})
    family, use = FAMILIES[name], ToolUse((tool,), "required")
    form = ReplyForm(calls=family.form, tools=use.tools)
    for value in [*fitting, *wrong]:
        text = family.write((("f", {"a": value}),))
        assert (refused_from(form, use, list(text.encode())) is None) is (value in fitting)
        if value in fitting:
            assert json.loads(read_reply(form, text).calls[0].arguments) == {"a": value}


@pytest.mark.parametrize("name", ["hermes", "qwen_coder", "lfm2", "gemma"])
def test_an_agent_may_offer_many_tools(name: str) -> None:
    about = {"type": "string", "description": 200 * "a"}
    schema = {
        "type": "object",
        "properties": {f"parameter_{index}": about for index in range(4)},
        "required": ["parameter_0"],
    }
    tools = tuple(Tool(f"tool_{index}", "", schema) for index in range(40))
    family = FAMILIES[name]
    text = family.write((("tool_39", {"parameter_0": "x"}),))
    assert refused_from(ReplyForm(calls=family.form, tools=tools), ToolUse(tools), list(text.encode())) is None


def test_one_call_may_be_all() -> None:
    once = replace(USE, is_parallel=False)
    assert refused_from(ReplyForm(calls=HERMES), once, list(WRAPPED.encode())) is None
    assert refused_from(ReplyForm(calls=HERMES), once, list((WRAPPED + WRAPPED).encode())) == len(WRAPPED)


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_marker_may_be_a_control_token(choice: Any) -> None:
    form = ReplyForm(calls=replace(HERMES, opener="<|turn|>"))
    tokens = [TURN, *f"{CALL}</tool_call>".encode()]
    assert refused_from(form, replace(USE, choice=choice), tokens) is None
    assert refused_from(form, replace(USE, choice=choice), [TURN, ord("x")]) == 1


def test_nothing_tells_that_a_call_without_a_marker_begins() -> None:
    assert tool_constraint(ReplyForm(calls=GENERIC), replace(USE, choice="auto"), byte_tokenizer()) is None


NAMED = '{"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": false}'
TEXT = WantedConstraint("json_schema", ConstraintText(Syntax.JSON_SCHEMA, NAMED))


@pytest.mark.parametrize("form", [GENERIC, HERMES])
@pytest.mark.parametrize(
    ("said", "is_parsed_as"),
    [
        (CALL, "call"),
        ('{"name": "free"}', "text"),
        ('{"name": "f", "sky": 1}', None),
        ("no", None),
        ("", None),
    ],
)
def test_calls_and_the_text_of_a_form_may_begin_alike(form: CallFormat, said: str, is_parsed_as: str | None) -> None:
    if is_parsed_as == "call" and form is HERMES:
        said = f"<tool_call>\n{said}\n</tool_call>"
    reply_form = ReplyForm(calls=form, tools=USE.callable)
    refused = refused_from(reply_form, replace(USE, choice="auto"), list(said.encode()), TEXT)
    assert (refused is None) == (is_parsed_as is not None)
    if is_parsed_as is not None:
        assert bool(read_reply(reply_form, said).calls) == (is_parsed_as == "call")
