"""How large a body may be: refused by its declared length or while it comes, in the form of every other error."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from starlette.types import Message, Receive, Scope

from server.edge.body_limit import limited
from server.errors import BodyTooLarge
from tests.server.fakes import BODIES, FakeExecutor, fake_engine, fake_settings
from tests.server.live import LiveServer

MAX_BYTES = 1000
PATHS = [*BODIES, "/tokenize", "/detokenize", "/apply-template", "/lora-adapters", "/v1/mixes"]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a server that reads a thousand bytes."""
    settings = fake_settings().model_copy(update={"max_body_bytes": MAX_BYTES})
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(), settings), settings) as server,
        server.client() as opened,
    ):
        yield opened


def body_of(num_bytes: int) -> bytes:
    """Return a request for a completion of one word, filled up with white space."""
    return b'{"prompt": "a", "n_predict": 1}'.ljust(num_bytes)


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_is_too_long_is_refused_by_its_length(client: httpx.Client, path: str) -> None:
    response = client.post(path, content=body_of(MAX_BYTES + 1))
    assert response.status_code == 413
    message = "Request body has 1001 bytes or more, the limit is 1000"
    assert response.json() == {"error": {"code": 413, "message": message, "type": "invalid_request_error"}}


@pytest.mark.parametrize("path", PATHS)
def test_a_body_in_chunks_is_counted(client: httpx.Client, path: str) -> None:
    response = client.post(path, content=iter([body_of(600), b" " * 600]))
    assert (response.status_code, response.json()["error"]["code"]) == (413, 413)


def test_a_body_as_long_as_the_limit_is_taken(client: httpx.Client) -> None:
    assert client.post("/completion", content=body_of(MAX_BYTES)).status_code == 200
    assert client.post("/completion", content=iter([body_of(600), b" " * 400])).status_code == 200


def test_the_connection_serves_on_after_a_refusal(client: httpx.Client) -> None:
    for _ in range(3):
        assert client.post("/completion", content=body_of(200_000)).status_code == 413
        assert client.post("/completion", content=body_of(100)).status_code == 200


def test_a_declared_length_is_refused_before_anything_is_read() -> None:
    received = Chunks([b"x"])
    with pytest.raises(BodyTooLarge):
        asyncio.run(read_all(received, scope_with(b"1001")))
    assert received.num_given == 0


def test_nothing_is_asked_for_beyond_the_chunk_that_is_too_much() -> None:
    received = Chunks([b"x" * 400] * 10)
    with pytest.raises(BodyTooLarge, match="1200 bytes or more, the limit is 1000"):
        asyncio.run(read_all(received, scope_with(None)))
    assert received.num_given == 3


class Chunks:
    """An ASGI `receive` that gives a body in chunks, and counts them."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        self.num_given = 0

    async def __call__(self) -> Message:
        body = self.chunks[self.num_given]
        self.num_given += 1
        return {"type": "http.request", "body": body, "more_body": self.num_given < len(self.chunks)}


async def read_all(receive: Receive, scope: Scope) -> None:
    """Read a body as a route does."""
    receive = limited(receive, scope, MAX_BYTES)
    while (await receive())["more_body"]:
        pass


def scope_with(content_length: bytes | None) -> Scope:
    """Return the scope of a request with that header, or without any."""
    headers = [] if content_length is None else [(b"content-length", content_length)]
    return {"type": "http", "headers": headers}
