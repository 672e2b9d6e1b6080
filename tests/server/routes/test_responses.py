"""OpenAI's Responses API over real HTTP: shapes, events, what is refused, and the official client."""

import json
from collections.abc import Iterator
from typing import Any, cast

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseTextDeltaEvent

from server.errors import FieldInvalid
from server.responses.schema import ResponsesBody, responses_chat
from server.schemas import parse
from tests.server.fakes import FakeExecutor, Turnstile, alphabet, current_key, fake_engine, key_of, says
from tests.server.live import LiveServer, named_events, until

ASK = {"input": "abc", "max_output_tokens": 3}


def expected(server: LiveServer, length: int) -> str:
    """What the model says under the server's current scales."""
    return alphabet(current_key(server.engine), length)


@pytest.fixture(scope="module")
def openai_client(server: LiveServer) -> Iterator[openai.OpenAI]:
    """A client that never tries again, so that errors are seen."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=20) as client:
        yield client


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
def test_a_text_is_answered(client: httpx.Client, server: LiveServer, path: str) -> None:
    body = ASK | {"instructions": "Be brief.", "metadata": {"trace": "7"}, "temperature": 0.5, "top_p": 0.25}
    body["cache_prompt"] = False
    result = client.post(path, json=body).json()
    assert result["id"].startswith("resp_")
    [message] = result["output"]
    assert message.pop("id").startswith("msg_")
    text = {"type": "output_text", "text": expected(server, 3), "annotations": [], "logprobs": []}
    assert message == {"type": "message", "status": "incomplete", "role": "assistant", "content": [text]}
    assert (result["object"], result["status"], result["model"]) == ("response", "incomplete", "fake")
    assert result["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (result["instructions"], result["metadata"]) == ("Be brief.", {"trace": "7"})
    assert (result["temperature"], result["top_p"], result["max_output_tokens"]) == (0.5, 0.25, 3)
    assert (result["store"], result["previous_response_id"], result["error"]) == (False, None, None)
    num_prompt = len("<s><system>Be brief.\n<user>abc\n<assistant>") - 2
    assert result["usage"] == {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_prompt + 3,
    }


def test_items_become_messages_of_the_template() -> None:
    items = [
        {"role": "developer", "content": "a"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "c", "annotations": []}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "d"}, {"type": "input_text", "text": "e"}]},
    ]
    body = parse(ResponsesBody, {"input": items, "instructions": "i"})
    assert responses_chat(body).messages == [
        {"role": "system", "content": "i"},
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d\ne"},
    ]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "input"),
        (5, "input"),
        ([], "input"),
        (["a"], "input[0]"),
        ([{"content": "a"}], "input[0].role"),
        ([{"role": "tool", "content": "a"}], "input[0].role"),
        ([{"role": ["user"], "content": "a"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"type": "function_call_output", "output": "a"}], "input[0].call_id"),
        ([{"type": "function_call_output", "call_id": "c"}], "input[0].output"),
        ([{"type": "function_call", "call_id": "c", "name": "f"}], "input[0].arguments"),
        ([{"type": "computer_call", "call_id": "c"}], "input[0].type"),
        ([{"type": "item_reference", "id": "msg_1"}], "input[0].type"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": ["input_text"]}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
    ],
)
def test_input_that_is_not_text_is_refused_by_its_place(value: object, field: str) -> None:
    with pytest.raises(FieldInvalid) as error:
        responses_chat(parse(ResponsesBody, {"input": value}))
    assert error.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("background", True),
        ("conversation", "conv_1"),
        ("include", ["message.output_text.logprobs"]),
        ("metadata", {"trace": 7}),
        ("n", 2),
        ("previous_response_id", "resp_1"),
        ("prompt", {"id": "pmpt_1"}),
        ("reasoning", {"effort": 5}),
        ("reasoning", {"summary": "long"}),
        ("response_fields", ["output"]),
        ("store", True),
        ("stream_options", {"include_obfuscation": True}),
        ("text", {"format": {"type": "grammar"}}),
        ("verbose", True),
        ("tools", [{"type": 5}]),
        ("tools", [5]),
        ("tool_choice", "required"),
        ("top_logprobs", 2),
        ("truncation", "auto"),
        ("lora", [{"id": 7}]),
        ("max_output_tokens", "3"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_is_not_honoured_is_refused_by_name(client: httpx.Client, field: str, value: object, stream: bool) -> None:
    response = client.post("/v1/responses", json={"input": "abc", "stream": stream, field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert field in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "background": False, "truncation": "disabled", "text": {"format": {"type": "text"}}},
        {"tools": [], "tool_choice": "auto", "include": [], "previous_response_id": None, "metadata": None},
    ],
)
def test_values_that_ask_for_nothing_are_accepted(client: httpx.Client, fields: dict[str, object]) -> None:
    assert client.post("/v1/responses", json=ASK | fields).status_code == 200


def test_a_coding_agent_is_answered_though_it_offers_tools_that_openai_runs(client: httpx.Client) -> None:
    """What Codex sends to a server that it does not know."""
    function = {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False}
    body: dict[str, Any] = {
        "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
            {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "d"},
        ],
        "tools": [function, {"type": "web_search"}, {"type": "custom", "name": "apply_patch", "format": {}}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "detailed"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "prompt_cache_key": "x",
        "max_output_tokens": 3,
    }
    assert client.post("/v1/responses/input_tokens", json=body).status_code == 200
    [tool] = cast(list[dict[str, Any]], responses_chat(parse(ResponsesBody, body)).tools)
    assert tool["function"]["name"] == "shell"
    assert client.post("/v1/responses", json=body | {"tools": body["tools"][1:]}).status_code == 200
    only_hosted = body | {"tools": [{"type": "web_search"}], "tool_choice": "required"}
    assert "tool_choice" in client.post("/v1/responses", json=only_hosted).json()["error"]["message"]


def test_an_unknown_model_has_openais_code(client: httpx.Client) -> None:
    response = client.post("/v1/responses", json=ASK | {"model": "fake:nobody"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_a_stream_has_every_event_once_and_a_delta_for_each_token(client: httpx.Client, server: LiveServer) -> None:
    with client.stream("POST", "/v1/responses", json=ASK | {"stream": True}) as response:
        events = list(named_events(response))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = expected(server, 3)
    assert [event["delta"] for event in events[4:7]] == list(text)
    assert events[7]["text"] == text
    assert events[8]["part"] == events[9]["item"]["content"][0] == events[10]["response"]["output"][0]["content"][0]
    assert len({event["item_id"] for event in events[3:9]} | {events[9]["item"]["id"]}) == 1
    assert len({event["response"]["id"] for event in (events[0], events[1], events[-1])}) == 1
    created, last = events[0]["response"], events[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert (last["status"], last["usage"]["output_tokens"]) == ("incomplete", 3)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_ends_itself_is_completed(stream: bool) -> None:
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(says('"é"\n😀')), settings)) as server,
        server.client() as client,
    ):
        body = {"input": "a", "max_output_tokens": 50, "stream": stream}
        with client.stream("POST", "/v1/responses", json=body) as response:
            result: dict[str, Any]
            if stream:
                *others, last = named_events(response)
                deltas = [event["delta"] for event in others if event["type"] == "response.output_text.delta"]
                assert deltas == ['"', "é", '"', "\n", "😀"]
                assert last["type"] == "response.completed"
                result = last["response"]
            else:
                result = json.loads(response.read())
    assert (result["status"], result["incomplete_details"]) == ("completed", None)
    assert result["completed_at"] >= result["created_at"]
    assert result["output"][0]["status"] == "completed"
    assert result["output"][0]["content"][0]["text"] == '"é"\n😀'
    assert result["usage"]["output_tokens"] == 10


def test_a_stream_that_fails_ends_with_what_there_was_and_the_error() -> None:
    turnstile = Turnstile()
    executor = FakeExecutor(says("hello"), turnstile)
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as client:
        turnstile.let(2)
        with client.stream("POST", "/v1/responses", json={"input": "a", "stream": True}) as response:
            events = named_events(response)
            assert [next(events)["type"] for _ in range(6)][-1] == "response.output_text.delta"
            executor.error = RuntimeError("the card is gone")
            turnstile.open()
            [last] = events
        assert (last["type"], last["sequence_number"]) == ("response.failed", 6)
        failed = last["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert "the card is gone" in failed["error"]["message"]
        assert failed["output"][0]["content"][0]["text"] == "he"
        until(lambda: server.is_idle)
        executor.error = RuntimeError("the card is gone")
        whole = client.post("/v1/responses", json={"input": "a"})
        assert (whole.status_code, whole.json()["error"]["type"]) == (500, "server_error")


def test_a_client_that_leaves_frees_its_slot() -> None:
    turnstile = Turnstile()
    executor = FakeExecutor(turnstile=turnstile)
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as client:
        turnstile.let(1)
        with client.stream("POST", "/v1/responses", json={"input": "a", "stream": True}) as response:
            events = named_events(response)
            for _ in range(5):
                next(events)
            turnstile.wait_for_step(2)
        # The second step stands still: the disconnect alone frees the slot.
        until(lambda: server.is_idle)
        turnstile.open()


def test_the_official_client_gets_an_answer(openai_client: openai.OpenAI, server: LiveServer) -> None:
    answer = openai_client.responses.create(model="fake", input="hi", instructions="x", max_output_tokens=4)
    assert answer.output_text == expected(server, 4)
    assert answer.usage is not None
    assert answer.usage.output_tokens == 4
    Response.model_validate(answer.model_dump(), strict=True)


def test_the_official_client_reads_the_stream(openai_client: openai.OpenAI, server: LiveServer) -> None:
    stream = openai_client.responses.create(
        model="fake", input=[{"role": "user", "content": "hi"}], max_output_tokens=4, stream=True
    )
    events = list(stream)
    assert [event.delta for event in events if isinstance(event, ResponseTextDeltaEvent)] == list(expected(server, 4))
    assert events[-1].type == "response.completed"
    assert events[-1].response.status == "incomplete"
    assert events[-1].response.output_text == expected(server, 4)


def test_adapters_are_chosen_by_list_and_by_name(openai_client: openai.OpenAI, server: LiveServer) -> None:
    lora = [{"id": 0, "scale": 0.5}, {"id": 1, "scale": -0.25}]
    mixed = openai_client.responses.create(model="fake", input="hi", max_output_tokens=4, extra_body={"lora": lora})
    assert mixed.output_text == alphabet(key_of(server.engine, lora, None), 4)
    named = openai_client.responses.create(model="adapter1", input="hi", max_output_tokens=4)
    assert named.output_text == alphabet(key_of(server.engine, [{"id": 1, "scale": 1}], None), 4)
    assert named.model == "adapter1"


def test_refusals_are_the_clients_own_errors(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        openai_client.responses.create(model="fake", input="hi", previous_response_id="resp_1")


def test_streams_tell_of_progress_and_timings_where_they_are_asked_to(client: httpx.Client) -> None:
    body = ASK | {"stream": True, "timings_per_token": True, "return_progress": True, "cache_prompt": False}
    events = list(named_events(client.post("/v1/responses", json=body)))
    progress = [event for event in events if "prompt_progress" in event]
    assert {event["type"] for event in progress} == {"response.in_progress"}
    assert progress[-1]["prompt_progress"]["processed"] == progress[-1]["prompt_progress"]["total"] > 0
    timed = [event for event in events if "timings" in event]
    assert [event["type"] for event in timed] == [
        *["response.in_progress"] * len(progress),
        *["response.output_text.delta"] * 3,
        "response.completed",
    ]
    assert [event["timings"]["predicted_n"] for event in timed] == [0] * len(progress) + [1, 2, 3, 3]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_whole_response_has_timings_where_they_are_asked_for(client: httpx.Client) -> None:
    assert client.post("/v1/responses", json=ASK | {"timings_per_token": True}).json()["timings"]["predicted_n"] == 3
    assert "timings" not in client.post("/v1/responses", json=ASK).json()
