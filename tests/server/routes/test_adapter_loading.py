"""Loading and unloading adapters over real HTTP, as clients of vLLM do it, with a fake loader."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.adapters.tensors import AdapterError
from server.adapters.catalog import AdapterEntry
from server.adapters.resident import ResidentAdapter
from tests.server.fakes import (
    TIMEOUT_S,
    FakeExecutor,
    FakeLoader,
    Turnstile,
    alphabet,
    fake_engine,
    fake_resident,
    fake_settings,
    key_of,
)
from tests.server.live import LiveServer, frames, until

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@contextmanager
def serving(
    folder: Path, turnstile: Turnstile | None = None, **settings: object
) -> Iterator[tuple[LiveServer, httpx.Client]]:
    """A server with two adapters of the command line that may load others from `folder`."""

    def make(entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        if "broken" in entry.path:
            raise AdapterError(f"the adapter {entry.name!r} cannot be loaded: field 'r' is 0")
        return fake_resident(entry, load_id)

    given = fake_settings().model_copy(update={"lora_load_dir": (str(folder),), **settings})
    with (
        LiveServer(
            lambda settings: fake_engine(FakeExecutor(turnstile=turnstile), settings, loader=FakeLoader(make)), given
        ) as server,
        server.client() as client,
    ):
        yield server, client


def load(client: httpx.Client, name: str, path: Path, **more: object) -> httpx.Response:
    return client.post(LOAD, json={"lora_name": name, "lora_path": str(path), **more})


def unload(client: httpx.Client, name: str, **more: object) -> httpx.Response:
    return client.post(UNLOAD, json={"lora_name": name, **more})


def assert_refused(response: httpx.Response, status: int, kind: str, *parts: str) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (status, status, kind)
    for part in parts:
        assert part in error["message"]


def names(client: httpx.Client) -> list[str]:
    return [model["id"] for model in client.get("/v1/models").json()["data"]]


def answer(client: httpx.Client, **body: object) -> str:
    response = client.post("/completion", json={"prompt": "a", "n_predict": 5, **body})
    assert response.status_code == 200, response.text
    text: str = response.json()["content"]
    return text


def test_loaded_adapter_is_listed_and_served_by_its_name_and_applies_to_nobody_else(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, client):
        before = answer(client)
        response = load(client, "tone", tmp_path / "tone")
        assert (response.status_code, response.text) == (200, "Success: LoRA adapter 'tone' added successfully.")
        assert response.headers["content-type"].startswith("text/plain")
        assert names(client)[-1] == "tone"
        assert client.get("/lora-adapters").json()[2] == {
            "id": 2,
            "path": str((tmp_path / "tone").resolve()),
            "scale": 0.0,
            "task_name": "task 2",
            "prompt_prefix": "",
        }
        assert answer(client, model="tone") == alphabet(key_of(server.engine, None, "tone"), 5)
        assert answer(client, lora=[{"id": 2, "scale": 1}]) == answer(client, model="tone")
        assert answer(client) == before


def test_name_that_is_taken_is_refused_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, client):
        load(client, "tone", tmp_path / "first")
        old = key_of(server.engine, None, "tone")
        for name in ("tone", "adapter0"):
            response = load(client, name, tmp_path / "second")
            assert_refused(response, 400, "InvalidUserInput", repr(name), "load_inplace")
        assert key_of(server.engine, None, "tone") == old
        assert load(client, "tone", tmp_path / "second", load_inplace=True).status_code == 200
        new = key_of(server.engine, None, "tone")
        assert new[0][0].digest == f"digest of {(tmp_path / 'second').resolve()}"
        assert new[0][0].load_id != old[0][0].load_id
        assert [adapter["id"] for adapter in client.get("/lora-adapters").json()] == [0, 1, 2]
        until(lambda: len(server.engine.adapters.residency.residents) == 3)
        assert load(client, "fresh", tmp_path / "first", load_inplace=True).status_code == 200


def test_replacing_keeps_the_current_scale_and_touches_no_running_request(tmp_path: Path) -> None:
    turnstile = Turnstile()
    with serving(tmp_path, turnstile) as (server, client):
        residency = server.engine.adapters.residency
        old = key_of(server.engine, None, "adapter0")
        texts: list[str] = []
        reader = threading.Thread(target=lambda: texts.append(_read(server, {"model": "adapter0"})))
        reader.start()
        turnstile.wait_for_step(1)
        assert load(client, "adapter0", tmp_path / "new", load_inplace=True).status_code == 200
        assert client.get("/lora-adapters").json()[0]["scale"] == 1.0
        assert len(residency.residents) == 3, "the old one is still in use"
        turnstile.open()
        reader.join()
        assert texts == [alphabet(old, 8)]
        until(lambda: len(residency.residents) == 2)
        assert answer(client, model="adapter0") == alphabet(key_of(server.engine, None, "adapter0"), 5)


def _read(server: LiveServer, body: dict[str, object]) -> str:
    with (
        server.client() as client,
        client.stream("POST", "/completion", json={"prompt": "a", "stream": True, **body}) as response,
    ):
        return "".join(str(frame.get("content", frame.get("error"))) for frame in frames(response))


def test_adapter_that_cannot_be_loaded_is_refused_with_its_reason_and_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, client):
        before = names(client)
        response = load(client, "bad", tmp_path / "broken")
        assert_refused(response, 400, "InvalidUserInput", "'bad'", "field 'r' is 0")
        response = load(client, "adapter0", tmp_path / "broken", load_inplace=True)
        assert_refused(response, 400, "InvalidUserInput", "field 'r' is 0")
        assert names(client) == before
        assert answer(client, model="adapter0")


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "'lora_name' and 'lora_path'"),
        ({"lora_name": "x"}, "'lora_path'"),
        ({"lora_path": "x"}, "'lora_name'"),
        ({"lora_name": "", "lora_path": "x"}, "'lora_name'"),
    ],
)
def test_load_wants_a_name_and_a_path(tmp_path: Path, body: dict[str, object], part: str) -> None:
    with serving(tmp_path) as (_, client):
        assert_refused(client.post(LOAD, json=body), 400, "InvalidUserInput", part)


@pytest.mark.parametrize(
    ("field", "value"), [("lora_name", 5), ("load_inplace", "yes"), ("pinned", 1), ("is_3d_lora_weight", True)]
)
def test_field_that_cannot_be_honoured_is_named(tmp_path: Path, field: str, value: object) -> None:
    with serving(tmp_path) as (_, client):
        response = client.post(LOAD, json={"lora_name": "x", "lora_path": str(tmp_path / "x"), field: value})
        assert_refused(response, 400, "invalid_request_error", f"'{field}'")


@pytest.mark.parametrize("name", ["a,b", "fake", "base", "fake:x", " x", "x\n", "y" * 300])
def test_names_that_would_be_ambiguous_are_refused(tmp_path: Path, name: str) -> None:
    with serving(tmp_path) as (_, client):
        assert_refused(load(client, name, tmp_path / "x"), 400, "InvalidUserInput")
        assert len(names(client)) == 3


def test_paths_outside_the_folders_are_forbidden_however_they_are_spelled(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    spellings: list[Path | str] = [
        outside / "x",
        inside / ".." / "outside" / "x",
        inside / "link",
        inside / "link" / "x",
        inside,
        tmp_path / "inside2",
        "x",
        "/",
    ]
    with serving(inside) as (_, client):
        for path in spellings:
            assert_refused(load(client, "x", Path(path)), 403, "permission_error", "'lora_path'", "--lora-load-dir")
        assert_refused(
            client.post(LOAD, json={"lora_name": "x", "lora_path": "a\0b"}), 400, "invalid_request_error", "'lora_path'"
        )
        (outside / "in").symlink_to(inside)
        assert load(client, "x", outside / "in" / "x").status_code == 200


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
def test_paths_do_not_exist_without_the_setting(client: httpx.Client, path: str) -> None:
    response = client.post(path, json={"lora_name": "adapter0", "lora_path": "x"})
    assert (response.status_code, response.json()["error"]["message"]) == (404, "File Not Found")
    assert "adapter0" in names(client)


def test_unloaded_adapter_is_gone_from_lists_and_its_name_is_an_error(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, client):
        response = unload(client, "adapter0")
        assert (response.status_code, response.text) == (200, "Success: LoRA adapter 'adapter0' removed successfully.")
        assert names(client) == ["fake", "adapter1"]
        assert [resident.name for resident in server.engine.adapters.residency.residents] == ["adapter1"]
        body = {"prompt": "a", "model": "adapter0"}
        assert client.post("/v1/completions", json=body).status_code == 404
        assert client.post("/completion", json=body).status_code == 404
        refused = client.post("/completion", json={"prompt": "a", "lora": [{"id": 0, "scale": 1}]})
        assert refused.status_code == 400
        assert load(client, "adapter0", tmp_path / "again").status_code == 200
        assert client.get("/lora-adapters").json()[-1]["id"] == 2, "an id is never used twice"


def test_unload_of_what_there_is_not_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, client):
        assert_refused(unload(client, "nothing"), 404, "NotFoundError", "'nothing'")
        assert_refused(client.post(UNLOAD, json={}), 400, "InvalidUserInput", "'lora_name'")
        response = unload(client, "adapter0", lora_int_id=1)
        assert_refused(response, 400, "InvalidUserInput", "'lora_int_id' is 1", "is 0")
        assert unload(client, "adapter0", lora_int_id=0).status_code == 200
        assert unload(client, "adapter0").status_code == 404


def test_unload_waits_for_running_and_waiting_requests_and_refuses_new_ones_meanwhile(tmp_path: Path) -> None:
    turnstile = Turnstile()
    with serving(tmp_path, turnstile) as (server, client):
        old = key_of(server.engine, None, "adapter0")
        texts: list[str] = []
        readers = [
            threading.Thread(target=lambda: texts.append(_read(server, {"model": "adapter0"}))) for _ in range(6)
        ]
        for reader in readers:
            reader.start()
        until(lambda: server.engine.loop.scheduler.num_requests == 6)
        responses: list[httpx.Response] = []
        unloading = threading.Thread(target=lambda: responses.append(_unload(server, "adapter0")))
        unloading.start()
        until(lambda: "adapter0" not in names(client))
        assert client.post("/completion", json={"prompt": "a", "model": "adapter0"}).status_code == 404
        assert not responses
        turnstile.open()
        unloading.join()
        for reader in readers:
            reader.join()
        assert responses[0].status_code == 200
        assert texts == [alphabet(old, 8)] * 6
        assert server.engine.adapters.residency.num_references == 0


def _unload(server: LiveServer, name: str, **more: Any) -> httpx.Response:
    with server.client() as client:
        return unload(client, name, **more)


def test_unload_by_force_ends_the_requests_that_use_the_adapter_and_no_other(tmp_path: Path) -> None:
    turnstile = Turnstile()
    with serving(tmp_path, turnstile) as (server, client):
        texts: dict[str, str] = {}

        def read(name: str) -> None:
            texts[name] = _read(server, {"model": name})

        readers = [threading.Thread(target=read, args=[name]) for name in ("adapter0", "adapter1")]
        for reader in readers:
            reader.start()
        until(lambda: server.engine.loop.scheduler.num_requests == 2)
        turnstile.let(2)
        assert unload(client, "adapter0", force=True).status_code == 200
        assert server.engine.adapters.residency.num_references == 1
        turnstile.open()
        for reader in readers:
            reader.join()
        assert "'adapter0' has been unloaded" in texts["adapter0"]
        assert texts["adapter1"] == alphabet(key_of(server.engine, None, "adapter1"), 8)
        until(lambda: server.is_idle)


def test_pinned_adapter_is_never_evicted_and_others_are(tmp_path: Path) -> None:
    with serving(tmp_path, max_loras=4) as (server, client):
        assert load(client, "pinned", tmp_path / "pinned", pinned=True).status_code == 200
        for number in range(3):
            assert load(client, f"other{number}", tmp_path / f"other{number}").status_code == 200
        residents = {resident.name for resident in server.engine.adapters.residency.residents}
        assert residents == {"adapter0", "adapter1", "pinned", "other2"}
        assert answer(client, model="other0")
        residents = {resident.name for resident in server.engine.adapters.residency.residents}
        assert residents == {"adapter0", "adapter1", "pinned", "other0"}


def test_pinned_adapter_for_which_there_is_no_place_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, max_loras=2) as (_, client):
        response = load(client, "one", tmp_path / "one", pinned=True)
        assert_refused(response, 400, "InvalidUserInput", "'one'", "--max-loras")
        assert "one" not in names(client)


def test_request_that_waits_for_an_adapter_at_shutdown_is_told(tmp_path: Path) -> None:
    turnstile = Turnstile()
    with serving(tmp_path, turnstile, max_loras=3, shutdown_grace=0.0) as (server, client):
        load(client, "facts", tmp_path / "facts")
        load(client, "tone", tmp_path / "tone")
        responses: dict[str, httpx.Response] = {}

        def ask(name: str) -> None:
            with server.client() as own:
                responses[name] = own.post("/completion", json={"prompt": "a", "model": name})

        askers = [threading.Thread(target=ask, args=[name]) for name in ("tone", "facts")]
        askers[0].start()
        turnstile.wait_for_step(1)
        askers[1].start()
        until(lambda: server.engine.adapters.residency.num_waiting == 1)
        server.stop()
        turnstile.open()
        for asker in askers:
            asker.join()
        server.join()
        assert responses["facts"].status_code == 503
        assert "shutting down" in responses["facts"].json()["error"]["message"]
        assert responses["tone"].status_code == 500
        assert server.exit_code == 0


def test_client_that_leaves_while_it_waits_for_an_adapter_leaves_nothing_behind(tmp_path: Path) -> None:
    turnstile = Turnstile()
    with serving(tmp_path, turnstile, max_loras=3) as (server, client):
        residency = server.engine.adapters.residency
        load(client, "facts", tmp_path / "facts")
        load(client, "tone", tmp_path / "tone")
        asker = threading.Thread(target=lambda: _read(server, {"model": "tone"}))
        asker.start()
        turnstile.wait_for_step(1)
        for path in ("/completion", "/v1/completions", "/tokenize"):
            body = {"prompt": "a", "content": "a", "model": "facts"}
            with pytest.raises(httpx.ReadTimeout):
                client.post(path, json=body, timeout=httpx.Timeout(TIMEOUT_S, read=0.2))
            until(lambda: residency.num_waiting == 0)
        turnstile.open()
        asker.join()
        until(lambda: server.is_idle and residency.num_references == 0)
        assert {resident.name for resident in residency.residents} == {"adapter0", "adapter1", "tone"}
