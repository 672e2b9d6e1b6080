"""Web pages of which origins may use the API."""

from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import Response

from server.edge.cors import Cors
from tests.server.fakes import FakeExecutor, fake_engine, fake_settings
from tests.server.live import LiveServer

PAGE = "https://page.example"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a server that wants a key; it carries one only where a test says so."""
    settings = fake_settings().model_copy(update={"api_key": "secret"})
    load = lambda settings: fake_engine(FakeExecutor(), settings)  # noqa: E731
    with LiveServer(load, settings) as server, server.client() as opened:
        yield opened


def test_the_origin_is_echoed_and_only_where_there_is_one(client: httpx.Client) -> None:
    response = client.get("/health", headers={"Origin": PAGE})
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "Origin" in response.headers["vary"]
    assert "access-control-allow-origin" not in client.get("/health").headers


def test_the_origin_is_echoed_on_streams_and_errors(client: httpx.Client) -> None:
    headers = {"Origin": PAGE, "Authorization": "Bearer secret"}
    for body, status in (({"prompt": "a", "stream": True}, 200), ({"prompt": 5}, 400)):
        response = client.post("/completion", json=body, headers=headers)
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == PAGE
    assert client.post("/completion", json={}, headers={"Origin": PAGE}).status_code == 401


def test_a_preflight_needs_no_key_and_its_headers_are_spelled_as_llama_servers(client: httpx.Client) -> None:
    headers = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    response = client.options("/v1/chat/completions", headers=headers)
    assert response.status_code == 200
    assert set(response.headers.raw) >= {
        (b"Access-Control-Allow-Origin", PAGE.encode()),
        (b"Access-Control-Allow-Credentials", b"true"),
        (b"Access-Control-Allow-Methods", b"GET, POST, DELETE, OPTIONS"),
        (b"Access-Control-Allow-Headers", b"*"),
    }


@pytest.mark.parametrize(
    ("origins", "origin", "is_allowed"),
    [
        ("*", PAGE, True),
        ("*", "null", True),
        ("localhost", "http://localhost", True),
        ("localhost", "https://localhost:8443", True),
        ("localhost", "http://127.0.0.1:3000", True),
        ("localhost", "http://[::1]:3000", True),
        ("localhost", PAGE, False),
        ("localhost", "http://notlocalhost", False),
        ("localhost", "http://localhost.evil.example", False),
        ("localhost", "http://evil.example/localhost", False),
        ("localhost", "null", False),
        ("localhost", "http://[::1", False),
        (f"{PAGE}, http://other.example:81", PAGE, True),
        (f"{PAGE}, http://other.example:81", "http://other.example:81", True),
        (f"{PAGE}, http://other.example:81", "http://other.example", False),
        (f"localhost,{PAGE}", "http://localhost:1", True),
        (PAGE, "*", False),
    ],
)
def test_who_is_allowed(origins: str, origin: str, is_allowed: bool) -> None:
    assert Cors(Response(), origins).allows(origin) is is_allowed


@settings(deadline=None)
@given(st.text())
def test_no_origin_upsets_it(origin: str) -> None:
    assert Cors(Response(), "*").allows(origin)
    assert isinstance(Cors(Response(), "localhost").allows(origin), bool)


def test_others_are_answered_without_leave() -> None:
    settings = fake_settings().model_copy(update={"cors_origins": "localhost"})
    load = lambda settings: fake_engine(FakeExecutor(), settings)  # noqa: E731
    with LiveServer(load, settings) as server, server.client() as opened:
        for method in ("GET", "OPTIONS"):
            response = opened.request(method, "/health", headers={"Origin": PAGE})
            assert response.status_code == 200
            assert "access-control-allow-origin" not in response.headers
