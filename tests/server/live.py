"""A real server in a thread: Uvicorn on a free port, the real app and step loop, around any engine."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import httpx

from server.assembly import load_engine
from server.engine import Engine
from server.lifecycle import Service, listen
from server.settings import Settings
from tests.server.fakes import TIMEOUT_S, fake_settings


class LiveServer:
    """A running server. Use it as a context manager; leaving it stops the server as SIGTERM would."""

    def __init__(
        self,
        load: Callable[[Settings], Engine],
        settings: Settings | None = None,
        *,
        load_next: Callable[[Settings, Engine], Engine] = load_engine,
        wait_for_engine: bool = True,
    ) -> None:
        self.settings = settings or fake_settings()
        self.exit_code: int | None = None
        self._load = load
        self._load_next = load_next
        self._wait_for_engine = wait_for_engine
        self._advanced_s = 0.0
        self._listeners = listen(self.settings)
        self.url = f"http://127.0.0.1:{self._listeners[0].getsockname()[1]}"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="live server")
        self._started = threading.Event()

    @property
    def engine(self) -> Engine:
        """The engine that is served."""
        assert self.service.door.engine is not None
        return self.service.door.engine

    async def _run(self) -> None:
        self.service = Service(self.settings, self._load, self._load_next)
        self._event_loop = asyncio.get_running_loop()
        self._event_loop.time = lambda: time.monotonic() + self._advanced_s  # type: ignore[method-assign]
        self._started.set()
        self.exit_code = await self.service.run(self._listeners)

    def __enter__(self) -> "LiveServer":
        self._thread.start()
        assert self._started.wait(TIMEOUT_S)
        if self._wait_for_engine:
            until(lambda: self.service.door.engine is not None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.join()

    def stop(self) -> None:
        """Begin to shut down, as SIGTERM does."""
        if self._thread.is_alive():
            self._event_loop.call_soon_threadsafe(self.service.stopping.set)

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the server did not stop"

    def advance(self, seconds: float) -> None:
        """Let so much time be over for the timers of the event loop."""
        self._advanced_s += seconds
        self._event_loop.call_soon_threadsafe(lambda: None)

    def client(self) -> httpx.Client:
        """Return a client of this server."""
        return httpx.Client(base_url=self.url, timeout=TIMEOUT_S)

    @property
    def num_free_slots(self) -> int:
        """Slots that no request holds."""
        scheduler = self.engine.loop.scheduler
        return scheduler.limits.num_slots - len(scheduler.running)

    @property
    def is_idle(self) -> bool:
        """Whether no request is known any more, and no slot and no block is held."""
        scheduler = self.engine.loop.scheduler
        return scheduler.num_requests == 0 and not scheduler.running and scheduler.kv.blocks.num_held == 0


def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; fail where it takes too long."""
    deadline = time.monotonic() + TIMEOUT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        pause.wait(0.002)


def frames(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a stream as they come, without the closing `[DONE]`."""
    for line in response.iter_lines():
        if line and line != "data: [DONE]":
            assert line.startswith("data: "), line
            yield json.loads(line.removeprefix("data: "))


def named_events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a stream whose events are named after their `type`, as they come."""
    lines = response.iter_lines()
    for line in lines:
        assert line.startswith("event: "), line
        content = next(lines)
        assert content.startswith("data: "), content
        event: dict[str, Any] = json.loads(content.removeprefix("data: "))
        assert event["type"] == line.removeprefix("event: ")
        assert next(lines) == ""
        yield event
