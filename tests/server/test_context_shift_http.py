"""Answers that go on in a full context, over HTTP."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scheduler.batch import Row, RowFault, Sample
from scheduler.cohort import CohortKey
from tests.server.fakes import BODIES, N_CTX, FakeExecutor, fake_engine, fake_settings
from tests.server.live import LiveServer, frames


class Counting(FakeExecutor):
    """Says the alphabet by the number of tokens that a request has had, and keeps the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []

    def sample(self, key: CohortKey, row: Row) -> Sample | RowFault:
        """Return the next letter."""
        self.rows.append(row)
        return Sample(row.request_id, ord("a") + row.draw % 26)


@pytest.fixture(scope="module")
def executor() -> Counting:
    return Counting()


@pytest.fixture(scope="module")
def client(executor: Counting) -> Iterator[httpx.Client]:
    settings = fake_settings().model_copy(update={"context_shift": True, "n_predict": 300})
    with LiveServer(lambda settings: fake_engine(executor, settings), settings) as server, server.client() as opened:
        yield opened


def letters(start: int, count: int) -> str:
    return "".join(chr(ord("a") + number % 26) for number in range(start, start + count))


@pytest.mark.parametrize("path", BODIES)
def test_an_answer_goes_on_in_a_full_context(client: httpx.Client, executor: Counting, path: str) -> None:
    executor.rows.clear()
    body = client.post(path, json=BODIES[path] | {"verbose": True}).json()
    native = body.get("__verbose", body)
    num_prompt = native["tokens_evaluated"]
    assert native["content"] == letters(num_prompt, 300)
    assert (native["truncated"], native["stop_type"], native["tokens_predicted"]) == (True, "limit", 300)
    assert max(row.end for row in executor.rows) == N_CTX - 1
    assert {row.num_dropped for row in executor.rows} == {0, 127}


def test_what_a_request_keeps_and_gives_up_is_its_own_to_say(client: httpx.Client, executor: Counting) -> None:
    def dropped(**fields: Any) -> list[int]:
        """How many tokens are gone after each shift."""
        executor.rows.clear()
        response = client.post("/completion", json={"prompt": "x" * 200, "n_predict": 100} | fields)
        assert response.json()["truncated"]
        return sorted({row.num_dropped for row in executor.rows})

    assert dropped() == [0, 127]
    assert dropped(n_keep=55, n_discard=30) == [0, 30, 60]
    assert dropped(n_keep=-1) == [0, 27, 54]


def test_shifts_are_counted(client: httpx.Client) -> None:
    def num_shifts() -> float:
        [line] = [line for line in client.get("/metrics").text.splitlines() if line.startswith("cohort_context_shifts")]
        name, value = line.split()
        assert name == "cohort_context_shifts_total"
        return float(value)

    before = num_shifts()
    client.post("/completion", json={"prompt": "x" * 200, "n_predict": 100, "n_keep": 55, "n_discard": 30})
    assert num_shifts() == before + 2


def test_a_stream_holds_every_token_once(client: httpx.Client) -> None:
    body = {"prompt": "ab", "n_predict": 400, "stream": True, "n": 2}
    texts = ["", ""]
    with client.stream("POST", "/completion", json=body) as response:
        for frame in frames(response):
            texts[frame["index"]] += frame["content"]
    assert texts == [letters(3, 400)] * 2


def test_without_it_the_context_ends_the_answer() -> None:
    with LiveServer(lambda settings: fake_engine(Counting(), settings)) as server, server.client() as client:
        answer = client.post("/completion", json={"prompt": "ab", "n_predict": -1, "n_keep": 5, "n_discard": 5}).json()
        assert (answer["truncated"], answer["stop_type"]) == (True, "limit")
        assert answer["tokens_predicted"] == N_CTX - 3
        assert not client.post("/completion", json={"prompt": "ab", "n_predict": 5}).json()["truncated"]


def test_an_answer_without_a_limit_ends_with_the_trained_context(client: httpx.Client) -> None:
    answer = client.post("/completion", json={"prompt": "ab", "n_predict": -1}).json()
    assert (answer["tokens_predicted"], answer["stop_type"]) == (1024, "limit")
