"""What requests pass before a route: the loading state, API keys, unknown paths."""

import threading
from collections.abc import Iterator

import httpx
import pytest

from server.engine import Engine
from server.settings import Settings
from tests.server.fakes import TIMEOUT_S, FakeExecutor, fake_engine, fake_settings
from tests.server.live import LiveServer, until

PATHS = [
    *[("GET", path) for path in ("/v1/models", "/props", "/slots", "/lora-adapters", "/metrics", "/no/such/path")],
    *[("POST", path) for path in ("/completion", "/v1/completions", "/v1/chat/completions", "/lora-adapters")],
]


def test_every_path_says_loading_until_the_model_is_ready() -> None:
    may_finish = threading.Event()

    def load(settings: Settings) -> Engine:
        assert may_finish.wait(TIMEOUT_S)
        return fake_engine(FakeExecutor(), settings)

    with LiveServer(load, wait_for_engine=False) as server, server.client() as client:
        for method, path in [*PATHS, ("GET", "/health"), ("GET", "/v1/health")]:
            response = client.request(method, path, json={})
            assert response.status_code == 503
            error = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
            assert response.json() == {"error": error}
            assert "retry-after" in response.headers
        may_finish.set()
        until(lambda: client.get("/health").status_code == 200)
        assert client.get("/health").json() == {"status": "ok"}


@pytest.fixture(scope="module")
def locked() -> Iterator[httpx.Client]:
    """A client of a server that wants one of two keys."""
    settings = fake_settings().model_copy(update={"api_key": "first, sécond"})
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(), settings), settings) as server,
        server.client() as client,
    ):
        yield client


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "first"},
        {"Authorization": "Basic first"},
        {"X-Api-Key": "firs"},
        {"X-Api-Key": "first, sécond".encode()},
    ],
)
@pytest.mark.parametrize(("method", "path"), PATHS)
def test_a_wrong_key_is_refused_everywhere(
    locked: httpx.Client, method: str, path: str, headers: dict[str, str]
) -> None:
    response = locked.request(method, path, headers=headers, json={})
    assert response.status_code == 401
    error = {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}
    assert response.json() == {"error": error}


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": "Bearer first"}, {"authorization": "bearer first"}, {"X-Api-Key": "sécond".encode()}],
)
def test_any_of_the_keys_opens(locked: httpx.Client, headers: dict[str, str]) -> None:
    assert locked.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_needs_no_key(locked: httpx.Client, path: str) -> None:
    assert locked.get(path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/nothing"), ("GET", "/completion"), ("POST", "/v1/models"), ("DELETE", "/slots"), ("POST", "/")],
)
def test_an_unknown_path_or_method_is_not_found(client: httpx.Client, method: str, path: str) -> None:
    response = client.request(method, path)
    assert response.status_code == 404
    error = {"code": 404, "message": "File Not Found", "type": "not_found_error"}
    assert response.json() == {"error": error}


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"prompt": "a"', b"[1]", b'"x"', b"null", b"\xff\xfe\xff", b'{"prompt": "\\ud800"}']
)
def test_a_body_that_is_no_object_is_refused(client: httpx.Client, path: str, content: bytes) -> None:
    response = client.post(path, content=content)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_the_server_names_itself(client: httpx.Client) -> None:
    assert client.get("/health").headers.get_list("server") == ["cohort"]
