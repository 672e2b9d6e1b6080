"""Another model takes over while requests run: each finishes on the model it began with, and what lasts beyond it."""

import socket
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.adapters.arguments import MixArgument
from tests.server.fakes import NUM_SLOTS, TIMEOUT_S, Turnstile
from tests.server.live import frames, until
from tests.server.metrics.test_metrics import scrape, value
from tests.server.swapping import Swapping, complete, text_of

NAMES = ["adapter0", "adapter1"]
STREAM = {"prompt": "a", "n_predict": 5, "stream": True}


@pytest.fixture
def client(swapping: Swapping) -> Iterator[httpx.Client]:
    """A client of that server."""
    with swapping.server.client() as opened:
        yield opened


def test_the_next_model_answers_from_then_on(swapping: Swapping, client: httpx.Client) -> None:
    swapping.turnstile.open()
    assert complete(client)["content"] == "old"
    response = swapping.load(client)
    assert (response.status_code, response.json()) == (200, {"success": True, "model": "fake"})
    assert complete(client)["content"] == "new"
    base = client.get("/v1/models").json()["data"][0]
    assert (base["id"], base["root"]) == ("fake", str(swapping.folder / "next"))
    assert client.get("/props").json()["model_path"] == str(swapping.folder / "next")
    assert client.get("/health").json() == {"status": "ok"}


def test_an_alias_renames_the_model(swapping: Swapping, client: httpx.Client) -> None:
    assert swapping.load(client, alias="one,two").json() == {"success": True, "model": "one"}
    assert client.get("/v1/models").json()["data"][0]["aliases"] == ["one", "two"]
    assert complete(client, model="two")["model"] == "one"


def test_a_running_and_a_waiting_request_finish_on_the_model_they_began_with(
    swapping: Swapping, client: httpx.Client
) -> None:
    server, turnstile = swapping.server, swapping.turnstile
    opened = [
        client.send(client.build_request("POST", "/completion", json=STREAM), stream=True) for _ in range(NUM_SLOTS + 1)
    ]
    turnstile.let(2)
    turnstile.wait_for_step(3)
    old = weakref.ref(server.engine.loop.scheduler)
    held = server.engine.loop.scheduler
    assert (len(held.running), len(held.queue)) == (NUM_SLOTS, 1)
    del held
    assert swapping.load(client).status_code == 200
    assert complete(client)["content"] == "new"
    assert old() is not None
    turnstile.open()
    for response in opened:
        assert text_of(frames(response)) == "oldol"
        response.close()
    until(lambda: is_freed(old))


def is_freed(reference: "weakref.ref[Any]") -> bool:
    return reference() is None


def test_a_model_that_nobody_uses_is_freed_at_once(swapping: Swapping, client: httpx.Client) -> None:
    swapping.turnstile.open()
    complete(client)
    old = weakref.ref(swapping.server.engine.loop.scheduler)
    swapping.load(client)
    until(lambda: is_freed(old))


def test_many_swaps_leave_one_model(swapping: Swapping, client: httpx.Client) -> None:
    swapping.turnstile.open()
    old = []
    for name in ("next", "other", "first", "next"):
        old.append(weakref.ref(swapping.server.engine.loop.scheduler))
        assert swapping.load(client, name).status_code == 200
        complete(client)
    until(lambda: all(is_freed(each) for each in old))
    assert value(scrape(client), "cohort_models") == 1


def test_a_request_that_is_still_being_sent_keeps_its_model(swapping: Swapping, client: httpx.Client) -> None:
    swapping.turnstile.open()
    body = b'{"prompt": "a", "n_predict": 3}'
    head = f"POST /completion HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    users = swapping.server.engine.users
    with socket.create_connection(("127.0.0.1", httpx.URL(swapping.server.url).port or 0)) as connection:
        connection.sendall(head.encode() + body[:5])
        until(lambda: users.num == 1)
        assert swapping.load(client).status_code == 200
        connection.sendall(body[5:])
        connection.settimeout(TIMEOUT_S)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"content":"old"' in answer


# What lasts.


def test_adapters_keep_their_ids_names_scales_and_mixes(tmp_path: Path) -> None:
    mixes = (MixArgument("both", (("adapter0", 0.5), ("adapter1", 2.0))),)
    swapping = Swapping(tmp_path, mix=mixes)
    swapping.turnstile.open()
    with swapping.server as server, server.client() as client:
        client.post("/lora-adapters", json=[{"id": 1, "scale": 0.25}])
        before = client.get("/lora-adapters").json()
        assert swapping.load(client).status_code == 200
        assert client.get("/lora-adapters").json() == before
        scales = complete(client)["generation_settings"]["lora"]
        assert [(item["id"], item["scale"]) for item in scales] == [(0, 0.0), (1, 0.25)]
        scales = complete(client, model="both")["generation_settings"]["lora"]
        assert [(item["id"], item["scale"]) for item in scales] == [(0, 0.5), (1, 2.0)]
        client.post("/lora-adapters", json=[{"id": 0, "scale": 3}])
        assert complete(client)["generation_settings"]["lora"][0]["scale"] == 3


def test_an_adapter_that_is_unloaded_while_the_next_model_is_loaded_is_not_kept_for_it(tmp_path: Path) -> None:
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    (adapters / "late.gguf").touch()
    swapping = Swapping(tmp_path, lora_load_dir=(str(adapters),))
    swapping.turnstile.open()
    with swapping.server as server, server.client() as client:

        def late(action: str, **more: object) -> int:
            body = {"lora_name": "late", **more}
            return client.post(f"/v1/{action}_lora_adapter", json=body).status_code

        assert late("load", lora_path=str(adapters / "late.gguf")) == 200
        swapping.may_load.clear()
        swapping.may_finish.clear()
        asking, responses = swapping.load_in_thread()
        swapping.may_load.set()
        assert swapping.is_loaded.wait(TIMEOUT_S)
        assert late("unload") == 200
        swapping.may_finish.set()
        asking.join()
        assert responses[0].status_code == 200
        until(lambda: [resident.name for resident in server.engine.adapters.residency.residents] == NAMES)
        assert late("load", lora_path=str(adapters / "late.gguf")) == 200


def test_an_answer_of_the_old_model_is_not_given_for_the_new_one(tmp_path: Path) -> None:
    swapping = Swapping(tmp_path, response_cache=8)
    swapping.turnstile.open()
    with swapping.server as server, server.client() as client:
        assert [complete(client)["content"] for _ in range(2)] == ["old", "old"]
        swapping.load(client)
        assert [complete(client)["content"] for _ in range(2)] == ["new", "new"]
        samples = scrape(client)
        assert value(samples, "cohort_response_cache_queries_total") == 4
        assert value(samples, "cohort_response_cache_hits_total") == 2


def test_counters_go_on_and_requests_on_the_old_model_are_counted(swapping: Swapping, client: httpx.Client) -> None:
    turnstile = swapping.turnstile
    with client.stream("POST", "/completion", json=STREAM | {"model": "adapter0"}) as response:
        turnstile.let(2)
        turnstile.wait_for_step(3)
        before = scrape(client)
        swapping.load(client)
        complete(client)
        during = scrape(client)
        assert value(during, "cohort_models") == 2
        assert value(during, "cohort_requests_running") == 1
        assert value(during, "cohort_slots") == 2 * NUM_SLOTS
        assert value(during, "cohort_adapter_requests_running", adapter="adapter0") == 1
        assert value(during, "cohort_list_requests_running", list="adapter0:1") == 1
        assert value(during, "cohort_generated_tokens_total") == 2 + 3
        [info] = [sample for sample in during if sample.name == "vllm:lora_requests_info"]
        assert info.labels["running_lora_adapters"] == "adapter0"
        turnstile.open()
        assert text_of(frames(response)) == "oldol"
    until(lambda: value(scrape(client), "cohort_models") == 1)
    after = scrape(client)
    assert value(after, "cohort_generated_tokens_total") == 5 + 3
    assert value(after, "cohort_slots") == NUM_SLOTS
    assert value(after, "cohort_adapter_requests_running", adapter="adapter0") == 0
    for earlier, later in ((before, during), (during, after)):
        assert_no_counter_went_backwards(earlier, later)


def assert_no_counter_went_backwards(earlier: list[Any], later: list[Any]) -> None:
    now = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in later}
    for sample in earlier:
        if sample.name.endswith(("_total", "_count", "_sum", "_bucket")):
            place = (sample.name, tuple(sorted(sample.labels.items())))
            assert now[place] >= sample.value, place


# The end.


@pytest.mark.parametrize("grace_s", [20.0, 0.0])
def test_a_shutdown_drains_both_models_within_the_grace(tmp_path: Path, grace_s: float) -> None:
    swapping = Swapping(tmp_path, shutdown_grace=grace_s)
    first, second = swapping.turnstile, Turnstile()
    swapping.next_turnstile = second
    with swapping.server as server, server.client() as client:
        opened = []
        for turnstile in (first, second):
            opened.append(client.send(client.build_request("POST", "/completion", json=STREAM), stream=True))
            turnstile.let(1)
            turnstile.wait_for_step(2)
            if turnstile is first:
                swapping.load(client)
        server.stop()
        until(lambda: server.service.door.is_closing)
        if grace_s:
            first.open()
            second.open()
            assert [text_of(frames(response)) for response in opened] == ["oldol", "newne"]
        else:
            for response in opened:
                assert list(frames(response))[-1]["error"]["message"] == "the server is shutting down"
            first.open()
            second.open()
    assert server.exit_code == 0


def test_a_shutdown_does_not_wait_for_a_model_that_is_being_loaded(swapping: Swapping) -> None:
    swapping.turnstile.open()
    swapping.may_load.clear()
    asking = swapping.load_in_thread()[0]
    swapping.server.stop()
    swapping.server.join()
    assert swapping.server.exit_code == 0
    assert swapping.server.service.models.is_loading
    swapping.may_load.set()
    asking.join()
