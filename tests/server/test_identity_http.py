"""A server with adapters that a request does not use answers as one without any: bit for bit, over HTTP, with the real
decoder on a tiny model.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.adapters.arguments import AdapterArgument
from server.assembly import load_engine
from server.settings import Settings
from tests.load.stamps import FIRST_STAMP, stamp_name, write_adapters, write_model
from tests.server.fakes import TIMEOUT_S
from tests.server.live import LiveServer

PROMPTS = [[17 * i % 256 for i in range(length)] for length in (3, 15, 16, 17, 40)]
UNUSED: list[dict[str, object]] = [
    {},
    {"lora": []},
    {"lora": None},
    {"lora": [{"id": 0, "scale": 0}]},
    {"lora": [{"id": 0, "scale": 0.0}, {"id": 1, "scale": -0.0}]},
    {"lora": [{"id": 1}]},
    {"lora": [{"name": stamp_name(2), "scale": 0}]},
    {"model": "tiny"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in `model` and three adapters in `adapters`."""
    path = tmp_path_factory.mktemp("identity")
    write_model(path / "model")
    write_adapters(path / "adapters", range(3))
    return path


def settings_of(folder: Path, **values: object) -> Settings:
    given = {"model": folder / "model", "alias": "tiny", "port": 0, "parallel": 8, "threads": 1, "seed": 7}
    return Settings.model_validate(given | values)


@pytest.fixture(scope="module", params=["auto", "float32"])
def clients(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of a server without adapters, and of one with two loaded and a third on disk."""
    loras = tuple(AdapterArgument(str(folder / "adapters" / stamp_name(number))) for number in range(2))
    with_adapters = settings_of(
        folder, dtype=request.param, lora=loras, lora_init_without_apply=True, lora_dir=folder / "adapters"
    )
    with (
        LiveServer(load_engine, settings_of(folder, dtype=request.param)) as bare,
        LiveServer(load_engine, with_adapters) as full,
        bare.client() as bare_client,
        full.client() as full_client,
    ):
        yield bare_client, full_client


def ask(client: httpx.Client, body: dict[str, object]) -> Any:
    response = client.post("/completion", json={"n_predict": 12, "n_probs": 20, "return_tokens": True, **body})
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["tokens"], answer["completion_probabilities"]


@pytest.mark.parametrize("unused", UNUSED, ids=str)
def test_adapters_that_are_not_used_change_no_bit(
    clients: tuple[httpx.Client, httpx.Client], unused: dict[str, object]
) -> None:
    bare, full = clients
    for prompt in PROMPTS:
        for temperature in (0, 0.8):
            body: dict[str, object] = {"prompt": prompt, "temperature": temperature}
            assert ask(full, body | unused) == ask(bare, body)


def test_other_requests_adapters_change_no_bit(clients: tuple[httpx.Client, httpx.Client]) -> None:
    bare, full = clients
    bodies: list[dict[str, object]] = [{"prompt": prompt, "temperature": 0} for prompt in PROMPTS]

    async def all_at_once() -> list[Any]:
        async with httpx.AsyncClient(base_url=full.base_url, timeout=TIMEOUT_S) as client:
            lists = [None, [{"id": 0, "scale": 1}], [{"id": 0, "scale": 0.5}, {"name": stamp_name(2), "scale": 1}]]
            posts = [
                client.post("/completion", json={"n_predict": 12, "n_probs": 20, **body, "lora": lora})
                for body in bodies
                for lora in lists
            ]
            return [response.json() for response in await asyncio.gather(*posts)]

    answers = asyncio.run(all_at_once())
    for body, answer in zip(bodies, answers[::3], strict=True):
        assert answer["completion_probabilities"] == ask(bare, body)[1]


def test_adapters_that_are_used_do_show(clients: tuple[httpx.Client, httpx.Client]) -> None:
    _, full = clients
    for number in range(3):
        tokens, _ = ask(full, {"prompt": PROMPTS[0], "temperature": 0, "model": stamp_name(number)})
        assert tokens == [FIRST_STAMP + number] * 12
