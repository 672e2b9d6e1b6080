"""Our server and llama-server with the same model and adapters, and one request for both. It must not know what is
compared.

Both compute in float32 (the peer with a float32 KV cache and without flash attention), so that what differs is not a
matter of precision.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import httpx

from server.capacity import num_physical_cores
from tests.load.peer import Peer
from tests.load.peer_servers import Contender, Setup, python_server, session

Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

OURS, PEER = "ours", "llama-server"
_TIMEOUT_S = 600.0
_PEER_FLAGS = ("-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-warmup", "--cache-ram", "0", "--no-ui", "--metrics")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said to one request."""

    status: int
    content_type: str
    body: Json
    """The JSON value; of a stream, the list of its frames' values, with the text where one is not JSON."""

    def __getitem__(self, key: str) -> Json:
        """Return a field of an object. Raises AssertionError, showing the answer, where there is none."""
        assert isinstance(self.body, dict), self
        assert key in self.body, self
        return self.body[key]


@dataclass(frozen=True, slots=True)
class Server:
    """One of the two."""

    name: str
    client: httpx.Client

    def get(self, path: str) -> Answer:
        """GET a path."""
        return read_answer(self.client.get(path))

    def post(self, path: str, body: object) -> Answer:
        """POST a JSON body."""
        return read_answer(self.client.post(path, json=body))

    def post_raw(self, path: str, body: bytes) -> Answer:
        """POST bytes that need not be JSON."""
        return read_answer(self.client.post(path, content=body, headers={"Content-Type": "application/json"}))


@dataclass(frozen=True, slots=True)
class Pair:
    """Both servers, running."""

    ours: Server
    peer: Server

    def get(self, path: str) -> tuple[Answer, Answer]:
        """GET a path from both; ours first."""
        return self.ours.get(path), self.peer.get(path)

    def post(self, path: str, body: object) -> tuple[Answer, Answer]:
        """POST a JSON body to both; ours first."""
        return self.ours.post(path, body), self.peer.post(path, body)


def read_answer(response: httpx.Response) -> Answer:
    """Return what a response says, frame by frame where it is a stream of events."""
    content_type = response.headers.get("content-type", "")
    if content_type.startswith("text/event-stream"):
        frames: list[Json] = [
            _value(line.removeprefix("data: ")) for line in response.text.splitlines() if line.startswith("data: ")
        ]
        return Answer(response.status_code, content_type, frames)
    return Answer(response.status_code, content_type, _value(response.text))


def _value(text: str) -> Json:
    try:
        value: Json = httpx.Response(200, text=text).json()
    except ValueError:
        return text
    return value


@contextmanager
def running(contender: Contender, setup: Setup, log: Path) -> Iterator[Server]:
    """Start one of the two and yield it, ready."""
    with (
        session(contender, setup, num_physical_cores(), log) as started,
        httpx.Client(base_url=f"http://127.0.0.1:{started.port}", timeout=_TIMEOUT_S) as client,
    ):
        yield Server(contender.name, client)


def our_server(model: Path, adapters: Sequence[Path] = (), *flags: str) -> Contender:
    """Return ours, in float32."""
    return Contender(OURS, "", python_server(), model, tuple(adapters), ("--dtype", "float32", *flags))


def peer_server(peer: Peer, model: Path, adapters: Sequence[Path] = (), *flags: str) -> Contender:
    """Return the peer, in float32."""
    return Contender(PEER, "", (str(peer.server),), model, tuple(adapters), (*_PEER_FLAGS, *flags))


@contextmanager
def both_running(peer: Peer, model: Path, adapters: Sequence[Path], setup: Setup, scratch: Path) -> Iterator[Pair]:
    """Start both on one GGUF file with the same adapters, and yield them."""
    with (
        running(our_server(model, adapters), setup, scratch / "ours.log") as ours,
        running(peer_server(peer, model, adapters), setup, scratch / "peer.log") as other,
    ):
        yield Pair(ours, other)
