"""--sleep-idle-seconds: a model that nobody needs leaves memory, and comes back for whoever needs it."""

import asyncio
import weakref
from collections.abc import Iterator

import httpx
import pytest

from server.engine import Engine
from server.engine_users import EngineUsers
from server.settings import Settings
from tests.server.fakes import FakeExecutor, Turnstile, fake_engine, fake_settings
from tests.server.live import LiveServer, until
from tests.server.metrics.test_metrics import scrape, value


class Loads:
    """Loads fake models, and counts them."""

    def __init__(self) -> None:
        self.turnstile = Turnstile()
        self.num = 0
        self.error: Exception | None = None

    def first(self, settings: Settings) -> Engine:
        """Load what the server starts with."""
        self.num += 1
        return fake_engine(FakeExecutor(turnstile=self.turnstile), settings)

    def again(self, settings: Settings, previous: Engine) -> Engine:
        """Load what follows a sleep."""
        if self.error is not None:
            raise self.error
        self.num += 1
        return fake_engine(FakeExecutor(turnstile=self.turnstile), settings, previous=previous)


@pytest.fixture
def loads() -> Loads:
    """The models that the server loads."""
    return Loads()


@pytest.fixture
def server(loads: Loads) -> Iterator[LiveServer]:
    """A server that sleeps as soon as nobody needs it."""
    settings = fake_settings().model_copy(update={"sleep_idle_seconds": 0})
    with LiveServer(loads.first, settings, load_next=loads.again) as running:
        yield running
        loads.turnstile.open()


@pytest.fixture
def client(server: LiveServer) -> Iterator[httpx.Client]:
    """A client of that server, which is asleep."""
    with server.client() as opened:
        until(lambda: is_asleep(opened))
        yield opened


def is_asleep(client: httpx.Client) -> bool:
    """What the server says of itself."""
    asleep: bool = client.get("/props").json()["is_sleeping"]
    return asleep


def test_what_needs_no_model_is_answered_asleep(client: httpx.Client, loads: Loads) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/v1/models").json()["data"][0]["id"] == "fake"
    assert client.get("/props").json()["total_slots"] > 0
    assert client.get("/openapi.json").status_code == 200
    assert value(scrape(client), "cohort_models") == 1
    assert loads.num == 1
    assert is_asleep(client)


def test_a_request_wakes_it_and_it_sleeps_again(client: httpx.Client, loads: Loads) -> None:
    loads.turnstile.open()
    response = client.post("/completion", json={"prompt": "abc", "n_predict": 5})
    assert (response.status_code, response.json()["tokens_predicted"]) == (200, 5)
    assert loads.num == 2
    until(lambda: is_asleep(client))
    assert client.post("/tokenize", json={"content": "abc"}).status_code == 200
    assert loads.num == 3
    assert value(scrape(client), "cohort_generated_tokens_total") == 5


def test_it_does_not_sleep_while_a_request_runs(client: httpx.Client, server: LiveServer, loads: Loads) -> None:
    body = {"prompt": "abc", "n_predict": 5, "stream": True}
    with client.stream("POST", "/completion", json=body) as response:
        loads.turnstile.let(1)
        lines = response.iter_lines()
        assert next(lines)
        assert not is_asleep(client)
        running = weakref.ref(server.engine.loop.scheduler)
        loads.turnstile.open()
    until(lambda: is_asleep(client))
    until(lambda: running() is None)


def test_requests_that_come_while_it_wakes_share_the_model(server: LiveServer, loads: Loads) -> None:
    loads.turnstile.open()

    async def ask_at_once() -> list[int]:
        async with httpx.AsyncClient(base_url=server.url) as client:
            bodies = [client.post("/completion", json={"prompt": "abc", "n_predict": 3}) for _ in range(4)]
            return [response.status_code for response in await asyncio.gather(*bodies)]

    with server.client() as client:
        until(lambda: is_asleep(client))
    assert asyncio.run(ask_at_once()) == [200] * 4
    assert loads.num >= 2


def test_current_scales_outlast_the_sleep(client: httpx.Client) -> None:
    assert client.post("/lora-adapters", json=[{"id": 1, "scale": 0.5}]).status_code == 200
    until(lambda: is_asleep(client))
    assert [entry["scale"] for entry in client.get("/lora-adapters").json()] == [0.0, 0.5]


def test_a_model_that_cannot_be_loaded_again_is_an_error_and_tried_again(client: httpx.Client, loads: Loads) -> None:
    loads.turnstile.open()
    loads.error = OSError("no such file: model.gguf")
    response = client.post("/completion", json={"prompt": "abc"})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "no such file: model.gguf" in response.json()["error"]["message"]
    assert is_asleep(client)
    loads.error = None
    assert client.post("/completion", json={"prompt": "abc"}).status_code == 200


def test_idleness_counts_from_the_end_of_the_last_use() -> None:
    async def wait() -> list[bool]:
        now = 0.0
        users = EngineUsers(lambda: now)
        idle = asyncio.create_task(users.wait_for_none_since(10))
        await asyncio.sleep(0)
        early = idle.done()
        idle.cancel()
        with users:
            now = 20.0
            idle = asyncio.create_task(users.wait_for_none_since(10))
            await asyncio.sleep(0)
            busy = idle.done()
        now = 30.0
        await idle
        return [early, busy]

    assert asyncio.run(wait()) == [False, False]
