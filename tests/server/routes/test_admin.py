"""POST /admin/models/load: what it takes, what it refuses, and that a refusal changes nothing."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from model.adapters.tensors import AdapterError
from model.checkpoint.config import CheckpointError
from server.adapters.catalog import AdapterEntry
from server.adapters.resident import ResidentAdapter
from tests.server.fakes import fake_resident
from tests.server.swapping import PATH, Swapping, complete


@pytest.fixture
def client(swapping: Swapping) -> Iterator[httpx.Client]:
    """A client of that server."""
    with swapping.server.client() as opened:
        yield opened


@pytest.mark.parametrize(
    "error",
    [
        CheckpointError("next/config.json: hidden_size is missing; a whole number is needed"),
        AdapterError("adapter 'adapter1': tensor 'x' has shape (1, 2), the base model wants (8, 8)"),
        OSError(5, "Input/output error"),
        RuntimeError("CUDA out of memory"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_model_that_cannot_be_loaded_changes_nothing(
    swapping: Swapping, client: httpx.Client, error: Exception
) -> None:
    swapping.turnstile.open()
    before, swapping.error = swapping.server.engine, error
    response = swapping.load(client)
    assert response.status_code == 400
    expected = {"code": 400, "message": str(error) or "MemoryError", "type": "invalid_request_error"}
    assert response.json() == {"error": expected}
    assert swapping.server.engine is before
    assert complete(client)["content"] == "old"
    swapping.error = None
    assert swapping.load(client).status_code == 200


def test_an_adapter_that_does_not_fit_is_named_and_nothing_changes(swapping: Swapping, client: httpx.Client) -> None:
    swapping.turnstile.open()
    listed = client.get("/lora-adapters").json()

    def make(entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        if entry.id == 1:
            raise AdapterError(f"adapter {entry.name!r}: it adapts modules that the model does not have")
        return fake_resident(entry, load_id)

    swapping.make = make
    response = swapping.load(client)
    assert response.status_code == 400
    assert "'adapter1'" in response.json()["error"]["message"]
    assert client.get("/lora-adapters").json() == listed
    assert complete(client, lora=[{"id": 1, "scale": 1}])["content"] == "old"


def test_a_name_that_an_adapter_has_is_refused(swapping: Swapping, client: httpx.Client) -> None:
    response = swapping.load(client, alias="adapter0")
    assert response.status_code == 400
    assert "adapter0" in response.json()["error"]["message"]


def test_one_model_is_loaded_at_a_time(swapping: Swapping, client: httpx.Client) -> None:
    swapping.turnstile.open()
    swapping.may_load.clear()
    asking, responses = swapping.load_in_thread()
    refused = swapping.load(client, "other")
    assert (refused.status_code, refused.json()["error"]["type"]) == (409, "conflict_error")
    assert client.get("/health").json() == {"status": "ok"}
    assert complete(client)["content"] == "old"
    swapping.may_load.set()
    asking.join()
    assert responses[0].status_code == 200
    assert swapping.load(client, "other").status_code == 200


def test_without_the_setting_the_path_does_not_exist(tmp_path: Path) -> None:
    swapping = Swapping(tmp_path, model_dir=())
    with swapping.server as server, server.client() as client:
        response = swapping.load(client)
        assert (response.status_code, response.json()["error"]["message"]) == (404, "File Not Found")
        assert client.get(PATH).status_code == 404


def test_only_the_folders_of_the_setting_are_allowed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "inside-not"
    for folder in (inside, outside, outside / "model"):
        folder.mkdir()
    swapping = Swapping(inside, model_dir=(str(tmp_path / "absent"), f"{inside}/../inside"))
    (inside / "link out").symlink_to(outside)
    (inside / "link in").symlink_to(inside / "next")
    (outside / "link in").symlink_to(inside / "other")
    (inside / "loop").symlink_to(inside / "loop")
    with swapping.server as server, server.client() as client:

        def status(path: object) -> int:
            response = client.post(PATH, json={"model": str(path)})
            if response.status_code == 403:
                error = response.json()["error"]
                assert error["type"] == "permission_error"
                assert "--model-dir" in error["message"]
            return response.status_code

        for path in (inside / "next", inside / "link in", outside / "link in", inside / "absent" / ".." / "next"):
            assert status(path) == 200, path
        links = (inside / "link out", inside / "link out" / "model")
        for outer in (outside / "model", *links, inside / ".." / "inside-not", "/", "", "../../etc"):
            assert status(outer) == 403, outer
        assert status(inside / "loop") in (400, 403)
        assert status(f"{inside}/\0") == 400
        assert Path(server.engine.model.path) == inside / "next"


@pytest.mark.parametrize("body", [{}, {"model": 5}, {"model": None}, [], {"model": "x", "alias": 3}], ids=str)
def test_a_body_of_another_form_is_refused(client: httpx.Client, body: object) -> None:
    response = client.post(PATH, json=body)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
