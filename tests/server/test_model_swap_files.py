"""Another checkpoint takes over with the same adapters, from files: the answers are those of a server that began with
it, and where an adapter does not fit, the one that was served is served on.
"""

import gc
import weakref
from pathlib import Path

import httpx
import pytest
from peft import LoraConfig

from server.assembly import load_engine
from tests.model.adapter_makers import make_peft_adapter
from tests.model.tiny import make_model
from tests.server.live import LiveServer, until
from tests.server.test_activated import BASE, Lora, ask, settings_for

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

PROMPTS = ["the atlas", [20, 21, 22, 23, 24]]
LISTS: list[Lora] = [BASE, [{"id": 0, "scale": 1}], [{"id": 0, "scale": 0.5}, {"id": 1, "scale": -0.5}]]


class Files:
    """Two checkpoints of one shape, one of another, and adapters of the first."""

    def __init__(self, folder: Path) -> None:
        base = make_model("llama", folder / "one")
        make_model("llama", folder / "two", seed=9)
        make_model("llama", folder / "wider", changes={"intermediate_size": 192})
        self.folder = folder
        self.adapters = [
            make_peft_adapter(base, folder / f"adapter{seed}", LoraConfig(r=4, target_modules=modules), seed=seed)
            for seed, modules in ((1, ["q_proj", "v_proj"]), (2, ["down_proj"]))
        ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("models"))


def answers(client: httpx.Client) -> list[list[int]]:
    return [ask(client, prompt, lora)["tokens"] for prompt in PROMPTS for lora in LISTS]


def test_the_next_checkpoint_answers_as_if_it_had_been_the_first(files: Files) -> None:
    direct = settings_for(files.folder / "two", files.adapters)
    with LiveServer(load_engine, direct) as server, server.client() as client:
        expected = answers(client)
    settings = settings_for(files.folder / "one", files.adapters, model_dir=(str(files.folder),))
    with LiveServer(load_engine, settings) as server, server.client() as client:
        first = answers(client)
        assert first != expected
        old = weakref.ref(server.engine.loop.scheduler)
        gc.disable()  # a model is worth a collection of its own
        try:
            response = client.post("/admin/models/load", json={"model": str(files.folder / "two")})
            assert response.status_code == 200, response.text
            until(lambda: old() is None)
        finally:
            gc.enable()
        assert answers(client) == expected
        client.post("/admin/models/load", json={"model": str(files.folder / "one")})
        assert answers(client) == first


def test_an_adapter_that_does_not_fit_the_next_checkpoint_is_named(files: Files) -> None:
    settings = settings_for(files.folder / "one", files.adapters, model_dir=(str(files.folder),))
    with LiveServer(load_engine, settings) as server, server.client() as client:
        before = answers(client)
        for name, reason in (("wider", "'adapter2'"), ("absent", "absent"), ("adapter1", "config.json")):
            response = client.post("/admin/models/load", json={"model": str(files.folder / name)})
            assert response.status_code == 400
            assert reason in response.json()["error"]["message"]
        assert answers(client) == before
        assert client.get("/props").json()["model_path"] == str(files.folder / "one")
