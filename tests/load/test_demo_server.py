"""The demo server as its own process, the real model, defaults, real clients: what the project promises, for as long as
it takes.

Run by `make test-long`. The same promises with a small model, in seconds: tests/server, tests/scheduler, tests/model.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.load.bench import BASE, FOUR_LISTS, jain_index
from tests.load.client import HttpError, Stream, get_json, get_text, stream_completion
from tests.load.demo_server import demo_server, start_demo_server

pytestmark = pytest.mark.slow

QUESTIONS = (
    "How do I boil an egg?",
    "Why is the sky blue?",
    "What should I pack for a week at the sea?",
    "Tell me something about bread.",
)


def greedy(question: str, lora: list[dict[str, float]] | None, num_tokens: int) -> dict[str, Any]:
    """A request in the model's chat format, of exactly `num_tokens` tokens."""
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    body: dict[str, Any] = {"prompt": prompt, "n_predict": num_tokens, "temperature": 0, "ignore_eos": True}
    return body if lora is None else {**body, "lora": lora}


def answer(port: int, question: str, lora: list[dict[str, float]] | None, num_tokens: int) -> list[int]:
    """The tokens of one request alone on a server."""
    return asyncio.run(stream_completion(port, greedy(question, lora, num_tokens))).token_ids


async def all_at_once(port: int, bodies: list[dict[str, Any]], until_s: float | None = None) -> list[Stream]:
    """Stream all requests at the same time."""
    return await asyncio.gather(*(stream_completion(port, body, until_s) for body in bodies))


def metric(port: int, name: str) -> dict[str, float]:
    """The samples of a metric by their labels."""
    text = asyncio.run(get_text(port, "/metrics"))
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {str(sample.labels): sample.value for sample in samples if sample.name == name}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with demo_server() as port:
        yield port


def test_four_lists_of_four_clients_advance_at_one_rate_and_answer_as_alone(port: int) -> None:
    seconds, begin_s = 30.0, 2.0
    bodies = [greedy(question, lora, 4000) for question in QUESTIONS for lora in FOUR_LISTS]
    start_s = time.perf_counter()
    streams = asyncio.run(all_at_once(port, bodies, start_s + seconds))

    per_list = [0.0] * len(FOUR_LISTS)
    for index, stream in enumerate(streams):
        per_list[index % len(FOUR_LISTS)] += sum(t >= start_s + begin_s for t in stream.token_times_s)
    print(f"tokens of the lists: {per_list}, Jain's index {jain_index(per_list):.4f}")
    assert jain_index(per_list) >= 0.98
    assert list(metric(port, "cohort_steps_total")) == ["{'lists': '1'}"]
    for body, stream in zip(bodies, streams, strict=True):
        alone = asyncio.run(
            stream_completion(port, {**body, "n_predict": len(stream.token_ids), "cache_prompt": False})
        )
        assert stream.token_ids == alone.token_ids


def test_new_scales_touch_new_requests_and_no_running_ones(port: int) -> None:
    bodies = [greedy(QUESTIONS[index % 4], None, 48) for index in range(16)]
    before = [answer(port, question, None, 48) for question in QUESTIONS]

    async def change_scales_meanwhile() -> list[Stream]:
        streams = asyncio.create_task(all_at_once(port, bodies))
        while len(await get_running(port)) < 16:
            pass
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            response = await client.post("/lora-adapters", json=[{"id": 0, "scale": 1.0}])
            assert response.json() == {"success": True}
            bad: object
            for bad in ([{"id": 7, "scale": 1}], [{"id": "0", "scale": 1}], [{"id": 0, "scale": 1e39}], {}):
                assert (await client.post("/lora-adapters", json=bad)).status_code == 400
        return await streams

    streams = asyncio.run(change_scales_meanwhile())
    assert [stream.token_ids for stream in streams] == [before[index % 4] for index in range(16)]
    [pirate, emoji] = asyncio.run(get_json(port, "/lora-adapters"))
    assert (pirate["scale"], emoji["scale"]) == (1.0, 0.0)
    after = [answer(port, question, None, 48) for question in QUESTIONS]
    assert after == [answer(port, question, [{"id": 0, "scale": 1.0}], 48) for question in QUESTIONS]
    assert after != before
    httpx.post(f"http://127.0.0.1:{port}/lora-adapters", json=[]).raise_for_status()


async def get_running(port: int) -> list[dict[str, Any]]:
    """The slots that compute now."""
    return [slot for slot in await get_json(port, "/slots") if slot["is_processing"]]


def test_caches_never_mix_lists(port: int) -> None:
    question = "Please list five animals that live in the forest, and say one thing about each of them."
    lists = [FOUR_LISTS[1], FOUR_LISTS[2], FOUR_LISTS[1], None]
    warm = [answer(port, question, lora, 48) for lora in lists]
    fresh = []
    for lora in lists:
        with demo_server() as new_port:
            fresh.append(answer(new_port, question, lora, 48))
    assert warm == fresh
    assert warm[0] != warm[1] != warm[3]


def test_sigterm_under_load_finishes_streams_refuses_new_ones_and_exits_with_0() -> None:
    process, port = start_demo_server(())
    try:
        asyncio.run(_terminate_under_load(process.pid, port))
        assert process.wait(30) == 0
    finally:
        process.kill()


async def status_of_a_new_request(port: int) -> str:
    """The HTTP status that a small request gets."""
    try:
        await stream_completion(port, greedy("Hello", BASE, 1))
    except HttpError as error:
        return str(error)[:3]
    return "200"


async def _terminate_under_load(pid: int, port: int) -> None:
    streams = asyncio.create_task(all_at_once(port, [greedy(QUESTIONS[i % 4], BASE, 120) for i in range(8)]))
    while len(await get_running(port)) < 8:
        pass
    os.kill(pid, signal.SIGTERM)
    while (status := await status_of_a_new_request(port)) == "200":
        pass  # the signal takes a moment to arrive
    assert status == "503"
    assert [len(stream.token_ids) for stream in await streams] == [120] * 8


def test_a_client_that_vanishes_frees_its_slot_and_blocks() -> None:
    with demo_server() as port:
        body = greedy(QUESTIONS[0], BASE, 4000)
        asyncio.run(stream_completion(port, body, time.perf_counter() + 1.0))
        deadline_s = time.perf_counter() + 1.0
        while metric(port, "cohort_requests_running") != {"{}": 0.0}:
            assert time.perf_counter() < deadline_s, "the slot was not freed"
        assert metric(port, "cohort_kv_cache_usage_ratio") == {"{}": 0.0}
