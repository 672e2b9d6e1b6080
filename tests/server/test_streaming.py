"""The life of an answer over real HTTP: headers at admission, disconnects at every stage, failures inside a stream."""

import json
import socket
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest

from scheduler.events import FinishReason
from tests.server.fakes import BODIES, NUM_SLOTS, FakeExecutor, Turnstile, fake_engine, fake_limits, says
from tests.server.live import LiveServer, frames, until

HANDLERS = ["/completion", "/v1/completions", "/v1/chat/completions"]
"""One route for each form of answer."""


class Held:
    """A server whose steps the test lets through one by one."""

    def __init__(self) -> None:
        self.turnstile = Turnstile()
        self.executor = FakeExecutor(turnstile=self.turnstile)
        self.server = LiveServer(lambda settings: fake_engine(self.executor, settings, fake_limits(max_waiting=2)))

    def num_finished(self, reason: FinishReason) -> float:
        """How many requests have ended so."""
        text, _ = self.server.engine.metrics.render("")
        [line] = [line for line in text.decode().splitlines() if line.startswith(_finished(reason))]
        return float(line.split()[-1])

    def occupy(self, client: httpx.Client) -> list["httpx.Response"]:
        """Fill every slot with a stream that stands still."""
        body = {"prompt": "a", "n_predict": 99, "stream": True}
        running = [
            client.send(client.build_request("POST", "/completion", json=body), stream=True) for _ in range(NUM_SLOTS)
        ]
        # Slots are given between steps.
        self.turnstile.let(1)
        self.turnstile.wait_for_step(2)
        assert self.server.num_free_slots == 0
        return running


def _finished(reason: FinishReason) -> str:
    return f'cohort_requests_finished_total{{reason="{reason}"}}'


@pytest.fixture
def held() -> Iterator[Held]:
    """A server that computes no step until it is let."""
    held = Held()
    with held.server:
        yield held
        held.turnstile.open()


@pytest.mark.parametrize("path", HANDLERS)
def test_headers_come_before_the_first_token(held: Held, path: str) -> None:
    with held.server.client() as client:
        with client.stream("POST", path, json=BODIES[path] | {"stream": True}) as response:
            assert response.status_code == 200
            assert held.executor.batches == []
        until(lambda: held.server.num_free_slots == NUM_SLOTS)
        held.turnstile.open()


@pytest.mark.parametrize("path", HANDLERS)
def test_a_client_that_leaves_before_the_first_token_frees_its_slot(held: Held, path: str) -> None:
    with held.server.client() as client:
        with client.stream("POST", path, json=BODIES[path] | {"stream": True}):
            held.turnstile.wait_for_step(1)
            assert held.server.num_free_slots == NUM_SLOTS - 1
        # No step is let through: the disconnect alone frees the slot.
        until(lambda: held.server.is_idle)
    assert held.num_finished(FinishReason.ABORT) == 1


@pytest.mark.parametrize("path", HANDLERS)
def test_a_client_that_leaves_in_the_middle_frees_its_slot(held: Held, path: str) -> None:
    with held.server.client() as client:
        with client.stream("POST", path, json=BODIES[path] | {"stream": True}) as response:
            held.turnstile.let(3)
            received = frames(response)
            next(received)
            next(received)
            held.turnstile.wait_for_step(4)
        until(lambda: held.server.is_idle)
    assert held.num_finished(FinishReason.ABORT) == 1


@pytest.mark.parametrize("path", HANDLERS)
def test_a_client_that_leaves_a_whole_answer_frees_its_slot(held: Held, path: str) -> None:
    with held.server.client() as client:
        request = client.build_request("POST", path, json=BODIES[path])
        leave = _send_and_leave(held.server, request)
        held.turnstile.let(2)
        held.turnstile.wait_for_step(3)
        leave()
        until(lambda: held.server.is_idle)
    assert held.num_finished(FinishReason.ABORT) == 1


def _send_and_leave(server: LiveServer, request: httpx.Request) -> Callable[[], None]:
    """Send `request` over a bare connection, and return what closes it without reading."""
    connection = socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0))
    head = f"POST {request.url.path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(request.content)}\r\n\r\n"
    connection.sendall(head.encode() + request.content)
    return connection.close


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_the_queue_is_forgotten(held: Held, stream: bool) -> None:
    with held.server.client() as client:
        running = held.occupy(client)
        request = client.build_request("POST", "/v1/completions", json={"prompt": "a", "stream": stream})
        leave = _send_and_leave(held.server, request)
        scheduler = held.server.engine.loop.scheduler
        until(lambda: len(scheduler.queue) == 1)
        leave()
        until(lambda: len(scheduler.queue) == 0)
        assert len(scheduler.running) == NUM_SLOTS
        for response in running:
            response.close()
        until(lambda: held.server.is_idle)


def test_a_client_that_leaves_ends_all_its_choices(held: Held) -> None:
    with held.server.client() as client:
        body = {"prompt": ["a", "b"], "n": 2, "stream": True}
        with client.stream("POST", "/v1/completions", json=body):
            until(lambda: held.server.num_free_slots == 0)
        until(lambda: held.server.is_idle)
    assert held.num_finished(FinishReason.ABORT) == 4


def test_a_full_queue_is_a_503_that_says_when_to_come_back(held: Held) -> None:
    with held.server.client() as client:
        running = held.occupy(client)
        scheduler = held.server.engine.loop.scheduler
        # Two may wait, so of three choices none is taken.
        response = client.post("/v1/completions", json={"prompt": "a", "n": 3, "stream": True})
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["type"]) == (503, 503, "unavailable_error")
        assert int(response.headers["retry-after"]) >= 1
        assert len(scheduler.queue) == 0
        for open_response in running:
            open_response.close()


@pytest.mark.parametrize("path", HANDLERS)
def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(held: Held, path: str) -> None:
    long = "x" * 300
    body = {"prompt": long} if "prompt" in BODIES[path] else {"messages": [{"role": "user", "content": long}]}
    with held.server.client() as client:
        response = client.post(path, json=body | {"stream": True})
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", 256)
    assert error["n_prompt_tokens"] > 300
    assert f"request ({error['n_prompt_tokens']} tokens) exceeds the available context size" in error["message"]


def test_a_failed_step_ends_its_requests_and_no_others(held: Held) -> None:
    with held.server.client() as client:
        held.executor.error = RuntimeError("the card is gone")
        lines: dict[str, list[str]] = {}

        def read(path: str, body: dict[str, object]) -> None:
            with client.stream("POST", path, json=body | {"stream": True}) as response:
                lines[path] = [line for line in response.iter_lines() if line]

        failing = threading.Thread(target=read, args=("/v1/completions", {"prompt": "a", "model": "adapter0"}))
        failing.start()
        held.turnstile.wait_for_step(1)
        passing = threading.Thread(target=read, args=("/completion", {"prompt": "b", "n_predict": 3}))
        passing.start()
        until(lambda: held.server.engine.loop.scheduler.num_requests == 2)
        held.turnstile.open()
        failing.join()
        passing.join()
        *_, last = lines["/v1/completions"]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert (error["code"], error["type"]) == (500, "server_error")
        assert "the card is gone" in error["message"]
        assert json.loads(lines["/completion"][-1].removeprefix("data: "))["tokens_predicted"] == 3


def test_a_failed_step_is_a_500_where_nothing_was_sent(held: Held) -> None:
    held.executor.error = RuntimeError("the card is gone")
    held.turnstile.open()
    with held.server.client() as client:
        response = client.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"])
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("stop", "text", "word"),
    [
        ("lo w", "hel", "lo w"),
        (["zz", "wor"], "hello ", "wor"),
        (["world!", "world"], "hello ", "world"),
        ("hello", "", "hello"),
        ("absent", "hello wörld.", ""),
        (["", "ö"], "hello w", "ö"),
    ],
)
def test_a_stop_string_across_tokens_ends_the_answer(stop: object, text: str, word: str, stream: bool) -> None:
    answer = "hello wörld." if word in ("", "ö") else "hello world."
    executor = FakeExecutor(says(answer))
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as client:
        body = {"prompt": "a", "n_predict": 50, "stop": stop, "stream": stream}
        with client.stream("POST", "/completion", json=body) as response:
            if stream:
                *partials, final = frames(response)
                content = "".join(str(frame["content"]) for frame in partials)
            else:
                final = json.loads(response.read())
                content = str(final["content"])
        assert (content, final["stopping_word"]) == (text, word)
        assert final["stop_type"] == ("word" if word else "eos")
        until(lambda: server.is_idle)


def test_a_stop_string_frees_the_slot_at_once(held: Held) -> None:
    held.executor.answer = says("hello world")
    with held.server.client() as client:
        held.turnstile.let(5)
        body = {"prompt": "a", "n_predict": 50, "stop": "lo", "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            texts = [frame["choices"][0]["text"] for frame in frames(response)]
        # The sixth step stands still, and the answer is complete.
        assert "".join(texts) == "hel"
        until(lambda: held.server.is_idle)
    assert held.num_finished(FinishReason.WORD) == 1


def test_a_character_of_several_tokens_is_sent_whole() -> None:
    executor = FakeExecutor(says("aé€😀"))
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as client:
        body = {"prompt": "a", "n_predict": 50, "stream": True}
        with client.stream("POST", "/completion", json=body) as response:
            *partials, final = frames(response)
        assert [frame["content"] for frame in partials] == ["a", "é", "€", "😀", ""]
        assert [len(frame["tokens"]) for frame in partials] == [1, 2, 3, 4, 1]
        assert final["tokens_predicted"] == 11
        # Cut in the middle of a character.
        cut = client.post("/completion", json={"prompt": "a", "n_predict": 5}).json()
        assert cut["content"] == "aé\ufffd"
