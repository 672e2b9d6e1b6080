"""How many tokens of an answer are thinking, in the usage of OpenAI's APIs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.server.chat_templates import HERMES_THINKING, PLAIN, THINKING_BEGUN
from tests.server.fakes import FakeExecutor, fake_engine, says
from tests.server.live import LiveServer, frames, named_events

CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 60}
RESPONSE = {"input": "a", "max_output_tokens": 60}


@contextmanager
def answering(text: str, template: str) -> Iterator[httpx.Client]:
    """A model with a chat template that says `text`, a token for each byte, and ends."""
    load = lambda settings: fake_engine(FakeExecutor(says(text)), settings, chat_template=template)  # noqa: E731
    with LiveServer(load) as server, server.client() as client:
        yield client


@pytest.mark.parametrize(
    ("template", "text", "num_thinking"),
    [
        (HERMES_THINKING, "<think>\nhmé\n</think>\n\nYes.", 6),
        (HERMES_THINKING, "Yes. <think>no</think>", 0),
        (HERMES_THINKING, "<think></think>Yes.", 0),
        (THINKING_BEGUN, "hm</think>Yes.", 2),
        (THINKING_BEGUN, "only thought", 12),
    ],
)
def test_tokens_between_the_tags_are_thinking(template: str, text: str, num_thinking: int) -> None:
    with answering(text, template) as client:
        usage = client.post("/v1/chat/completions", json=CHAT).json()["usage"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": num_thinking}
        assert usage["completion_tokens"] == len(text.encode()) + 1
        both = client.post("/v1/chat/completions", json=CHAT | {"n": 2}).json()["usage"]
        assert both["completion_tokens_details"] == {"reasoning_tokens": 2 * num_thinking}
        assert last_usage(client) == usage
        response = client.post("/v1/responses", json=RESPONSE).json()
        assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": num_thinking}
        with client.stream("POST", "/v1/responses", json=RESPONSE | {"stream": True}) as stream:
            *_, last = named_events(stream)
        assert last["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": num_thinking}


def last_usage(client: httpx.Client) -> dict[str, Any]:
    body = CHAT | {"stream": True, "cache_prompt": False, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        *_, last = frames(response)
    usage: dict[str, Any] = last["usage"]
    return usage


def test_where_thinking_is_not_told_apart_it_is_not_counted() -> None:
    with answering("<think>hm</think>Yes.", HERMES_THINKING) as client:
        answer = client.post("/v1/chat/completions", json=CHAT | {"reasoning_format": "none"}).json()
        assert "completion_tokens_details" not in answer["usage"]
    with answering("<think>hm</think>Yes.", PLAIN) as client:
        assert "completion_tokens_details" not in client.post("/v1/chat/completions", json=CHAT).json()["usage"]
