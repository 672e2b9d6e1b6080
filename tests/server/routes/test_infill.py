"""/infill and the field `suffix`, over HTTP."""

from collections.abc import Iterator

import httpx
import pytest

from model.tokens.infill import FimTokens
from tests.server.fakes import FakeExecutor, alphabet, current_key, fake_engine, fake_settings
from tests.server.live import LiveServer, frames

FIM = FimTokens(1, 2, 3)
BODY = {"input_prefix": "def f(", "input_suffix": ")", "prompt": "a", "n_predict": 3}


@pytest.fixture(scope="module")
def filling() -> Iterator[LiveServer]:
    """A server whose model has tokens for filling in."""
    with LiveServer(lambda settings: fake_engine(FakeExecutor(), settings, fim=FIM)) as running:
        yield running


@pytest.fixture(scope="module")
def filler(filling: LiveServer) -> Iterator[httpx.Client]:
    with filling.client() as opened:
        yield opened


def test_the_gap_is_filled_in_llama_servers_form(filler: httpx.Client, filling: LiveServer) -> None:
    answer = filler.post("/infill", json=BODY).json()
    assert answer["prompt"] == "<s>\x01def f(a\x02)\x03"
    assert answer["content"] == alphabet(current_key(filling.engine), 3)
    assert (answer["stop"], answer["tokens_predicted"], answer["stop_type"]) == (True, 3, "limit")


def test_it_streams_and_takes_lists_and_choices(filler: httpx.Client, filling: LiveServer) -> None:
    body = BODY | {"stream": True, "lora": [{"id": 1, "scale": 1}]}
    with filler.stream("POST", "/infill", json=body) as response:
        received = list(frames(response))
    assert received[-1]["generation_settings"]["lora"][1]["scale"] == 1
    assert "".join(frame["content"] for frame in received) == "uvw"
    assert len(filler.post("/infill", json=BODY | {"n": 2, "response_fields": ["content"]}).json()) == 2


def test_texts_may_hold_tokens_and_special_ones_are_text(filler: httpx.Client) -> None:
    body = {"input_prefix": ["</s>", 97], "input_suffix": [98], "input_extra": [{"text": "c", "filename": "d"}]}
    answer = filler.post("/infill", json=body | {"n_predict": 1}).json()
    assert answer["prompt"] == "\n\n--- snippet ---\n\nc<s>\x01</s>a\x02b\x03"
    assert answer["tokens_evaluated"] == len("\n\n--- snippet ---\n\nc") + 1 + 1 + len("</s>a") + 3


def test_the_text_behind_may_come_first() -> None:
    settings = fake_settings().model_copy(update={"spm_infill": True})
    with (
        LiveServer(lambda given: fake_engine(FakeExecutor(), given, fim=FIM), settings) as server,
        server.client() as client,
    ):
        assert client.post("/infill", json=BODY).json()["prompt"] == "<s>\x02)\x01def f(a\x03"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_prefix": None}, '"input_prefix" is required'),
        ({"input_suffix": None}, '"input_suffix" is required'),
        ({"input_prefix": {"a": 1}}, "Field 'input_prefix.prompt_string'"),
        ({"prompt": ["a"]}, "Field 'prompt': type must be string, but is array"),
        ({"input_extra": {}}, "Field 'input_extra': type must be array, but is object"),
        ({"input_extra": [{"filename": "a"}]}, "Field 'input_extra[0]': extra_context chunk must contain"),
        ({"input_extra": [{"text": "a"}, {"text": "a", "filename": 3}]}, "Field 'input_extra[1].filename'"),
        ({"suffix": "x"}, "Field 'suffix': is not supported"),
        ({"echo": True}, "Field 'echo': is not supported"),
        ({"tools": [{}]}, "Field 'tools': is not supported"),
    ],
)
def test_a_wrong_body_is_refused(filler: httpx.Client, changes: dict[str, object], message: str) -> None:
    response = filler.post("/infill", json=BODY | changes)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)


def test_a_model_without_the_tokens_says_which_it_lacks(client: httpx.Client) -> None:
    response = client.post("/infill", json=BODY)
    assert response.status_code == 501
    assert response.json()["error"] == {
        "code": 501,
        "message": "Infill is not supported by this model: prefix token is missing. suffix token is missing. "
        "middle token is missing. ",
        "type": "not_supported_error",
    }


def test_suffix_asks_for_what_is_between(filler: httpx.Client, filling: LiveServer) -> None:
    body = {"prompt": ["def f(", "g"], "suffix": ")", "max_tokens": 2, "echo": True}
    answer = filler.post("/v1/completions", json=body).json()
    said = alphabet(current_key(filling.engine), 2)
    assert [choice["text"] for choice in answer["choices"]] == ["def f(" + said, "g" + said]
    assert answer["usage"]["prompt_tokens"] == len("def f()") + 4 + len("g)") + 4
    verbose = filler.post("/v1/completions", json={"prompt": "a", "suffix": "b", "max_tokens": 1, "verbose": True})
    assert verbose.json()["__verbose"]["prompt"] == "<s>\x01a\x02b\x03"


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/v1/completions"])
def test_suffix_is_refused_where_it_cannot_be_honoured(client: httpx.Client, path: str) -> None:
    body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "n_predict": 1}
    response = client.post(path, json=body | {"suffix": "x"})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("Field 'suffix'")
    assert client.post(path, json=body | {"suffix": ""}).status_code == 200
