"""A server whose model can be replaced by another, around fakes."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from server.adapters.catalog import AdapterEntry
from server.adapters.resident import ResidentAdapter
from server.engine import Engine
from server.settings import Settings
from tests.server.fakes import (
    TIMEOUT_S,
    FakeExecutor,
    FakeLoader,
    Turnstile,
    fake_engine,
    fake_resident,
    fake_settings,
    says,
)
from tests.server.live import LiveServer

PATH = "/admin/models/load"


class Swapping:
    """A server whose first model says "old…" and is held by a turnstile, and whose next one says "new…"."""

    def __init__(self, folder: Path, **values: object) -> None:
        self.folder = folder
        for name in ("first", "next", "other"):
            (folder / name).mkdir()
        self.turnstile = Turnstile()
        self.next_turnstile: Turnstile | None = None
        self.error: Exception | None = None
        """Raised by the next load."""
        self.make: Callable[[AdapterEntry, int], ResidentAdapter] = fake_resident
        self.may_load = threading.Event()
        self.may_load.set()
        self.is_loading = threading.Event()
        self.is_loaded = threading.Event()
        self.may_finish = threading.Event()
        """Between these two an engine is complete and not served yet."""
        self.may_finish.set()
        given = {"model": folder / "first", "model_dir": (str(folder),), "shutdown_grace": 20.0, **values}
        settings = fake_settings().model_copy(update=given)
        self.server = LiveServer(self._load, settings, load_next=self._load_next)

    def _load(self, settings: Settings) -> Engine:
        return fake_engine(FakeExecutor(says("old" * 20), self.turnstile), settings)

    def _load_next(self, settings: Settings, previous: Engine) -> Engine:
        self.is_loading.set()
        assert self.may_load.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        executor = FakeExecutor(says("new" * 20), self.next_turnstile)
        engine = fake_engine(executor, settings, loader=FakeLoader(self.make), previous=previous)
        self.is_loaded.set()
        assert self.may_finish.wait(TIMEOUT_S)
        return engine

    def load(self, client: httpx.Client, name: str = "next", **more: object) -> httpx.Response:
        """Ask for another model."""
        return client.post(PATH, json={"model": str(self.folder / name), **more})

    def load_in_thread(self) -> tuple[threading.Thread, list[httpx.Response]]:
        """Ask for another model, and go on when it is being loaded."""
        responses: list[httpx.Response] = []

        def ask() -> None:
            with self.server.client() as client:
                responses.append(self.load(client))

        asking = threading.Thread(target=ask)
        asking.start()
        assert self.is_loading.wait(TIMEOUT_S)
        return asking, responses


def text_of(received: Iterator[dict[str, Any]]) -> str:
    return "".join(str(frame["content"]) for frame in received)


def complete(client: httpx.Client, **more: object) -> dict[str, Any]:
    response = client.post("/completion", json={"prompt": "a", "n_predict": 3, **more})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer
