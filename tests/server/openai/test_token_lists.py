"""OpenAI's lists of log-probabilities of a text, and those of an echoed prompt, over HTTP."""

from typing import Any

import httpx
import pytest

from scheduler.batch import BLOCK_SIZE
from tests.server.fakes import BOS, EOS, N_CTX, FakeExecutor, alphabet, current_key, fake_engine, fake_settings, says
from tests.server.live import LiveServer, frames

PATH = "/v1/completions"
LISTS = ["tokens", "token_logprobs", "top_logprobs", "text_offset"]


def complete(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def streamed(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """A stream's choice 0, put together."""
    text, lists = "", {}  # type: str, dict[str, list[Any]]
    with client.stream("POST", PATH, json=body | {"stream": True}) as response:
        for chunk in frames(response):
            for choice in chunk["choices"]:
                if choice["index"] == 0:
                    text += choice["text"]
                    for name, items in (choice["logprobs"] or {}).items():
                        lists.setdefault(name, []).extend(items)
    return {"text": text, "logprobs": lists}


def answered(text: bytes) -> LiveServer:
    """A server whose model says `text` and ends."""
    return LiveServer(lambda settings: fake_engine(FakeExecutor(says(text)), settings))


def test_logprobs_come_in_both_forms_and_n_probs_in_llama_servers_alone(client: httpx.Client) -> None:
    body = {"prompt": "ab", "max_tokens": 2, "lora": [{"id": 0, "scale": 0}]}
    both = complete(client, body | {"logprobs": 2})["logprobs"]
    native = complete(client, body | {"n_probs": 2})["logprobs"]
    assert list(both) == ["content", *LISTS]
    assert native == {"content": both["content"]}
    assert both["tokens"] == ["a", "b"]
    assert both["token_logprobs"] == [-0.25, -0.25]
    assert both["top_logprobs"] == [{"a": -0.25, "<s>": -1.5}, {"b": -0.25, "<s>": -1.5}]
    assert both["text_offset"] == [0, 1]


def test_no_alternatives_leave_the_tokens_own(client: httpx.Client) -> None:
    body = {"prompt": "ab", "max_tokens": 1, "lora": [{"id": 0, "scale": 0}]}
    logprobs = complete(client, body | {"logprobs": 0})["logprobs"]
    assert logprobs["top_logprobs"] == [{"a": -0.25}]
    assert complete(client, body)["logprobs"] is None
    native = client.post("/completion", json={"prompt": "ab", "n_predict": 1, "logprobs": 0}).json()
    assert "completion_probabilities" not in native


def test_a_token_of_half_a_character_is_called_by_its_bytes() -> None:
    with answered("aé!".encode()) as server, server.client() as client:
        body = {"prompt": "x", "logprobs": 1, "max_tokens": 8}
        choice = complete(client, body)
        assert choice["text"] == "aé!"
        assert choice["logprobs"]["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "!", "</s>"]
        assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2, 3]
        assert streamed(client, body) == {"text": choice["text"], "logprobs": choice["logprobs"]}


def test_a_stop_string_takes_its_tokens_with_it() -> None:
    with answered(b"abcd") as server, server.client() as client:
        body = {"prompt": "x", "logprobs": 1, "stop": ["bc"], "max_tokens": 8}
        choice = complete(client, body)
        assert choice["text"] == "a"
        assert choice["logprobs"]["tokens"] == streamed(client, body)["logprobs"]["tokens"]


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99], "a" * (N_CTX - 8)])
def test_echo_lists_the_prompt_before_the_answer(
    client: httpx.Client, server: LiveServer, prompt: str | list[int], max_tokens: int
) -> None:
    text = prompt if isinstance(prompt, str) else "abc"
    body = {"prompt": prompt, "max_tokens": max_tokens, "echo": True, "logprobs": 1, "n": 2}
    first = [choice := complete(client, body), complete(client, body)]
    assert first == [choice, choice], "cached or not"
    said = alphabet(current_key(server.engine), max_tokens)
    logprobs, has_bos = choice["logprobs"], isinstance(prompt, str)
    assert (choice["text"], choice["finish_reason"]) == (text + said, "length")
    assert logprobs["tokens"] == ["<s>"] * has_bos + list(text + said)
    num_prompt = len(text) + has_bos
    places = range(1, num_prompt)
    assert logprobs["token_logprobs"] == [None, *(-1.0 * place for place in places), *[-0.25] * max_tokens]
    assert logprobs["top_logprobs"][:num_prompt] == [
        None,
        *({"<s>": -0.5, chr((97 + (place - has_bos) % 3) if len(text) == 3 else 97): -1.0 * place} for place in places),
    ]
    assert logprobs["text_offset"] == [0] * has_bos + list(range(len(text) + max_tokens))
    assert len(logprobs["content"]) == max_tokens
    assert streamed(client, body) == {"text": choice["text"], "logprobs": logprobs}


def test_requests_of_evaluation_harnesses_are_scored_as_they_read_them(client: httpx.Client) -> None:
    prompts = [list(b"the sky is blue"), list(b"one two")]
    body = {"prompt": prompts, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1234}
    answer = client.post(PATH, json=body).json()
    for choice, prompt, num_context in zip(answer["choices"], prompts, (4, 3), strict=True):
        scores = choice["logprobs"]["token_logprobs"][num_context:-1]
        tops = choice["logprobs"]["top_logprobs"][num_context:-1]
        assert len(scores) == len(tops) == len(prompt) - num_context
        assert sum(scores) == -sum(range(num_context, len(prompt)))
        assert [max(top.values()) for top in tops] == [-0.5] * len(tops)
    assert answer["usage"]["completion_tokens"] == 2


def test_an_echo_without_tokens_has_usage_and_a_reason(client: httpx.Client, server: LiveServer) -> None:
    body = {"prompt": "abc", "max_tokens": 0, "echo": True, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", PATH, json=body) as response:
        *chunks, last = frames(response)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["abc", ""]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (4, 0)
    assert client.post(PATH, json={"prompt": "abc", "max_tokens": 0}).json()["usage"]["completion_tokens"] == 1
    assert server.is_idle


def test_a_scored_prompt_reads_no_cache_and_its_usage_says_so(client: httpx.Client) -> None:
    body = {"prompt": "z" * 100, "max_tokens": 1}
    counts = []
    for more in ({}, {}, {"echo": True, "logprobs": 1}, {"echo": True}):
        usage = client.post(PATH, json=body | more).json()["usage"]
        counts.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert counts == [0, 100 // BLOCK_SIZE * BLOCK_SIZE, 0, 100 // BLOCK_SIZE * BLOCK_SIZE]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logprobs": 21}, "Field 'logprobs': must be at most 20 together with echo, but got 21"),
        ({"logprobs": 1, "suffix": "x"}, "Field 'echo': is not supported together with logprobs and suffix"),
        ({"max_tokens": 0, "min_tokens": 1}, "Field 'min_tokens': must be at most n_predict, which is 0, but got 1"),
    ],
)
def test_what_cannot_be_scored_is_refused(client: httpx.Client, fields: dict[str, Any], message: str) -> None:
    response = client.post(PATH, json={"prompt": "abc", "echo": True} | fields)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)


def test_scores_are_answered_again_from_the_response_cache() -> None:
    settings = fake_settings().model_copy(update={"response_cache": 10})
    with LiveServer(lambda given: fake_engine(FakeExecutor(), given), settings) as server, server.client() as client:
        body = {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
        assert complete(client, body) == complete(client, body)
        assert complete(client, body | {"logprobs": 0})["logprobs"]["top_logprobs"][1] == {"a": -1.0}
        assert "logprobs" not in (complete(client, body | {"logprobs": None})["logprobs"] or {})
        hits = server.engine.responses
        assert len(hits) == 3


def test_special_tokens_of_a_prompt_are_in_its_text_as_ids(client: httpx.Client) -> None:
    choice = complete(client, {"prompt": [97, EOS, BOS, 98], "max_tokens": 0, "echo": True, "logprobs": 0})
    assert choice["text"] == "a</s><s>b"
    assert choice["logprobs"]["text_offset"] == [0, 1, 5, 8]
