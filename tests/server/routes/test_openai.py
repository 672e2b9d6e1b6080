"""OpenAI's routes over real HTTP: shapes, streams, usage, several choices."""

import json

import httpx
import pytest

from tests.server.fakes import BODIES, FakeExecutor, alphabet, current_key, fake_engine, says
from tests.server.live import LiveServer, frames

OPENAI_ROUTES = ["/v1/completions", "/v1/chat/completions", "/chat/completions"]
CHAT = {"messages": [{"role": "user", "content": "abc"}]}


def expected(server: LiveServer, length: int) -> str:
    """What the model says under the server's current scales."""
    return alphabet(current_key(server.engine), length)


def test_a_text_completion_has_llama_servers_shape(client: httpx.Client, server: LiveServer) -> None:
    result = client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 3, "model": "gpt-x"}).json()
    assert list(result) == [
        *("choices", "created", "model", "system_fingerprint", "object", "usage", "id", "timings"),
    ]
    assert result["choices"] == [{"text": expected(server, 3), "index": 0, "logprobs": None, "finish_reason": "length"}]
    assert (result["model"], result["object"]) == ("fake", "text_completion")
    assert result["id"].startswith("chatcmpl-")
    assert result["system_fingerprint"].startswith("b")
    assert result["usage"] == {
        "completion_tokens": 3,
        "prompt_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_chat_completion_has_llama_servers_shape(client: httpx.Client, server: LiveServer) -> None:
    result = client.post("/v1/chat/completions", json=CHAT | {"max_completion_tokens": 3}).json()
    assert list(result) == [
        *("choices", "created", "model", "system_fingerprint", "object", "usage", "id", "timings"),
    ]
    message = {"role": "assistant", "content": expected(server, 3)}
    assert result["choices"] == [{"finish_reason": "length", "index": 0, "message": message}]
    assert result["object"] == "chat.completion"
    assert result["usage"]["prompt_tokens"] == len("<s><user>abc\n<assistant>") - 2


def test_a_chat_stream_is_role_tokens_reason_done(client: httpx.Client, server: LiveServer) -> None:
    with client.stream("POST", "/v1/chat/completions", json=CHAT | {"max_tokens": 3, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [choice["delta"] for choice in choices]
    contents = [{"content": character} for character in expected(server, 3)]
    assert deltas == [{"role": "assistant", "content": None}, *contents, {}]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, None, "length"]
    assert list(chunks[0]) == ["choices", "created", "id", "model", "system_fingerprint", "object"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    assert ["timings" in chunk for chunk in chunks] == [False, False, False, False, True]


def test_a_text_stream_is_tokens_reason_done(client: httpx.Client, server: LiveServer) -> None:
    body = {"prompt": "ab", "max_tokens": 3, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert list(chunks[0]) == ["choices", "created", "model", "system_fingerprint", "object", "id"]
    choices = [chunk["choices"] for chunk in chunks]
    assert [choice["text"] for [choice] in choices] == [*expected(server, 3), ""]
    assert [choice["finish_reason"] for [choice] in choices] == [None, None, None, "length"]


@pytest.mark.parametrize("path", OPENAI_ROUTES)
def test_usage_is_a_last_chunk_without_choices_where_asked_for(client: httpx.Client, path: str) -> None:
    body = BODIES[path] | {"max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", path, json=body) as response:
        *others, last = frames(response)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    assert "timings" in last
    assert all(chunk["choices"] and "usage" not in chunk for chunk in others)


def test_usage_is_in_every_chunk_where_asked_for(client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "ab", "max_tokens": 3, "stream": True, "stream_options": options}
    with client.stream("POST", "/v1/completions", json=body) as response:
        counts = [frame["usage"]["completion_tokens"] for frame in frames(response)]
    assert counts == [1, 2, 3, 3, 3]


@pytest.mark.parametrize("path", OPENAI_ROUTES)
def test_choices_are_numbered_and_their_usage_added_up(client: httpx.Client, server: LiveServer, path: str) -> None:
    result = client.post(path, json=BODIES[path] | {"max_tokens": 2, "n": 3}).json()
    assert [choice["index"] for choice in result["choices"]] == [0, 1, 2]
    one = client.post(path, json=BODIES[path] | {"max_tokens": 2}).json()
    assert result["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert result["usage"]["completion_tokens"] == 6


def test_choices_are_streamed_side_by_side(client: httpx.Client, server: LiveServer) -> None:
    body = CHAT | {"max_tokens": 3, "n": 3, "stream": True}
    texts = {0: "", 1: "", 2: ""}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        for frame in frames(response):
            [choice] = frame["choices"]
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert set(texts.values()) == {expected(server, 3)}


def test_several_prompts_become_choices(client: httpx.Client) -> None:
    result = client.post("/v1/completions", json={"prompt": ["a", "bcd"], "max_tokens": 1}).json()
    assert [choice["index"] for choice in result["choices"]] == [0, 1]
    assert result["usage"]["prompt_tokens"] == 2 + 4


def test_logprobs_of_a_chat_have_the_alternatives_asked_for(client: httpx.Client) -> None:
    body = CHAT | {"max_tokens": 2, "logprobs": True, "top_logprobs": 2}
    content = client.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
    assert [len(item["top_logprobs"]) for item in content] == [2, 2]
    streamed = []
    with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
        for frame in frames(response):
            streamed += frame["choices"][0].get("logprobs", {}).get("content", [])
    assert streamed == content


def test_logprobs_of_a_text_have_the_same_form(client: httpx.Client) -> None:
    result = client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2, "logprobs": 1}).json()
    assert [len(item["top_logprobs"]) for item in result["choices"][0]["logprobs"]["content"]] == [1, 1]


def test_an_adapters_name_as_model_is_the_model_of_the_answer(client: httpx.Client) -> None:
    result = client.post("/v1/completions", json={"prompt": "ab", "model": "adapter1"}).json()
    assert result["model"] == "adapter1"


def test_an_answer_that_ends_itself_says_stop() -> None:
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(says("hi")), settings)) as server,
        server.client() as client,
    ):
        result = client.post("/v1/chat/completions", json=CHAT).json()
        assert result["choices"][0] == {
            "finish_reason": "stop",
            "index": 0,
            "message": {"role": "assistant", "content": "hi"},
        }
        assert result["usage"]["completion_tokens"] == 3
        with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
            texts = [frame["choices"][0]["text"] for frame in frames(response)]
        assert texts == ["h", "i", ""]


@pytest.mark.parametrize("path", OPENAI_ROUTES)
@pytest.mark.parametrize("field", [{"response_fields": ["content"]}, {"return_tokens": True}])
def test_fields_of_the_native_form_are_refused(client: httpx.Client, path: str, field: dict[str, object]) -> None:
    response = client.post(path, json=BODIES[path] | field)
    assert response.status_code == 400
    assert (
        response.json()["error"]["message"]
        == f"Field '{next(iter(field))}': is supported by /completion, and elsewhere only with verbose"
    )
