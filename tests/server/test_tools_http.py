"""Tools and thinking over real HTTP, in all three dialects: whole answers, streams, and the official clients."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai
import pytest
from openai.types.responses import Response

from tests.server.chat_templates import HERMES, HERMES_THINKING, PLAIN, THINKING_BEGUN
from tests.server.fakes import TIMEOUT_S, FakeExecutor, fake_engine, fake_limits, says
from tests.server.live import LiveServer, frames, named_events

USER = {"role": "user", "content": "a"}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f"}}]
ONE_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>'
TALK = f"<think>\nhm\n</think>\n\nSo:\n{ONE_CALL}\n{ONE_CALL}"
CHAT: dict[str, Any] = {"messages": [USER], "tools": TOOLS, "max_tokens": 300}


@contextmanager
def serving(text: str, template: str = HERMES) -> Iterator[tuple[LiveServer, httpx.Client]]:
    """Serve a model that says `text`."""
    executor = FakeExecutor(says(text))
    limits = replace(fake_limits(), num_blocks=1024, max_context=4096)
    with (
        LiveServer(lambda settings: fake_engine(executor, settings, limits, chat_template=template)) as server,
        server.client() as client,
    ):
        yield server, client


@pytest.fixture(scope="module")
def talking() -> Iterator[LiveServer]:
    """Thinks, speaks, and calls a tool twice."""
    with serving(TALK, HERMES_THINKING) as (server, _):
        yield server


@pytest.fixture(scope="module")
def client(talking: LiveServer) -> Iterator[httpx.Client]:
    """A client of it."""
    with talking.client() as opened:
        yield opened


def test_a_whole_chat_has_its_parts(client: httpx.Client) -> None:
    [choice] = client.post("/v1/chat/completions", json=CHAT).json()["choices"]
    message = choice["message"]
    ids = [call.pop("id") for call in message["tool_calls"]]
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": "}"}'}}
    assert message == {"role": "assistant", "content": "So:", "reasoning_content": "hm", "tool_calls": [call, call]}
    assert choice["finish_reason"] == "tool_calls"
    assert len(set(ids)) == 2


def test_a_streamed_chat_has_the_same_parts_piece_by_piece(client: httpx.Client) -> None:
    with client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as response:
        chunks = list(frames(response))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert deltas[1:6] == [
        *({"reasoning_content": letter} for letter in "hm"),
        *({"content": letter} for letter in "So:"),
    ]
    calls = [delta["tool_calls"] for delta in deltas[6:-1]]
    assert all(len(each) == 1 for each in calls)
    for index in (0, 1):
        first, *rest = [each[0] for each in calls if each[0]["index"] == index]
        assert first["id"].startswith("call_")
        assert (first["type"], first["function"]) == ("function", {"name": "f", "arguments": ""})
        assert [set(each) for each in rest] == [{"index", "function"}] * len('{"a": "}"}')
        assert "".join(each["function"]["arguments"] for each in rest) == '{"a": "}"}'
    assert deltas[-1] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [True, False])
def test_no_log_probability_is_lost_where_text_is_held_back(client: httpx.Client, stream: bool) -> None:
    body = CHAT | {"logprobs": True, "top_logprobs": 0, "stream": stream}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        answers = list(frames(response)) if stream else [json.loads(response.read())]
    found = [item for each in answers for item in each["choices"][0].get("logprobs", {}).get("content", [])]
    shown = bytes(byte for item in found for byte in item["bytes"]).decode().removesuffix("</s>")
    assert shown == TALK


@pytest.mark.parametrize(
    ("how", "content", "reasoning"),
    [
        ("none", "<think>\nhm\n</think>\n\nSo:", None),
        ("auto", "So:", "hm"),
        ("deepseek", "So:", "hm"),
        ("deepseek-legacy", "<think>\nhm\n</think>\n\nSo:", "hm"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_says_where_thinking_goes(
    client: httpx.Client, how: str, content: str, reasoning: str | None, stream: bool
) -> None:
    body = CHAT | {"reasoning_format": how, "stream": stream}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        answers = list(frames(response)) if stream else [json.loads(response.read())]
    parts = [each["choices"][0]["delta" if stream else "message"] for each in answers]
    assert "".join(part.get("content") or "" for part in parts) == content
    assert "".join(part.get("reasoning_content", "") for part in parts) == (reasoning or "")
    assert any("reasoning_content" in part for part in parts) is (reasoning is not None)


@pytest.mark.parametrize("stream", [True, False])
def test_a_limit_ends_a_call_where_it_is(client: httpx.Client, stream: bool) -> None:
    num_tokens = len(TALK.partition('"a": "')[0])
    body = CHAT | {"max_tokens": num_tokens, "stream": stream}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        answers = list(frames(response)) if stream else [json.loads(response.read())]
    calls = [each["choices"][0]["delta" if stream else "message"].get("tool_calls", []) for each in answers]
    assert "".join(call["function"]["arguments"] for each in calls for call in each) == "{"
    assert answers[-1]["choices"][0]["finish_reason"] == "length"


def test_calls_that_nobody_asked_for_are_text(client: httpx.Client) -> None:
    body = {"messages": [USER], "max_tokens": 300, "reasoning_format": "none"}
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        [choice] = client.post("/v1/chat/completions", json=body | fields).json()["choices"]
        assert choice["message"] == {"role": "assistant", "content": TALK}
        assert choice["finish_reason"] == "stop"


def test_each_of_several_choices_is_read_by_itself(client: httpx.Client) -> None:
    with client.stream("POST", "/v1/chat/completions", json=CHAT | {"n": 2, "stream": True}) as response:
        choices = [chunk["choices"][0] for chunk in frames(response)]
    for index in (0, 1):
        deltas = [choice["delta"] for choice in choices if choice["index"] == index]
        assert "".join(delta.get("content") or "" for delta in deltas) == "So:"
        assert {call["index"] for delta in deltas for call in delta.get("tool_calls", [])} == {0, 1}


def test_thinking_that_the_prompt_begins_is_told_from_the_answer() -> None:
    with serving("hm</think>Yes.", THINKING_BEGUN) as (_, client):
        [choice] = client.post("/v1/chat/completions", json={"messages": [USER], "max_tokens": 50}).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
    assert choice["finish_reason"] == "stop"


def test_the_template_shows_tools_to_apply_template(client: httpx.Client) -> None:
    prompt = client.post("/apply-template", json={"messages": [USER], "tools": TOOLS}).json()["prompt"]
    assert prompt.startswith('{"type": "function", "function": {"name": "f"')


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [('{"name": "f", "arguments": {"a": 1}}', "", '{"a": 1}'), ('{"name": "g"} is text', '{"name": "g"} is text', "")],
)
def test_a_model_that_knows_no_tools_calls_them_too(text: str, content: str, arguments: str, stream: bool) -> None:
    with (
        serving(text, PLAIN) as (_, client),
        client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": stream}) as response,
    ):
        answers = list(frames(response)) if stream else [json.loads(response.read())]
    parts = [each["choices"][0]["delta" if stream else "message"] for each in answers]
    assert "".join(part.get("content") or "" for part in parts) == content
    calls = [call for part in parts for call in part.get("tool_calls", [])]
    assert "".join(call["function"]["arguments"] for call in calls) == arguments


def test_a_message_has_blocks(client: httpx.Client) -> None:
    body = {"messages": [USER], "tools": [{"name": "f"}], "max_tokens": 300}
    answer = client.post("/v1/messages", json=body).json()
    uses = answer["content"][2:]
    assert answer["content"][:2] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "So:"},
    ]
    assert [(use["type"], use["name"], use["input"]) for use in uses] == [("tool_use", "f", {"a": "}"})] * 2
    assert len({use["id"] for use in uses}) == 2
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)


def test_a_streamed_message_has_blocks_in_their_order(client: httpx.Client) -> None:
    body = {"messages": [USER], "tools": [{"name": "f"}], "max_tokens": 300, "stream": True}
    with client.stream("POST", "/v1/messages", json=body) as response:
        events = list(named_events(response))
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert blocks[2].items() >= {"name": "f", "input": {}}.items()
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3]
    deltas = [(event["index"], event["delta"]) for event in events if event["type"] == "content_block_delta"]
    assert [delta["type"] for index, delta in deltas if index == 0] == [*["thinking_delta"] * 2, "signature_delta"]
    assert "".join(delta["partial_json"] for index, delta in deltas if index == 3) == '{"a": "}"}'
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_an_empty_message_has_a_block_of_text() -> None:
    with serving("", HERMES) as (_, client):
        body = {"messages": [USER], "tools": [{"name": "f"}], "max_tokens": 50}
        assert client.post("/v1/messages", json=body).json()["content"] == [{"type": "text", "text": ""}]
        with client.stream("POST", "/v1/messages", json=body | {"stream": True}) as response:
            kinds = [event["type"] for event in named_events(response)]
    assert kinds[:4] == ["message_start", "ping", "content_block_start", "content_block_stop"]


def anthropic_client(server: LiveServer) -> anthropic.Anthropic:
    """Return Anthropic's own client."""
    return anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0, timeout=TIMEOUT_S)


def test_anthropics_client_calls_a_tool_and_gives_the_result_back(talking: LiveServer) -> None:
    with anthropic_client(talking) as client:
        ask: dict[str, Any] = {"model": "fake", "max_tokens": 300, "tools": [{"name": "f", "input_schema": {}}]}
        with client.messages.stream(**ask, messages=[{"role": "user", "content": "a"}]) as stream:
            message = stream.get_final_message()
        assert message.stop_reason == "tool_use"
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        use = message.content[2]
        assert use.type == "tool_use"
        assert use.input == {"a": "}"}
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "7"}
        thread: list[Any] = [USER, {"role": "assistant", "content": message.content[2:3]}]
        contents: list[Any] = [[result], [{"type": "text", "text": "so"}, result]]
        counts = [
            client.messages.count_tokens(model="fake", messages=[*thread, {"role": "user", "content": content}])
            for content in contents
        ]
        assert counts[1].input_tokens > counts[0].input_tokens


def test_a_response_has_items(client: httpx.Client) -> None:
    tool = {"type": "function", "name": "f", "parameters": {}}
    body = {"input": "a", "tools": [tool], "max_output_tokens": 300, "reasoning": {"effort": "low"}}
    answer = client.post("/v1/responses", json=body).json()
    reasoning, message, *calls = answer["output"]
    assert (reasoning["type"], reasoning["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "hm"}])
    assert (message["type"], message["content"][0]["text"]) == ("message", "So:")
    assert [(call["type"], call["name"], call["arguments"]) for call in calls] == [
        ("function_call", "f", '{"a": "}"}')
    ] * 2
    assert {item["status"] for item in answer["output"]} == {"completed"}
    assert (answer["tools"], answer["tool_choice"], answer["reasoning"]["effort"]) == ([tool], "auto", "low")


def test_a_streamed_response_tells_of_every_item(client: httpx.Client) -> None:
    body = {"input": "a", "tools": [{"type": "function", "name": "f"}], "max_output_tokens": 300, "stream": True}
    with client.stream("POST", "/v1/responses", json=body) as response:
        events = list(named_events(response))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    of_last = [event["type"] for event in events if event.get("output_index") == 3]
    assert of_last == [
        "response.output_item.added",
        *["response.function_call_arguments.delta"] * len('{"a": "}"}'),
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    of_first = [event["type"] for event in events if event.get("output_index") == 0]
    assert of_first == [
        "response.output_item.added",
        "response.content_part.added",
        *["response.reasoning_text.delta"] * 2,
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    assert len({item["id"] for item in done}) == 4


def openai_client(server: LiveServer) -> openai.OpenAI:
    """Return OpenAI's own client."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S)


def test_openais_client_calls_a_tool_and_gives_the_result_back(talking: LiveServer) -> None:
    with openai_client(talking) as client:
        messages: list[Any] = [USER]
        answer = client.chat.completions.create(model="fake", messages=messages, tools=TOOLS, max_tokens=300)
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls is not None
        call = message.tool_calls[0]
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"a": "}"}
        given = {"role": "tool", "tool_call_id": call.id, "content": "7"}
        calling = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
        again = client.chat.completions.create(model="fake", messages=[USER, calling, given], max_tokens=5)  # type: ignore[list-item]
        assert again.choices[0].finish_reason == "length"


def test_openais_client_joins_a_stream_of_calls(talking: LiveServer) -> None:
    with (
        openai_client(talking) as client,
        client.chat.completions.stream(model="fake", messages=[USER], tools=TOOLS, max_tokens=300) as stream,  # type: ignore[list-item]
    ):
        message = stream.get_final_completion().choices[0].message
    assert message.content == "So:"
    assert [call.function.arguments for call in message.tool_calls or []] == ['{"a": "}"}'] * 2


@pytest.mark.parametrize("stream", [True, False])
def test_openais_client_reads_a_response_and_sends_its_items_back(talking: LiveServer, stream: bool) -> None:
    tool: Any = {"type": "function", "name": "f", "parameters": {}, "strict": False}
    with openai_client(talking) as client:
        ask: Callable[..., Any] = client.responses.create
        answer = ask(model="fake", input="a", tools=[tool], max_output_tokens=300, stream=stream)
        response: Response = list(answer)[-1].response if stream else answer
        Response.model_validate(response.model_dump(), strict=True)
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
        call = response.output[2]
        assert call.type == "function_call"
        given = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
        again = ask(model="fake", input=[USER, call.model_dump(), given], max_output_tokens=5)
        assert again.status == "incomplete"
