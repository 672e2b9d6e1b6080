"""Anthropic's Messages API over real HTTP: shapes, events, errors in its form, and the official client."""

import json
import logging
from collections.abc import Iterator
from typing import cast

import anthropic
import httpx
import pytest

from server.errors import FieldInvalid
from server.messages.schema import MessagesBody, messages_chat
from server.schemas import parse
from tests.server.fakes import (
    FakeExecutor,
    Turnstile,
    alphabet,
    current_key,
    fake_engine,
    fake_settings,
    key_of,
    says,
)
from tests.server.live import LiveServer, named_events, until

MESSAGES = [{"role": "user", "content": "abc"}]
ASK = {"model": "fake", "max_tokens": 3, "messages": MESSAGES}
_FORGET = {"type": "clear_thinking_20251015"}
PATHS = ["/v1/messages", "/v1/messages/count_tokens"]


def expected(server: LiveServer, length: int) -> str:
    """What the model says under the server's current scales."""
    return alphabet(current_key(server.engine), length)


def assert_refused(response: httpx.Response, status: int, kind: str, word: str) -> None:
    """Fail where a response is no error in Anthropic's form."""
    assert response.status_code == status
    body = response.json()
    assert list(body) == ["type", "error"]
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert word in body["error"]["message"]


@pytest.fixture(scope="module")
def anthropic_client(server: LiveServer) -> Iterator[anthropic.Anthropic]:
    """A client that never tries again, so that errors are seen."""
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0, timeout=20) as client:
        yield client


def test_a_conversation_is_answered(client: httpx.Client, server: LiveServer) -> None:
    body = ASK | {"system": "Be brief.", "metadata": {"user_id": "7"}, "top_k": 5, "top_p": 0.5, "temperature": 0.5}
    result = client.post("/v1/messages", json=body, headers={"anthropic-version": "2023-06-01"}).json()
    assert result.pop("id").startswith("msg_")
    assert result == {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": expected(server, 3)}],
        "model": "fake",
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len("<s><system>Be brief.\n<user>abc\n<assistant>") - 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 3,
        },
    }


def test_blocks_become_messages_of_the_template() -> None:
    text = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    body = {
        "max_tokens": 1,
        "system": [text, {"type": "text", "text": "b"}],
        "messages": [{"role": "user", "content": [text]}, {"role": "assistant", "content": "c"}],
    }
    assert messages_chat(parse(MessagesBody, body)).messages == [
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "c"},
    ]


def test_an_answer_that_was_begun_is_continued(client: httpx.Client) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "so"}]
    counted = [client.post(PATHS[1], json={"messages": messages}).json() for messages in (MESSAGES, begun)]
    assert counted[1]["input_tokens"] == counted[0]["input_tokens"] + len("so")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": None}, "messages"),
        ({"messages": ["a"]}, "messages[0]"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]}, "messages[0].content[0].thinking"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].name"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": 5}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"output_config": {"effort": 5}}, "output_config.effort"),
        ({"output_config": {"volume": 5}}, "output_config.volume"),
        ({"context_management": {"edits": 5}}, "context_management.edits"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
        ({"context_management": {"edits": [_FORGET | {"keep": "some"}]}}, "context_management.edits[0].keep"),
        ({"lora": [{"id": 7}]}, "lora[0].id"),
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_what_is_not_honoured_is_refused_by_name(
    client: httpx.Client, path: str, fields: dict[str, object], field: str
) -> None:
    assert_refused(client.post(path, json=ASK | fields), 400, "invalid_request_error", field)


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"max_tokens": 0}, "max_tokens"), ({"max_tokens": None}, "max_tokens"), ({"n": 2}, "n"), ({"top_p": 2}, "top_p")],
)
def test_numbers_out_of_bounds_are_refused(client: httpx.Client, fields: dict[str, object], field: str) -> None:
    assert_refused(client.post("/v1/messages", json=ASK | fields), 400, "invalid_request_error", f"'{field}'")


def test_a_block_without_its_text_is_refused() -> None:
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "text"}]}]}
    with pytest.raises(FieldInvalid, match=r"messages\[0\]\.content\[0\]\.text"):
        messages_chat(parse(MessagesBody, body))


def test_only_fields_that_nobody_knows_are_in_the_log(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "server.schemas")
    body = ASK | {"stop_sequences": ["0"], "system": "x", "metadata": {}, "tools": [], "thinking": None, "sytem": "x"}
    assert client.post("/v1/messages", json=body).status_code == 200
    [message] = [record.message for record in caplog.records if "unknown" in record.message]
    assert "'sytem'" in message


def test_a_coding_agent_is_answered(client: httpx.Client) -> None:
    """What Claude Code sends beside the conversation."""
    body = {
        "model": "fake",
        "max_tokens": 3,
        "stream": False,
        "temperature": 1,
        "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]}
        ],
        "tools": [
            {"name": "Bash", "description": "c", "input_schema": {"type": "object"}, "eager_input_streaming": True}
        ],
        "metadata": {"user_id": "d"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [_FORGET | {"keep": "all"}]},
        "output_config": {"effort": "high"},
    }
    counted = {name: value for name, value in body.items() if name not in ("max_tokens", "stream", "temperature")}
    assert client.post("/v1/messages/count_tokens?beta=true", json=counted).status_code == 200
    del body["tools"]  # which are told in words here, too many for the context
    assert client.post("/v1/messages?beta=true", json=body).status_code == 200
    assert messages_chat(parse(MessagesBody, body)).reasoning_effort == "high"


@pytest.mark.parametrize(
    ("edit", "kept"),
    [
        ({"keep": "all"}, ["x", "y", "z"]),
        ({"keep": {"type": "thinking_turns", "value": 2}}, ["y", "z"]),
        ({"keep": {"type": "thinking_turns", "value": 9}}, ["x", "y", "z"]),
        ({}, ["z"]),
    ],
)
def test_thoughts_of_earlier_turns_are_forgotten_where_that_is_asked_for(
    edit: dict[str, object], kept: list[str]
) -> None:
    messages: list[object] = []
    for thought in "xyz":
        messages.append({"role": "user", "content": "a"})
        blocks = [{"type": "thinking", "thinking": thought, "signature": ""}, {"type": "text", "text": "b"}]
        messages.append({"role": "assistant", "content": blocks})
    body = {"max_tokens": 1, "messages": messages, "context_management": {"edits": [_FORGET | edit]}}
    seen = cast(list[dict[str, str]], messages_chat(parse(MessagesBody, body)).messages)
    assert [message["reasoning_content"] for message in seen if "reasoning_content" in message] == kept
    assert [message["content"] for message in seen] == ["a", "b"] * 3


def test_thinking_may_be_switched_off(client: httpx.Client) -> None:
    assert client.post("/v1/messages", json=ASK | {"thinking": {"type": "disabled"}, "tools": []}).status_code == 200


def test_other_errors_have_the_form_of_the_api(client: httpx.Client) -> None:
    assert_refused(client.post("/v1/messages", content=b"{"), 400, "invalid_request_error", "JSON")
    assert_refused(client.get("/v1/messages"), 404, "not_found_error", "File Not Found")
    assert_refused(client.post("/v1/messages/batches", json={}), 404, "not_found_error", "File Not Found")
    assert_refused(client.post("/v1/messages", json=ASK | {"model": "fake:nobody"}), 404, "not_found_error", "nobody")
    too_long = {"messages": [{"role": "user", "content": "x" * 300}]}
    assert_refused(client.post("/v1/messages", json=ASK | too_long), 400, "invalid_request_error", "context size")


def test_the_api_key_is_that_of_the_server() -> None:
    settings = fake_settings().model_copy(update={"api_key": "key"})
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(), settings), settings) as server,
        server.client() as client,
    ):
        assert_refused(client.post("/v1/messages", json=ASK), 401, "authentication_error", "Invalid API Key")
        assert client.post("/v1/messages", json=ASK, headers={"x-api-key": "key"}).status_code == 200


def test_a_model_without_a_chat_template_is_no_error_to_try_again() -> None:
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(), settings, chat_template=None)) as server,
        server.client() as client,
    ):
        assert_refused(client.post("/v1/messages", json=ASK), 400, "invalid_request_error", "chat template")


def test_a_stream_has_every_event_once_and_a_delta_for_each_token(client: httpx.Client, server: LiveServer) -> None:
    with client.stream("POST", "/v1/messages", json=ASK | {"stream": True}) as response:
        events = list(named_events(response))
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": letter}}
        for letter in expected(server, 3)
    ]
    start, usage = events[0]["message"], events[-2]["usage"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    prompts = [counts["input_tokens"] + counts["cache_read_input_tokens"] for counts in (start["usage"], usage)]
    assert (prompts, usage["output_tokens"]) == ([len("<s><user>abc\n<assistant>") - 2] * 2, 3)
    assert events[1:] == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("stop", "text", "reason", "sequence"),
    [
        (["lo w", "zz"], "hel", "stop_sequence", "lo w"),
        (["absent"], 'hello "wörld"', "end_turn", None),
        ([], 'hello "wörld"', "end_turn", None),
    ],
)
def test_why_an_answer_ended_is_told(
    stop: list[str], text: str, reason: str, sequence: str | None, stream: bool
) -> None:
    executor = FakeExecutor(says("hello world" if sequence else text))
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as client:
        body = ASK | {"max_tokens": 50, "stop_sequences": stop, "stream": stream}
        with client.stream("POST", "/v1/messages", json=body) as response:
            if stream:
                events = list(named_events(response))
                shown = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
                outcome = events[-2]["delta"]
            else:
                outcome = json.loads(response.read())
                shown = outcome["content"][0]["text"]
    assert (shown, outcome["stop_reason"], outcome["stop_sequence"]) == (text, reason, sequence)


def test_a_stream_that_fails_ends_with_an_error_event() -> None:
    turnstile = Turnstile()
    executor = FakeExecutor(turnstile=turnstile)
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as client:
        turnstile.let(1)
        with client.stream("POST", "/v1/messages", json=ASK | {"stream": True}) as response:
            events = named_events(response)
            assert [next(events)["type"] for _ in range(4)][-1] == "content_block_delta"
            executor.error = RuntimeError("the card is gone")
            turnstile.open()
            [last] = events
        assert (last["type"], last["error"]["type"]) == ("error", "api_error")
        assert "the card is gone" in last["error"]["message"]
        until(lambda: server.is_idle)
        executor.error = RuntimeError("the card is gone")
        assert_refused(client.post("/v1/messages", json=ASK), 500, "api_error", "the card is gone")


def test_a_client_that_leaves_frees_its_slot() -> None:
    turnstile = Turnstile()
    executor = FakeExecutor(turnstile=turnstile)
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as client:
        turnstile.let(1)
        with client.stream("POST", "/v1/messages", json=ASK | {"stream": True}) as response:
            events = named_events(response)
            for _ in range(4):
                next(events)
            turnstile.wait_for_step(2)
        # The second step stands still: the disconnect alone frees the slot.
        until(lambda: server.is_idle)
        turnstile.open()


def test_cached_tokens_are_counted_apart() -> None:
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(), settings)) as server,
        server.client() as client,
    ):
        body = ASK | {"messages": [{"role": "user", "content": "x" * 40}]}
        first, second = (client.post("/v1/messages", json=body).json()["usage"] for _ in range(2))
        counted = client.post("/v1/messages/count_tokens", json=body).json()
        assert first["cache_read_input_tokens"] == 0
        assert second["cache_read_input_tokens"] >= 32
        assert counted == {"input_tokens": first["input_tokens"]}
        assert second["input_tokens"] + second["cache_read_input_tokens"] == first["input_tokens"]


def test_the_official_client_gets_an_answer(anthropic_client: anthropic.Anthropic, server: LiveServer) -> None:
    answer = anthropic_client.messages.create(
        model="fake", max_tokens=4, system="x", messages=[{"role": "user", "content": "hi"}], stop_sequences=["0"]
    )
    [block] = answer.content
    assert block.type == "text"
    assert (block.text, answer.stop_reason, answer.usage.output_tokens) == (expected(server, 4), "max_tokens", 4)


def test_the_official_client_reads_the_stream(anthropic_client: anthropic.Anthropic, server: LiveServer) -> None:
    with anthropic_client.messages.stream(
        model="fake", max_tokens=4, messages=[{"role": "user", "content": "hi"}]
    ) as stream:
        assert list(stream.text_stream) == list(expected(server, 4))
        message = stream.get_final_message()
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 4)


def test_the_official_client_counts_tokens(anthropic_client: anthropic.Anthropic) -> None:
    counted = anthropic_client.messages.count_tokens(model="fake", messages=[{"role": "user", "content": "hi"}])
    assert counted.input_tokens == len("<s><user>hi\n<assistant>") - 2


def test_adapters_are_chosen_by_list_and_by_name(anthropic_client: anthropic.Anthropic, server: LiveServer) -> None:
    lora = [{"id": 0, "scale": 0.5}, {"id": 1, "scale": -0.25}]
    ask: list[anthropic.types.MessageParam] = [{"role": "user", "content": "hi"}]
    mixed = anthropic_client.messages.create(model="fake", max_tokens=4, messages=ask, extra_body={"lora": lora})
    named = anthropic_client.messages.create(model="adapter1", max_tokens=4, messages=ask)
    texts = [block.text for answer in (mixed, named) for block in answer.content if block.type == "text"]
    keys = [key_of(server.engine, lora, None), key_of(server.engine, [{"id": 1, "scale": 1}], None)]
    assert texts == [alphabet(key, 4) for key in keys]
    assert named.model == "adapter1"


def test_refusals_are_the_clients_own_errors(anthropic_client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        anthropic_client.messages.create(
            model="fake",
            max_tokens=4,
            messages=[{"role": "user", "content": "hi"}],
            tools=[{"name": "", "input_schema": {"type": "object"}}],
        )
