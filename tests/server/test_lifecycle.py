"""Start and end of a server: load failures, graceful shutdown, signals of a real process."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.adapters.weights import AdapterWeight
from server.engine import Engine
from server.lifecycle import listen, read_api_keys, serve
from server.settings import Settings
from tests.server.fakes import (
    BODIES,
    TIMEOUT_S,
    FakeExecutor,
    Turnstile,
    alphabet,
    current_key,
    fake_engine,
    fake_settings,
)
from tests.server.live import LiveServer, frames, until


def test_a_load_failure_is_one_line_and_exit_code_1(caplog: pytest.LogCaptureFixture) -> None:
    def load(settings: Settings) -> Engine:
        raise ValueError(f"{settings.model}: there is no such file or directory")

    server = LiveServer(load, wait_for_engine=False)
    with server:
        server.join()
    assert server.exit_code == 1
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in errors] == ["cannot start: fake.gguf: there is no such file or directory"]
    assert errors[0].exc_info is None


def test_an_unknown_adapter_in_a_weight_is_one_line_and_exit_code_1(caplog: pytest.LogCaptureFixture) -> None:
    settings = fake_settings().model_copy(update={"adapter_weight": (AdapterWeight("pirate", 2.0),)})
    assert serve(settings, lambda settings: fake_engine(FakeExecutor(), settings)) == 1
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in errors] == [
        "cannot start: --adapter-weight names 'pirate'; there are base, adapter0, adapter1"
    ]


class Stopping:
    """A server that was told to stop while one stream runs."""

    def __init__(self, grace_s: float) -> None:
        self.turnstile = Turnstile()
        settings = fake_settings().model_copy(update={"shutdown_grace": grace_s})
        executor = FakeExecutor(turnstile=self.turnstile)
        self.server = LiveServer(lambda settings: fake_engine(executor, settings), settings)


def test_running_requests_finish_and_new_ones_are_refused() -> None:
    stopping = Stopping(grace_s=20)
    server, turnstile = stopping.server, stopping.turnstile
    with server, server.client() as client, server.client() as other:
        expected = alphabet(current_key(server.engine), 5)
        body = {"prompt": "a", "n_predict": 5, "stream": True}
        with client.stream("POST", "/completion", json=body) as response:
            turnstile.let(1)
            received = frames(response)
            first = next(received)
            server.stop()
            until(lambda: server.service.door.is_closing)
            for path in BODIES:
                for stream in (True, False):
                    refused = other.post(path, json=BODIES[path] | {"stream": stream})
                    error = {"code": 503, "message": "the server is shutting down", "type": "unavailable_error"}
                    assert (refused.status_code, refused.json()) == (503, {"error": error})
            assert other.get("/health").status_code == 503
            assert other.get("/lora-adapters").status_code == 200
            turnstile.open()
            rest = list(received)
        assert "".join(str(frame["content"]) for frame in [first, *rest]) == expected
        assert rest[-1]["stop_type"] == "limit"
    assert server.exit_code == 0


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
def test_after_the_grace_streams_end_with_an_error(path: str) -> None:
    stopping = Stopping(grace_s=0)
    server, turnstile = stopping.server, stopping.turnstile
    with server, server.client() as client:
        with client.stream("POST", path, json=BODIES[path] | {"stream": True}) as response:
            turnstile.let(1)
            turnstile.wait_for_step(2)
            server.stop()
            lines = [line for line in response.iter_lines() if line]
        turnstile.open()
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["message"]) == (500, "the server is shutting down")
    assert server.exit_code == 0


def test_after_the_grace_whole_answers_are_errors() -> None:
    stopping = Stopping(grace_s=0)
    server, turnstile = stopping.server, stopping.turnstile
    responses: list[httpx.Response] = []
    with server, server.client() as client:
        asking = threading.Thread(target=lambda: responses.append(client.post("/completion", json={"prompt": "a"})))
        asking.start()
        turnstile.wait_for_step(1)
        server.stop()
        asking.join()
        turnstile.open()
    assert responses[0].status_code == 500
    assert server.exit_code == 0


def test_api_keys_come_from_the_setting_and_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("three\n\n four \n", encoding="utf-8")
    settings = fake_settings().model_copy(update={"api_key": "one,two", "api_key_file": file})
    assert read_api_keys(settings) == {"one", "two", "three", "four"}
    assert read_api_keys(fake_settings()) == frozenset()


def test_it_listens_on_every_address_it_is_given_ipv6_too() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    listeners = listen(fake_settings().model_copy(update={"host": "127.0.0.1, ::1"}))
    assert [listener.getsockname()[0] for listener in listeners] == ["127.0.0.1", "::1"]
    for listener in listeners:
        listener.close()


def test_an_address_that_cannot_be_listened_on_leaves_none_open() -> None:
    [taken] = listen(fake_settings())
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listen(fake_settings().model_copy(update={"host": "127.0.0.2,127.0.0.1", "port": port}))
        for listener in listen(fake_settings().model_copy(update={"host": "127.0.0.2", "port": port})):
            listener.close()


class Process:
    """`cohort serve` around the fake model, as a process of its own."""

    def __init__(self, model: str, last_line: str) -> None:
        """Wait until it writes a line with `last_line`."""
        command = [sys.executable, "-m", "tests.server.fake_main", "serve", "-m", model, "--port", "0", "-n", "-1"]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.url = ""
        self.log: list[str] = []
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.log.append(line)
            if "listening on " in line:
                self.url = line.split("listening on ")[1].split(",")[0]
            if last_line in line:
                break

    def end(self) -> int:
        """Wait for the end and return the exit code."""
        _, rest = self.popen.communicate(timeout=TIMEOUT_S)
        self.log += rest.splitlines()
        return self.popen.returncode


@pytest.fixture
def process() -> Iterator[Process]:
    """A running process, which is killed where the test leaves it behind."""
    process = Process("fake.gguf", "ready: ")
    yield process
    process.popen.kill()
    process.popen.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_process_with_code_0(process: Process, number: signal.Signals) -> None:
    assert httpx.get(f"{process.url}/health").status_code == 200
    process.popen.send_signal(number)
    assert process.end() == 0
    assert not any("Traceback" in line for line in process.log)


def test_a_second_signal_ends_at_once(process: Process) -> None:
    with httpx.stream("POST", f"{process.url}/completion", json={"prompt": "a", "stream": True}) as response:
        received = frames(response)
        next(received)
        process.popen.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{process.url}/health").status_code == 503)
        assert process.popen.poll() is None
        process.popen.send_signal(signal.SIGTERM)
        assert process.end() == 0


def test_a_signal_ends_a_process_that_loads() -> None:
    process = Process("never", "listening on ")
    try:
        assert httpx.get(f"{process.url}/health").status_code == 503
        process.popen.send_signal(signal.SIGTERM)
        assert process.end() == 0
    finally:
        process.popen.kill()


def test_a_port_in_use_is_one_line_and_exit_code_1(caplog: pytest.LogCaptureFixture) -> None:
    [taken] = listen(fake_settings())
    with taken:
        settings = fake_settings().model_copy(update={"port": taken.getsockname()[1]})
        assert serve(settings, lambda settings: fake_engine(FakeExecutor(), settings)) == 1
    [error] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "cannot start" in error.getMessage()
    assert "in use" in error.getMessage()
    assert error.exc_info is None


def test_tokens_do_not_wait_for_acknowledgements() -> None:
    [listener] = listen(fake_settings())
    with listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
