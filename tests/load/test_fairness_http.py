"""Lists that come late to a busy demo server: the real model, default settings but four slots, real clients.

Run by `make test-long`; `-s` shows the figures. The same promises with a fake model and to the step:
tests/server/test_scheduling.py; with any arrivals: tests/scheduler.
"""

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.load.bench import FOUR_LISTS, request_body
from tests.load.client import Stream, get_json, get_text, stream_completion
from tests.load.demo_server import demo_server

pytestmark = pytest.mark.slow

_, A, B, _ = FOUR_LISTS
NUM_SLOTS, NUM_LOOPING, NUM_QUEUED = 4, 3, 50
MAX_WAIT_S = 1.0
"""The default of --max-wait."""
HTTP_S = 0.03
"""What sending, parsing and tokenising a request, and delivering a token, may take besides the steps: server and
clients share two cores."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with demo_server("-np", str(NUM_SLOTS)) as port:
        yield port


class Crowd:
    """Streams of one list that run until they are told to hang up; notes when each token came."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []

    def steps_between(self, first_s: float, last_s: float) -> int:
        """How many tokens the stream that got most got in that time: each is another step of the list."""
        return max(sum(first_s < t <= last_s for t in stream.token_times_s) for stream in self.streams)

    def longest_gap_s(self, first_s: float, last_s: float) -> float:
        """The longest time between two tokens of one stream, of those that touch that time."""
        gaps = (
            later - earlier
            for stream in self.streams
            for earlier, later in itertools.pairwise(stream.token_times_s)
            if later > first_s and earlier < last_s
        )
        return max(gaps)


async def num_in_the_middle(port: int) -> int:
    """How many running requests have 20 tokens or more."""
    slots = await get_json(port, "/slots")
    return sum(slot["is_processing"] and slot["next_token"][0]["n_decoded"] >= 20 for slot in slots)


@asynccontextmanager
async def crowd(port: int, num_clients: int, num_tokens: int) -> AsyncIterator[Crowd]:
    """Clients of list A that send one request after the other, all the time; entered when the running ones are in the
    middle of their answers."""
    members = Crowd()

    async def loop(index: int) -> None:
        rng = random.Random(index)
        while True:
            stream = Stream(time.perf_counter())
            members.streams.append(stream)
            await stream_completion(port, request_body(rng, 20, num_tokens, A), stream=stream)

    tasks = [asyncio.create_task(loop(index)) for index in range(num_clients)]
    try:
        while await num_in_the_middle(port) < min(num_clients, NUM_SLOTS):
            pass
        yield members
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while "cohort_requests_running 0.0" not in await get_text(port, "/metrics"):
            pass


def visitor(index: int, num_tokens: int) -> dict[str, Any]:
    """A request of list B with a prompt that nobody has sent before."""
    return request_body(random.Random(1000 + index), 20, num_tokens, B)


def test_beside_looping_clients_a_first_token_comes_within_two_rounds(port: int) -> None:
    async def visit(index: int, others: Crowd) -> tuple[float, float, int]:
        stream = await stream_completion(port, visitor(index, 8))
        first_s, last_s = stream.token_times_s[0], stream.token_times_s[-1]
        # While both lists run, a round lies between two tokens of A.
        round_s = others.longest_gap_s(stream.sent_s, last_s)
        return stream.ttft_s, round_s, others.steps_between(stream.sent_s, first_s)

    async def visit_often() -> list[tuple[float, float, int]]:
        async with crowd(port, NUM_LOOPING, 64) as others:
            return [await visit(index, others) for index in range(12)]

    visits = asyncio.run(visit_often())
    waits_ms, rounds_ms = [1e3 * wait_s for wait_s, _, _ in visits], [1e3 * round_s for _, round_s, _ in visits]
    num_steps = [steps for _, _, steps in visits]
    print(
        f"\nB's first token beside {NUM_LOOPING} looping clients of A: median {statistics.median(waits_ms):.0f} ms, "
        f"longest {max(waits_ms):.0f} ms; a round takes {statistics.median(rounds_ms):.0f} ms; "
        f"steps of A before it: {num_steps}"
    )
    # Two rounds hold two steps of A; one more may end while the request is on its way to the scheduler.
    assert max(num_steps) <= 3
    assert statistics.median(num_steps) <= 2
    for wait_s, round_s, _ in visits:
        assert wait_s <= 2 * round_s + HTTP_S


@pytest.mark.parametrize("visit_number", range(3))
def test_behind_a_queue_on_full_slots_a_first_token_comes_within_the_maximum_wait_and_two_rounds(
    port: int, visit_number: int
) -> None:
    async def visit() -> tuple[float, float, int]:
        async with crowd(port, NUM_SLOTS + NUM_QUEUED, 2000) as others:
            stream = await stream_completion(port, visitor(100 + visit_number, 8))
            round_s = others.longest_gap_s(stream.token_times_s[0], stream.token_times_s[-1])
            num_ended = sum(bool(other.final) for other in others.streams)
        return stream.ttft_s, round_s, num_ended

    wait_s, round_s, num_ended = asyncio.run(visit())
    print(
        f"\nB's first token behind {NUM_QUEUED} requests of A that wait for full slots: {wait_s:.3f} s; "
        f"a round takes {round_s:.3f} s"
    )
    assert num_ended == 0, "a slot became free by itself, which is not what is measured"
    assert wait_s <= MAX_WAIT_S + 2 * round_s + HTTP_S


def test_two_choices_are_served_beside_looping_clients(port: int) -> None:
    num_theirs, num_ours = 64, 48

    async def visit() -> tuple[float, float]:
        async with (
            crowd(port, NUM_LOOPING, num_theirs) as others,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            start_s = time.perf_counter()
            response = await client.post("/completion", json=visitor(200, num_ours) | {"n_cmpl": 2})
            end_s = time.perf_counter()
            answers = response.raise_for_status().json()
            assert [answer["tokens_predicted"] for answer in answers] == [num_ours] * 2
            return end_s - start_s, others.longest_gap_s(start_s, end_s)

    took_s, round_s = asyncio.run(visit())
    print(f"\ntwo choices of {num_ours} tokens of B beside {NUM_LOOPING} looping clients of A: {took_s:.2f} s")
    # The second has a slot when an answer of A has ended, at the latest.
    assert took_s <= (num_theirs + num_ours + 4) * round_s
