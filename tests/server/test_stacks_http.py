"""Requests to a server with a real model: the thread of the steps never builds a stack of adapters, and no list that is
ready waits for one that is being built.
"""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from peft import LoraConfig

from model.lora import LoraStack, stack_adapters
from server.assembly import load_engine
from tests.model.adapter_makers import make_peft_adapter
from tests.model.tiny import make_model
from tests.server.fakes import TIMEOUT_S
from tests.server.live import LiveServer, frames, until
from tests.server.test_activated import Lora, ask, settings_for

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

PROMPT = [5, 17, 33, 120]
READY: Lora = [{"id": 0, "scale": 0.25}]


class Builds:
    """Stands in for the building of stacks: notes the threads that build, and lets them end when the test says so."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, *parts: Any) -> LoraStack:
        self.threads.append(threading.current_thread().name)
        assert self.may_end.wait(TIMEOUT_S)
        return stack_adapters(*parts)

    @property
    def by_steps(self) -> list[str]:
        """Those on the thread of the steps."""
        return [name for name in self.threads if name.startswith("step")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A tiny llama and two adapters at scale 1."""
    folder = tmp_path_factory.mktemp("stacks")
    base = make_model("llama", folder / "base")
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
    adapters = [
        make_peft_adapter(base, folder / name, config, seed=seed) for seed, name in enumerate(("first", "second"))
    ]
    with LiveServer(load_engine, settings_for(folder / "base", adapters)) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    stand_in = Builds()
    monkeypatch.setattr("model.lora_cache.stack_adapters", stand_in)
    return stand_in


def test_the_thread_of_the_steps_builds_no_stack(client: httpx.Client, builds: Builds) -> None:
    streamed = {"prompt": PROMPT, "n_predict": 60, "ignore_eos": True, "stream": True, "lora": [{"id": 1, "scale": 2}]}
    with client.stream("POST", "/completion", json=streamed) as running:
        received = frames(running)
        next(received)
        for scale in (0.5, 0.75, 0.5):
            ask(client, PROMPT, [{"id": 0, "scale": scale}])
        assert client.post("/lora-adapters", json=[{"id": 0, "scale": 3}, {"id": 1, "scale": 4}]).status_code == 200
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "n": 2}
        assert client.post("/v1/chat/completions", json=chat).status_code == 200
        *_, last = received
        assert last["stop"]
    assert len(builds.threads) == 4
    assert builds.by_steps == []


def test_ready_lists_do_not_wait_for_one_that_is_built(client: httpx.Client, builds: Builds) -> None:
    ask(client, PROMPT, READY)
    builds.may_end.clear()
    new: Lora = [{"id": 0, "scale": 5}, {"id": 1, "scale": 5}]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, client, PROMPT, new)
        try:
            until(lambda: len(builds.threads) == 2)
            ask(client, PROMPT, READY)
            ask(client, PROMPT, [{"id": 0, "scale": 0}])
            assert not waiting.done()
        finally:
            builds.may_end.set()
        assert waiting.result()["tokens"]
    assert len(builds.threads) == 2
    assert builds.by_steps == []


def test_a_client_that_leaves_while_its_list_is_built_leaves_nothing(server: LiveServer, builds: Builds) -> None:
    builds.may_end.clear()
    body = json.dumps({"prompt": PROMPT, "lora": [{"id": 1, "scale": 6}]})
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port or 0)) as connection:
        head = f"POST /completion HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        until(lambda: len(builds.threads) == 1)
    try:
        until(lambda: server.engine.adapters.residency.num_references == 0)
    finally:
        builds.may_end.set()
    assert server.is_idle
    assert builds.by_steps == []
