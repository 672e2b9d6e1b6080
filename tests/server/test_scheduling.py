"""The scheduler's promises over real HTTP: late lists, several choices, named slots, pauses, failures beside them.

The model is a fake whose steps wait for the test. `--max-wait 0` makes a list overdue as soon as it waits, so that no
test waits for a clock.
"""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scheduler.batch import Row, RowFault, Sample
from scheduler.cohort import CohortKey
from scheduler.events import Finished, FinishReason
from tests.server.fakes import (
    NUM_SLOTS,
    TIMEOUT_S,
    FakeExecutor,
    Turnstile,
    alphabet,
    fake_engine,
    fake_limits,
    fake_settings,
    key_of,
)
from tests.server.live import LiveServer, frames, until

A, B = [{"id": 0, "scale": 1}], [{"id": 1, "scale": 1}]


class FaultyExecutor(FakeExecutor):
    """Can choose no token after a prompt that ends with `?`."""

    def sample(self, key: CohortKey, row: Row) -> Sample | RowFault:
        if row.token_ids[-1] == ord("?"):
            return RowFault(row.request_id, "no token can be chosen")
        return super().sample(key, row)


class Reader:
    """A client that reads its answer on a thread of its own."""

    def __init__(self, client: httpx.Client, body: dict[str, object], path: str = "/completion") -> None:
        self.frames: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, args=(client, path, body | {"stream": True}))
        self._thread.start()

    def _read(self, client: httpx.Client, path: str, body: dict[str, object]) -> None:
        with client.stream("POST", path, json=body) as response:
            self.frames += frames(response)

    @property
    def text(self) -> str:
        """What was said, once the answer is complete."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the answer does not end"
        return "".join(frame["content"] for frame in self.frames if "content" in frame)


class Held:
    """Four slots, fair to the token, and a client."""

    def __init__(self) -> None:
        self.turnstile = Turnstile()
        self.executor = FaultyExecutor(turnstile=self.turnstile)
        settings = fake_settings().model_copy(update={"max_wait": 0.0, "fair_slack": 0.0})
        limits = fake_limits(max_waiting=4)
        self.server = LiveServer(lambda settings: fake_engine(self.executor, settings, limits), settings)

    @property
    def paused(self) -> list[int]:
        """Ids of paused requests."""
        return list(self.server.engine.loop.scheduler.paused)

    def key(self, lora: object) -> CohortKey:
        """The key of an adapter list."""
        return key_of(self.server.engine, lora, None)

    def stream(self, client: httpx.Client, lora: object, n_predict: int, **fields: object) -> httpx.Response:
        """Open a stream and do not read it."""
        body = {"prompt": "a", "n_predict": n_predict, "stream": True, "lora": lora} | fields
        return client.send(client.build_request("POST", "/completion", json=body), stream=True)

    def occupy(self, client: httpx.Client, n_predict: int) -> list[httpx.Response]:
        """Fill every slot with a stream of list A, each in its first or second token."""
        running = [self.stream(client, A, n_predict) for _ in range(NUM_SLOTS)]
        self.turnstile.let(2)
        self.turnstile.wait_for_step(3)
        assert self.server.num_free_slots == 0
        return running

    def step_until_paused(self) -> int:
        """Let steps through until a request is paused, and return its id."""
        while not self.paused:
            self.step()
        [request_id] = self.paused
        return request_id

    def step(self) -> None:
        """Let one step through, and wait for the next to be planned."""
        self.turnstile.let(1)
        until(lambda: self.turnstile.is_waiting)


@pytest.fixture
def held() -> Iterator[Held]:
    """A server that computes no step until it is let."""
    held = Held()
    with held.server:
        yield held
        held.turnstile.open()


@pytest.fixture
def client(held: Held) -> Iterator[httpx.Client]:
    """A client of it."""
    with held.server.client() as client:
        yield client


def content(response: httpx.Response) -> str:
    """The text of a stream."""
    return "".join(frame["content"] for frame in frames(response))


def test_a_late_list_is_served_while_all_slots_generate_and_nobody_notices(held: Held, client: httpx.Client) -> None:
    running = held.occupy(client, n_predict=200)
    late = Reader(client, {"prompt": "a", "n_predict": 3, "lora": B})
    until(lambda: len(held.server.engine.loop.scheduler.queue) == 1)
    held.step_until_paused()
    samples = client.get("/metrics").text
    assert "cohort_pauses_total 1.0" in samples
    assert "cohort_requests_paused 1.0" in samples
    assert 'vllm:num_requests_waiting{engine="0",model_name="fake"} 1.0' in samples
    held.turnstile.let(10)  # a few rounds: far less than the others still generate
    assert late.text == alphabet(held.key(B), 3)
    held.turnstile.open()
    assert [content(response) for response in running] == [alphabet(held.key(A), 200)] * NUM_SLOTS
    until(lambda: held.server.is_idle)
    samples = client.get("/metrics").text
    assert "cohort_requests_paused 0.0" in samples
    assert "cohort_queue_time_seconds_count 6.0" in samples  # five admissions and a resumption


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_two_choices_are_served_beside_clients_that_loop(held: Held, path: str) -> None:
    held.turnstile.open()
    is_over = threading.Event()

    def loop() -> None:
        with held.server.client() as client:
            while not is_over.is_set():
                assert client.post("/completion", json={"prompt": "a", "lora": A}).status_code == 200

    loops = [threading.Thread(target=loop) for _ in range(3)]
    for thread in loops:
        thread.start()
    try:
        with held.server.client() as client:
            for _ in range(5):
                answer = client.post(path, json={"prompt": "a", "n": 2, "lora": B, "max_tokens": 20}).json()
                choices = answer["choices"] if path == "/v1/completions" else answer
                assert [choice.get("text", choice.get("content")) for choice in choices] == [
                    alphabet(held.key(B), 20)
                ] * 2
    finally:
        is_over.set()
        for thread in loops:
            thread.join(TIMEOUT_S)
    until(lambda: held.server.is_idle)


def test_two_choices_are_served_beside_long_generations(held: Held, client: httpx.Client) -> None:
    running = held.occupy(client, n_predict=200)
    choices = Reader(client, {"prompt": "a", "n": 2, "n_predict": 3, "lora": B})
    until(lambda: len(held.server.engine.loop.scheduler.queue) == 2)
    held.turnstile.let(30)
    assert len(choices.text) == 6
    assert held.server.engine.loop.scheduler.num_requests == NUM_SLOTS
    held.turnstile.open()
    assert [content(response) for response in running] == [alphabet(held.key(A), 200)] * NUM_SLOTS


def test_a_named_slot_that_is_busy_delays_nobody_else(held: Held, client: httpx.Client) -> None:
    first = held.stream(client, A, 100, id_slot=0)
    held.turnstile.let(1)
    held.turnstile.wait_for_step(2)
    named = Reader(client, {"prompt": "a", "n_predict": 3, "lora": A, "id_slot": 0})
    scheduler = held.server.engine.loop.scheduler
    until(lambda: len(scheduler.queue) == 1)
    for lora in (A, B):
        other = Reader(client, {"prompt": "a", "n_predict": 3, "lora": lora})
        until(lambda: scheduler.num_requests == 3)  # else the first one could use up the steps before it comes
        held.turnstile.let(10)
        assert other.text == alphabet(held.key(lora), 3)
        assert {frame["id_slot"] for frame in other.frames} == {1}
    assert [request.slot_id_wanted for request in scheduler.queue] == [0]
    held.turnstile.open()
    assert content(first) == alphabet(held.key(A), 100)
    assert named.text == alphabet(held.key(A), 3)
    assert {frame["id_slot"] for frame in named.frames} == {0}


def test_a_client_that_leaves_while_it_is_paused_gives_its_blocks_back(held: Held, client: httpx.Client) -> None:
    running = held.occupy(client, n_predict=100)
    late = held.stream(client, B, 5)
    until(lambda: len(held.server.engine.loop.scheduler.queue) == 1)
    leaver = running.pop(held.step_until_paused())  # ids count from 0 in order of arrival
    leaver.close()
    until(lambda: held.paused == [] and held.server.engine.loop.scheduler.num_requests == NUM_SLOTS)
    held.turnstile.open()
    assert content(late) == alphabet(held.key(B), 5)
    assert [content(response) for response in running] == [alphabet(held.key(A), 100)] * (NUM_SLOTS - 1)
    until(lambda: held.server.is_idle)


def test_a_failed_step_leaves_paused_requests_of_its_list_unharmed(held: Held, client: httpx.Client) -> None:
    running = [Reader(client, {"prompt": "a", "n_predict": 100, "lora": A}) for _ in range(NUM_SLOTS)]
    until(lambda: held.server.engine.loop.scheduler.num_requests == NUM_SLOTS)
    held.turnstile.let(2)
    held.turnstile.wait_for_step(3)
    late = Reader(client, {"prompt": "a", "n_predict": 5, "lora": B})
    until(lambda: len(held.server.engine.loop.scheduler.queue) == 1)
    held.step_until_paused()
    scheduler = held.server.engine.loop.scheduler
    while scheduler.in_flight is None or scheduler.in_flight.key != held.key(A):
        held.step()
    num_rows = len(scheduler.in_flight.rows)
    held.executor.error = RuntimeError("the card is gone")
    held.turnstile.open()
    texts = [reader.text for reader in running]
    survivors = [text for reader, text in zip(running, texts, strict=True) if "error" not in reader.frames[-1]]
    assert survivors == [alphabet(held.key(A), 100)] * (NUM_SLOTS - num_rows)
    assert 1 <= num_rows < NUM_SLOTS
    assert late.text == alphabet(held.key(B), 5)
    until(lambda: held.server.is_idle)


def test_a_request_without_a_token_to_choose_fails_alone(held: Held, client: httpx.Client) -> None:
    good = [Reader(client, {"prompt": "a", "n_predict": 20, "lora": A}) for _ in range(2)]
    bad = Reader(client, {"prompt": "a?", "n_predict": 20, "lora": A})
    until(lambda: held.server.engine.loop.scheduler.num_requests == 3)
    held.turnstile.open()
    assert [reader.text for reader in good] == [alphabet(held.key(A), 20)] * 2
    assert bad.text == ""
    assert bad.frames[-1]["error"]["message"] == "no token can be chosen"
    until(lambda: held.server.is_idle)
    response = client.post("/v1/completions", json={"prompt": "a?"})
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")


def test_choices_that_do_not_all_fit_the_queue_leave_nothing_behind(held: Held, client: httpx.Client) -> None:
    running = held.occupy(client, n_predict=50)
    scheduler = held.server.engine.loop.scheduler
    waiting = held.stream(client, A, 2, n=2)
    until(lambda: len(scheduler.queue) == 2)
    held.server.engine.departures.observe(Finished(0, (), FinishReason.EOS, "", 1, 1, 0, 0.0, time.monotonic() - 7.5))
    for n, stream in ((3, False), (3, True), (4, False)):
        response = client.post("/completion", json={"prompt": "a", "n": n, "lora": B, "stream": stream})
        assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")
        # Two of the choices fit; one request left in the last 7.5 s or a little more.
        assert int(response.headers["retry-after"]) >= (n - 2) * 7.5
        assert [request.key for request in scheduler.queue] == [held.key(A)] * 2
    held.turnstile.open()
    assert json.loads(client.post("/completion", json={"prompt": "a", "n_predict": 2, "lora": B}).text)["stop"]
    assert [content(response) for response in running] == [alphabet(held.key(A), 50)] * NUM_SLOTS
    assert sum(len(frame["content"]) for frame in frames(waiting)) == 4
    until(lambda: held.server.is_idle)
