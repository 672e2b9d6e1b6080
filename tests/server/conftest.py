"""A server with the fake model, shared by the tests of a file that leave it as they found it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.fakes import FakeExecutor, fake_engine
from tests.server.live import LiveServer
from tests.server.swapping import Swapping


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """Two adapters at scale 1, four slots; the model says the alphabet."""
    with LiveServer(lambda settings: fake_engine(FakeExecutor(), settings)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[httpx.Client]:
    """A client of `server`."""
    with server.client() as opened:
        yield opened


@pytest.fixture
def swapping(tmp_path: Path) -> Iterator[Swapping]:
    """A server that may load models from `tmp_path`."""
    swapping = Swapping(tmp_path)
    with swapping.server:
        yield swapping
        swapping.may_load.set()
        swapping.turnstile.open()
