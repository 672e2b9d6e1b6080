"""Vertex AI's prediction protocol."""

from collections.abc import Iterator

import httpx
import pytest

from server.routes.predict import predict_routes
from tests.server.fakes import FakeExecutor, fake_engine
from tests.server.live import LiveServer

CHAT = {"@requestFormat": "chatCompletions", "max_tokens": 3, "messages": [{"role": "user", "content": "a"}]}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A client of a server on that platform."""
    monkeypatch.setenv("AIP_MODE", "PREDICTION")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/alive")
    with LiveServer(lambda settings: fake_engine(FakeExecutor(), settings)) as server, server.client() as opened:
        yield opened


def test_each_instance_is_answered_by_its_route(client: httpx.Client) -> None:
    completion = {"@requestFormat": "/completion", "prompt": "ab", "n_predict": 2, "stream": True}
    response = client.post("/predict", json={"instances": [CHAT, completion]})
    assert response.status_code == 200
    chat, native = response.json()["predictions"]
    assert chat["choices"][0]["message"]["role"] == "assistant"
    assert chat["usage"]["completion_tokens"] == 3
    assert native["tokens_predicted"] == 2
    assert client.get("/alive").json() == {"status": "ok"}


def test_an_instance_that_fails_has_its_error_in_its_place(client: httpx.Client) -> None:
    instances = [CHAT | {"messages": 5}, {"@requestFormat": "predict"}, 5, CHAT]
    predictions = client.post("/predict", json={"instances": instances}).json()["predictions"]
    assert [each["error"]["code"] if "error" in each else 200 for each in predictions] == [400, 400, 400, 200]
    assert "instances[1].@requestFormat" in predictions[1]["error"]["message"]


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"instances": 5}', b'{"instances": [' + b"5," * 128 + b"5]}"])
def test_what_is_no_list_of_instances_is_refused(client: httpx.Client, body: bytes) -> None:
    assert client.post("/predict", content=body).status_code == 400


def test_there_is_no_such_route_elsewhere() -> None:
    assert predict_routes({"AIP_PREDICT_ROUTE": "/predict"}) == []
    with LiveServer(lambda settings: fake_engine(FakeExecutor(), settings)) as server, server.client() as client:
        assert client.post("/predict", json={"instances": []}).status_code == 404
