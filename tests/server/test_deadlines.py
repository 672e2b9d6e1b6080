"""Limits in time: `--request-timeout` and `t_max_predict_ms`, over real HTTP."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.server.fakes import (
    BODIES,
    NUM_SLOTS,
    FakeExecutor,
    Turnstile,
    alphabet,
    current_key,
    fake_engine,
    fake_settings,
    says,
)
from tests.server.live import LiveServer, frames, until

HANDLERS = ["/completion", "/v1/completions", "/v1/chat/completions"]


@contextmanager
def held(timeout_s: float) -> Iterator[tuple[LiveServer, Turnstile, httpx.Client]]:
    """A server whose steps wait for the turnstile, its time limit, and a client."""
    turnstile = Turnstile()
    settings = fake_settings().model_copy(update={"request_timeout": timeout_s})
    executor = FakeExecutor(turnstile=turnstile)
    with LiveServer(lambda settings: fake_engine(executor, settings), settings) as server, server.client() as client:
        yield server, turnstile, client
        turnstile.open()


@contextmanager
def over_at_step(server: LiveServer, turnstile: Turnstile, number: int) -> Iterator[None]:
    """Let time limits be over when the server has come to a step, whose tokens then come too late."""

    def advance() -> None:
        turnstile.wait_for_step(number)
        server.advance(1000.0)

    thread = threading.Thread(target=advance)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize("path", HANDLERS)
def test_a_request_without_a_token_in_time_is_a_503(path: str) -> None:
    with held(0.05) as (server, _, client):
        # No step ever ends, so nothing but the time limit can answer.
        response = client.post(path, json=BODIES[path])
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (503, "unavailable_error")
        assert error["message"] == "no token was generated within 0.05 s; try again later"
        assert "retry-after" in response.headers
        with client.stream("POST", path, json=BODIES[path] | {"stream": True}) as stream:
            assert stream.status_code == 200
            last = list(frames(stream))[-1]
        assert last == {"error": error}
        until(lambda: server.is_idle)
        assert 'cohort_requests_finished_total{reason="timeout"} 2.0' in client.get("/metrics").text


def test_the_time_limit_counts_in_the_queue() -> None:
    with held(0.05) as (server, _, client):
        streams = [
            client.send(client.build_request("POST", "/completion", json={"prompt": "a", "stream": True}), stream=True)
            for _ in range(NUM_SLOTS + 1)
        ]
        for stream in streams:
            assert list(frames(stream))[-1]["error"]["code"] == 503
        until(lambda: server.is_idle)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_has_begun_ends_in_time_with_what_it_has(stream: bool) -> None:
    with held(100.0) as (server, turnstile, client), over_at_step(server, turnstile, 4):
        turnstile.let(3)
        with client.stream("POST", "/completion", json={"prompt": "a", "stream": stream}) as response:
            assert response.status_code == 200
            parts = list(frames(response)) if stream else [json.loads(response.read())]
        expected = alphabet(current_key(server.engine), 3)
        assert "".join(part["content"] for part in parts) == expected
        assert (parts[-1]["stop_type"], parts[-1]["tokens_predicted"]) == ("limit", 3)
        until(lambda: server.is_idle)


def test_choices_end_together() -> None:
    with held(100.0) as (server, turnstile, client), over_at_step(server, turnstile, 2):
        # A step computes 64 tokens: the second prompt is not done when the first has its token.
        turnstile.let(1)
        response = client.post("/v1/completions", json={"prompt": ["a", "x" * 200], "max_tokens": 5})
        assert response.status_code == 200
        first, second = response.json()["choices"]
        assert (len(first["text"]), first["finish_reason"]) == (1, "length")
        assert (second["text"], second["finish_reason"]) == ("", "length")
        until(lambda: server.is_idle)


def test_an_answer_in_time_is_whole() -> None:
    with held(20.0) as (_, turnstile, client):
        turnstile.open()
        assert client.post("/completion", json={"prompt": "a"}).json()["tokens_predicted"] == 8


@pytest.mark.parametrize("path", HANDLERS)
def test_generation_ends_after_its_time_once_there_is_a_new_line(path: str) -> None:
    turnstile = Turnstile()
    executor = FakeExecutor(says("a\nbcdef"), turnstile)
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as client:
        turnstile.let(1)
        body = BODIES[path] | {"t_max_predict_ms": 1, "stream": True}
        with client.stream("POST", path, json=body) as response:
            turnstile.wait_for_step(2)
            first_s = time.monotonic()
            until(lambda: time.monotonic() > first_s + 0.005)
            turnstile.let(1)
            # The third step stands still, and the answer is complete.
            *_, last = frames(response)
        if path == "/completion":
            assert (last["stop_type"], last["tokens_predicted"]) == ("limit", 2)
        else:
            assert last["choices"][0]["finish_reason"] == "length"
        until(lambda: server.is_idle)
        turnstile.open()
        for no_limit in (0, -1, 60_000):
            whole = client.post(path, json=BODIES[path] | {"t_max_predict_ms": no_limit, "n_predict": 20}).json()
            assert (whole["usage"]["completion_tokens"] if "usage" in whole else whole["tokens_predicted"]) == 8


def test_generation_without_a_new_line_has_no_time_limit(client: httpx.Client) -> None:
    answer = client.post("/completion", json={"prompt": "a", "t_max_predict_ms": 1, "n_predict": 200}).json()
    assert answer["tokens_predicted"] == 200


def test_a_time_limit_that_is_no_number_is_refused(client: httpx.Client) -> None:
    response = client.post("/completion", json={"prompt": "a", "t_max_predict_ms": "1"})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "Field 't_max_predict_ms': type must be number, but is string"
