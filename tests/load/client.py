"""A streaming client that costs little: on two cores the load generator shares them with the server it measures."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Stream:
    """What one streamed request did. Times are seconds of `time.perf_counter`."""

    sent_s: float
    token_times_s: list[float] = field(default_factory=list)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    final: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        """From sending to the first token."""
        return self.token_times_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between tokens."""
        return [b - a for a, b in zip(self.token_times_s, self.token_times_s[1:], strict=False)]


class HttpError(Exception):
    """The server answered with a status other than 200."""


async def stream_completion(
    port: int, body: dict[str, Any], until_s: float | None = None, *, stream: Stream | None = None
) -> Stream:
    """POST `body` to /completion with `stream` on, and read it to its end, or until the time `until_s`, then hang up.

    `stream` is filled as it comes and returned; None makes a new one.
    Raises HttpError for a status other than 200 and ConnectionError where the stream breaks off or carries an error.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        payload = json.dumps({**body, "stream": True, "return_tokens": True}).encode()
        head = f"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(payload)}\r\n"
        head += "Content-Type: application/json\r\nConnection: close\r\n\r\n"
        stream = stream or Stream(0.0)
        stream.sent_s = time.perf_counter()
        writer.write(head.encode() + payload)
        status = (await reader.readline()).split()[1]
        while (await reader.readline()).strip():
            pass
        if status != b"200":
            raise HttpError(f"{status.decode()}: {(await reader.read()).decode()}")
        await _read_events(reader, stream, until_s)
        return stream
    finally:
        writer.close()


async def _read_events(reader: asyncio.StreamReader, stream: Stream, until_s: float | None) -> None:
    while until_s is None or time.perf_counter() < until_s:
        line = await reader.readline()
        if not line:
            raise ConnectionError(f"the stream broke off after {len(stream.token_times_s)} tokens")
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise ConnectionError(str(event["error"]))
        stream.text += event["content"]
        if event["stop"]:
            stream.final = event
            return
        # A piece of text may be several tokens: an emoji often is.
        stream.token_ids += event["tokens"]
        stream.token_times_s += [time.perf_counter()] * len(event["tokens"])


async def get_json(port: int, path: str) -> Any:
    """GET a path and parse its JSON body."""
    return json.loads(await get_text(port, path))


async def get_text(port: int, path: str) -> str:
    """GET a path and return its body. Raises HttpError for a status other than 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        if head.split()[1] != b"200":
            raise HttpError(f"{path}: {head.splitlines()[0].decode()}")
        return body.decode()
    finally:
        writer.close()
