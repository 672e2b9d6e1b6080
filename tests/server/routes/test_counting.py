"""POST …/input_tokens: how many tokens the prompt of a conversation has."""

from collections.abc import Iterator

import httpx
import pytest

from tests.server.fakes import FakeExecutor, fake_engine
from tests.server.live import LiveServer

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"}]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a server with two adapters."""
    with LiveServer(lambda settings: fake_engine(FakeExecutor(), settings)) as server, server.client() as opened:
        yield opened


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_the_count_is_that_of_the_prompt_that_would_be_computed(client: httpx.Client, prefix: str) -> None:
    usage = client.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 1}).json()["usage"]
    expected = {"input_tokens": usage["prompt_tokens"], "object": "response.input_tokens"}
    chat = client.post(f"{prefix}/chat/completions/input_tokens", json={"messages": MESSAGES})
    assert (chat.status_code, chat.json()) == (200, expected)
    body = {"instructions": "Be brief.", "input": "What is it?"}
    responses = client.post(f"{prefix}/responses/input_tokens", json=body)
    assert (responses.status_code, responses.json()) == (200, expected)


@pytest.mark.parametrize("path", ["/v1/chat/completions/input_tokens", "/v1/responses/input_tokens"])
def test_the_list_is_checked_as_everywhere(client: httpx.Client, path: str) -> None:
    body = {"messages": MESSAGES, "input": "a"}
    assert client.post(path, json=body | {"lora": [{"id": 1, "scale": 0.5}]}).status_code == 200
    response = client.post(path, json=body | {"lora": [{"id": 9, "scale": 0.5}]})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_what_is_no_conversation_is_refused(client: httpx.Client) -> None:
    assert client.post("/v1/chat/completions/input_tokens", json={"messages": "a"}).status_code == 400
    assert client.post("/v1/responses/input_tokens", json={"input": 5}).status_code == 400
