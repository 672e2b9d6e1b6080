"""Named mixes over real HTTP."""

from collections.abc import Iterator

import httpx
import pytest

from tests.server.fakes import FakeExecutor, alphabet, fake_engine, key_of
from tests.server.live import LiveServer


@pytest.fixture
def server() -> Iterator[LiveServer]:
    """Two adapters, and no mix yet."""
    with LiveServer(lambda settings: fake_engine(FakeExecutor(), settings)) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


def forget(client: httpx.Client, name: str) -> httpx.Response:
    return client.request("DELETE", "/v1/mixes", json={"name": name})


@pytest.mark.parametrize(
    "form",
    [
        {"adapters": {"adapter0": 0.7, "adapter1": -0.5}},
        {"lora": [{"name": "adapter0", "scale": 0.7}, {"id": 1, "scale": -0.5}]},
    ],
)
def test_mix_is_listed_and_served_as_a_model(client: httpx.Client, server: LiveServer, form: dict[str, object]) -> None:
    response = client.post("/v1/mixes", json={"name": "support", **form})
    mix = {"name": "support", "adapters": {"adapter0": 0.7, "adapter1": -0.5}}
    assert (response.status_code, response.json()) == (200, mix)
    assert client.get("/v1/mixes").json() == {"object": "list", "data": [mix]}
    assert client.get("/v1/models").json()["data"][-1]["id"] == "support"
    wanted = key_of(server.engine, [{"id": 0, "scale": 0.7}, {"id": 1, "scale": -0.5}])
    body = {"prompt": "a", "n_predict": 5, "model": "support"}
    assert client.post("/completion", json=body).json()["content"] == alphabet(wanted, 5)


def test_mix_can_be_defined_anew_and_forgotten(client: httpx.Client, server: LiveServer) -> None:
    client.post("/v1/mixes", json={"name": "support", "adapters": {"adapter0": 1}})
    client.post("/v1/mixes", json={"name": "support", "adapters": {"adapter1": 1}})
    body = {"prompt": "a", "n_predict": 5, "model": "support"}
    wanted = alphabet(key_of(server.engine, [{"id": 1, "scale": 1}]), 5)
    assert client.post("/completion", json=body).json()["content"] == wanted
    assert forget(client, "support").json() == {"name": "support", "deleted": True}
    assert client.get("/v1/mixes").json()["data"] == []
    assert client.post("/completion", json=body).status_code == 404
    assert forget(client, "support").status_code == 404


@pytest.mark.parametrize(
    ("body", "field", "part"),
    [
        ({"adapters": {"adapter0": 1}}, "name", "''"),
        ({"name": "a,b", "adapters": {"adapter0": 1}}, "name", "commas"),
        ({"name": "fake", "adapters": {"adapter0": 1}}, "name", "base model"),
        ({"name": "adapter0", "adapters": {"adapter0": 1}}, "name", "already"),
        ({"name": "m"}, "adapters", "either"),
        ({"name": "m", "adapters": {"adapter0": 1}, "lora": []}, "adapters", "either"),
        ({"name": "m", "adapters": {}}, "adapters", "at least one"),
        ({"name": "m", "lora": []}, "lora", "at least one"),
        ({"name": "m", "adapters": []}, "adapters", "object"),
        ({"name": "m", "adapters": {"other": 1}}, "adapters", "'other'"),
        ({"name": "m", "adapters": {"adapter0": "1"}}, "adapters.adapter0", "'1'"),
        ({"name": "m", "adapters": {"adapter0": True}}, "adapters.adapter0", "True"),
        ({"name": "m", "adapters": {"adapter0": 1e39}}, "adapters", "finite"),
        ({"name": "m", "adapters": {"adapter0": 10**400}}, "adapters.adapter0", "finite"),
        ({"name": "m", "lora": [{"id": 7, "scale": 1}]}, "lora[0].id", "7"),
    ],
)
def test_mix_that_cannot_be_is_refused_by_field_and_changes_nothing(
    client: httpx.Client, body: dict[str, object], field: str, part: str
) -> None:
    response = client.post("/v1/mixes", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith(f"Field '{field}': ")
    assert part in error["message"]
    assert client.get("/v1/mixes").json()["data"] == []
