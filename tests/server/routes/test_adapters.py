"""Adapter lists over real HTTP: one resolver for every route, strict about nonsense, and scales that replace each
other.
"""

import json
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.server.fakes import (
    BODIES,
    FakeExecutor,
    Turnstile,
    alphabet,
    current_key,
    fake_engine,
    fake_settings,
    key_of,
)
from tests.server.live import LiveServer, frames, until

BAD_LISTS: list[tuple[str, str, str]] = [
    # JSON of the list, the field that the error names, a part of the message
    ("{}", "lora", "array"),
    ('"x"', "lora", '"x"'),
    ("5", "lora", "5"),
    ("false", "lora", "false"),
    ("[0]", "lora[0]", "0"),
    ('["a"]', "lora[0]", '"a"'),
    ("[null]", "lora[0]", "null"),
    ("[[]]", "lora[0]", "[]"),
    ('[{"scale": 1}]', "lora[0].id", "null"),
    ('[{"id": "0", "scale": 1}]', "lora[0].id", '"0"'),
    ('[{"id": true, "scale": 1}]', "lora[0].id", "true"),
    ('[{"id": 0.9, "scale": 1}]', "lora[0].id", "0.9"),
    ('[{"id": 0.0, "scale": 1}]', "lora[0].id", "0.0"),
    ('[{"id": 2, "scale": 1}]', "lora[0].id", "0 to 1"),
    ('[{"id": -1, "scale": 1}]', "lora[0].id", "-1"),
    ('[{"id": 99999999999, "scale": 1}]', "lora[0].id", "99999999999"),
    ('[{"id": 0}, {"id": 1, "scale": "1"}]', "lora[1].scale", '"1"'),
    ('[{"id": 0, "scale": true}]', "lora[0].scale", "true"),
    ('[{"id": 0, "scale": [1]}]', "lora[0].scale", "[1]"),
    ('[{"id": 0, "scale": NaN}]', "lora[0].scale", "NaN"),
    ('[{"id": 0, "scale": Infinity}]', "lora[0].scale", "Infinity"),
    ('[{"id": 0, "scale": -Infinity}]', "lora[0].scale", "Infinity"),
    ('[{"id": 0, "scale": 1e999}]', "lora[0].scale", "Infinity"),
    ('[{"id": 0, "scale": 1e39}]', "lora[0].scale", "1e+39"),
    ('[{"id": 0, "scale": 1' + "0" * 400 + "}]", "lora[0].scale", "1000"),
]


def assert_refused(response: httpx.Response, field: str, part: str) -> None:
    """The answer is a 400 that names the field and the value."""
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (400, 400, "invalid_request_error")
    assert error["message"].startswith(f"Field '{field}': ")
    assert part in error["message"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("lora", "field", "part"), BAD_LISTS, ids=[lora[:30] for lora, _, _ in BAD_LISTS])
def test_every_route_refuses_a_bad_list(client: httpx.Client, path: str, lora: str, field: str, part: str) -> None:
    body = json.dumps(BODIES[path])[:-1] + f', "lora": {lora}}}'
    assert_refused(client.post(path, content=body), field, part)


@pytest.mark.parametrize(("lora", "field", "part"), BAD_LISTS[4:], ids=[lora[:30] for lora, _, _ in BAD_LISTS[4:]])
def test_bad_scales_change_nothing(client: httpx.Client, lora: str, field: str, part: str) -> None:
    before = client.get("/lora-adapters").json()
    assert_refused(client.post("/lora-adapters", content=lora), field.removeprefix("lora"), part)
    assert client.get("/lora-adapters").json() == before


@pytest.mark.parametrize("body", ["{}", '"x"', "5", "null"])
def test_scales_must_be_an_array(client: httpx.Client, body: str) -> None:
    response = client.post("/lora-adapters", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "Request body must be an array"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("lora", "scales"),
    [
        (None, [1.0, 1.0]),
        ([], [1.0, 1.0]),
        ([{"id": 1, "scale": 0.5}], [0.0, 0.5]),
        ([{"id": 1}], [0.0, 0.0]),
        ([{"id": 0, "scale": None}], [0.0, 0.0]),
        ([{"id": 0, "scale": 1}, {"id": 1, "scale": -0.3}], [1.0, -0.3]),
        ([{"id": 0, "scale": 1}, {"id": 0, "scale": 0.25}], [0.25, 0.0]),
    ],
)
def test_every_route_applies_the_same_list(
    client: httpx.Client, server: LiveServer, path: str, lora: object, scales: list[float]
) -> None:
    executor = server.engine.loop._executor
    assert isinstance(executor, FakeExecutor)
    executor.batches.clear()
    assert client.post(path, json=BODIES[path] | {"lora": lora}).status_code == 200
    assert {batch.key for batch in executor.batches} == {
        key_of(server.engine, [{"id": index, "scale": scale} for index, scale in enumerate(scales)], None)
    }


@pytest.mark.parametrize("path", BODIES)
def test_a_list_on_a_server_without_adapters_is_refused(bare_client: httpx.Client, path: str) -> None:
    assert_refused(bare_client.post(path, json=BODIES[path] | {"lora": [{"id": 0, "scale": 1}]}), "lora[0].id", "0")
    assert bare_client.post(path, json=BODIES[path] | {"lora": []}).status_code == 200


@pytest.fixture(scope="module")
def bare_client() -> Iterator[httpx.Client]:
    """A client of a server without adapters."""
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(), settings), fake_settings(num_adapters=0)) as server,
        server.client() as client,
    ):
        yield client


def test_a_server_without_adapters_lists_none(bare_client: httpx.Client) -> None:
    assert bare_client.get("/lora-adapters").json() == []
    assert bare_client.post("/lora-adapters", json=[]).json() == {"success": True}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("model", "lora", "scales"),
    [
        ("adapter1", None, [0, 1]),
        ("adapter1", [], [0, 1]),
        ("adapter1", [{"id": 0, "scale": 0.5}], [0.5, 0]),
        ("fake", None, [1, 1]),
        ("gpt-4", None, [1, 1]),
    ],
)
def test_model_selects_an_adapter_unless_there_is_a_list(
    client: httpx.Client, server: LiveServer, path: str, model: str, lora: object, scales: list[float]
) -> None:
    executor = server.engine.loop._executor
    assert isinstance(executor, FakeExecutor)
    executor.batches.clear()
    assert client.post(path, json=BODIES[path] | {"lora": lora, "model": model}).status_code == 200
    wanted = key_of(server.engine, [{"id": i, "scale": scale} for i, scale in enumerate(scales)], None)
    assert {batch.key for batch in executor.batches} == {wanted}


def test_adapters_are_listed_with_their_current_scales(client: httpx.Client) -> None:
    first, second = client.get("/lora-adapters").json()
    assert list(first) == ["id", "path", "scale", "task_name", "prompt_prefix"]
    assert first == {"id": 0, "path": "adapter0.gguf", "scale": 1.0, "task_name": "task 0", "prompt_prefix": ""}
    assert (second["id"], second["path"]) == (1, "adapter1.gguf")


def test_new_scales_replace_all_old_ones() -> None:
    with LiveServer(lambda settings: fake_engine(FakeExecutor(), settings)) as server, server.client() as client:
        assert client.post("/lora-adapters", json=[{"id": 1, "scale": 0.25}]).json() == {"success": True}
        assert [item["scale"] for item in client.get("/lora-adapters").json()] == [0.0, 0.25]
        assert client.post("/lora-adapters", json=[{"id": 0, "scale": 2}]).json() == {"success": True}
        assert [item["scale"] for item in client.get("/lora-adapters").json()] == [2.0, 0.0]
        assert client.post("/lora-adapters", json=[]).json() == {"success": True}
        assert [item["scale"] for item in client.get("/lora-adapters").json()] == [0.0, 0.0]
        assert client.post("/completion", json={"prompt": "a", "n_predict": 3}).json()["content"] == "abc"


def test_running_and_waiting_requests_keep_their_list() -> None:
    turnstile = Turnstile()
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(turnstile=turnstile), settings)) as server,
        server.client() as client,
    ):
        before = current_key(server.engine)
        body = {"prompt": "a", "n_predict": 5, "stream": True}
        texts: list[str] = []

        def read() -> None:
            with client.stream("POST", "/completion", json=body) as response:
                texts.append("".join(str(frame["content"]) for frame in frames(response)))

        # More than there are slots, so that some wait.
        readers = [threading.Thread(target=read) for _ in range(6)]
        for reader in readers:
            reader.start()
        until(lambda: server.engine.loop.scheduler.num_requests == 6)
        turnstile.wait_for_step(1)
        assert client.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}]).status_code == 200
        turnstile.open()
        after = client.post("/completion", json={"prompt": "a", "n_predict": 5}).json()["content"]
        for reader in readers:
            reader.join()
        assert texts == [alphabet(before, 5)] * 6
        assert after == alphabet(current_key(server.engine), 5) != alphabet(before, 5)


def test_put_is_not_a_method_of_the_route(client: httpx.Client) -> None:
    response = client.put("/lora-adapters", json=[])
    assert (response.status_code, response.json()["error"]["message"]) == (404, "File Not Found")
