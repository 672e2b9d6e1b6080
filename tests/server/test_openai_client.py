"""The official `openai` client against a running server."""

from collections.abc import Iterator

import openai
import pytest

from tests.server.fakes import TIMEOUT_S, alphabet, current_key, key_of
from tests.server.live import LiveServer


@pytest.fixture(scope="module")
def openai_client(server: LiveServer) -> Iterator[openai.OpenAI]:
    """A client that never tries again, so that errors are seen."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def expected(server: LiveServer, length: int) -> str:
    """What the model says under the server's current scales."""
    return alphabet(current_key(server.engine), length)


def test_models_are_listed_base_first(openai_client: openai.OpenAI) -> None:
    assert [model.id for model in openai_client.models.list()] == ["fake", "adapter0", "adapter1"]


def test_a_chat_is_answered(openai_client: openai.OpenAI, server: LiveServer) -> None:
    answer = openai_client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hi"}], max_completion_tokens=4
    )
    assert answer.choices[0].message.content == expected(server, 4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_a_chat_is_streamed_with_usage(openai_client: openai.OpenAI, server: LiveServer) -> None:
    stream = openai_client.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected(server, 4)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


def test_a_text_is_streamed(openai_client: openai.OpenAI, server: LiveServer) -> None:
    stream = openai_client.completions.create(model="fake", prompt="hi", max_tokens=4, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == expected(server, 4)


def test_an_adapter_list_goes_in_the_extra_body(openai_client: openai.OpenAI, server: LiveServer) -> None:
    lora = [{"id": 0, "scale": 0.5}, {"id": 1, "scale": -0.25}]
    answer = openai_client.completions.create(model="fake", prompt="hi", max_tokens=4, extra_body={"lora": lora})
    assert answer.choices[0].text == alphabet(key_of(server.engine, lora, None), 4)


def test_an_adapters_name_selects_it(openai_client: openai.OpenAI, server: LiveServer) -> None:
    answer = openai_client.completions.create(model="adapter1", prompt="hi", max_tokens=4)
    assert answer.choices[0].text == alphabet(key_of(server.engine, [{"id": 1, "scale": 1}], None), 4)


def test_a_text_and_its_prompt_are_scored(openai_client: openai.OpenAI, server: LiveServer) -> None:
    answer = openai_client.completions.create(model="fake", prompt="hi", max_tokens=2, echo=True, logprobs=1)
    scores = answer.choices[0].logprobs
    assert scores is not None
    assert scores.tokens == ["<s>", "h", "i", *expected(server, 2)]
    assert scores.token_logprobs == [None, -1.0, -2.0, -0.25, -0.25]
    assert scores.text_offset == [0, 0, 1, 2, 3]
    assert scores.top_logprobs is not None
    assert scores.top_logprobs[1] == {"<s>": -0.5, "h": -1.0}


def test_errors_are_the_clients_own(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="lora"):
        openai_client.completions.create(model="fake", prompt="hi", extra_body={"lora": [{"id": 7}]})


def test_texts_are_embedded(openai_client: openai.OpenAI) -> None:
    texts, ids = ["abc", "d"], [[97, 98], [99]]
    for inputs in (texts, ids):
        answer = openai_client.embeddings.create(model="adapter1", input=inputs)
        assert [(item.index, len(item.embedding)) for item in answer.data] == [(0, 4), (1, 4)]
        plain = openai_client.embeddings.create(model="adapter1", input=inputs, encoding_format="float")
        assert [item.embedding for item in plain.data] == [item.embedding for item in answer.data]
    assert answer.usage.prompt_tokens == 3
