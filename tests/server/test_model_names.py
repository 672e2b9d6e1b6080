"""Adapters and mixes by name over real HTTP: `model`, elements of `lora`, /v1/models, and what is not there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tokenizers import AddedToken

from model.adapters.tensors import AdapterError
from model.adapters.tokenizer import AdapterTokenizer
from model.tokens.chat_template import ChatTemplate
from model.tokens.tokenizer import Tokenizer
from scheduler.cohort import CohortKey
from server.adapters.arguments import MixArgument
from server.adapters.catalog import AdapterEntry
from server.adapters.resident import ResidentAdapter
from tests.server.fakes import (
    BODIES,
    EOS,
    TIMEOUT_S,
    VOCAB_SIZE,
    FakeExecutor,
    FakeLoader,
    Turnstile,
    byte_tokenizer,
    fake_engine,
    fake_resident,
    fake_settings,
    key_of,
)
from tests.server.live import LiveServer, frames, until

MIX = MixArgument("support", (("adapter0", 0.5), ("tone", -0.25)))
ADDED = VOCAB_SIZE
OPENAI_ROUTES = [path for path in BODIES if "/v1" in path or "chat" in path]


def make(entry: AdapterEntry, load_id: int) -> ResidentAdapter:
    """`tone` was trained with one more token, and a chat template."""
    resident = fake_resident(entry, load_id)
    if entry.name != "tone":
        return resident
    base = byte_tokenizer().vocabulary
    base.encoder.add_special_tokens([AddedToken("<tone>", special=True)])
    vocabulary = replace(base, pieces=(*base.pieces, b"<tone>"), chat_template="{{ messages[0].content }}:")
    tokenizer = Tokenizer(vocabulary, VOCAB_SIZE + 1)
    template = ChatTemplate("{{ messages[0].content }}:")
    shipped = AdapterTokenizer(tokenizer, {ADDED: "<tone>"}, template)
    return replace(resident, tokenizer=shipped, vocabulary_end=VOCAB_SIZE + 1)


def says_tone(key: CohortKey, index: int) -> int:
    """A model that says one added token where it can, and ends."""
    if index:
        return EOS
    return ADDED if any("tone" in adapter.digest for adapter, _ in key) else ord("x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of --lora-dir; only the names in it count here."""
    folder = tmp_path_factory.mktemp("adapters")
    for name in ("tone", "facts"):
        (folder / f"{name}.gguf").write_bytes(b"GGUF")
    return folder


@pytest.fixture(scope="module")
def loader() -> FakeLoader:
    return FakeLoader(make)


@pytest.fixture(scope="module")
def named(folder: Path, loader: FakeLoader) -> Iterator[LiveServer]:
    """Two adapters of the command line at scale 1, a folder, and a mix of both."""
    settings = fake_settings().model_copy(update={"lora_dir": folder, "mix": (MIX,), "alias": "fake,other"})
    with LiveServer(lambda given: fake_engine(FakeExecutor(says_tone), given, loader=loader), settings) as server:
        yield server


@pytest.fixture(scope="module")
def client(named: LiveServer) -> Iterator[httpx.Client]:
    with named.client() as opened:
        yield opened


def keys_of(server: LiveServer, client: httpx.Client, path: str, **fields: object) -> set[CohortKey]:
    """The keys under which a request was computed."""
    executor = server.engine.loop._executor
    assert isinstance(executor, FakeExecutor)
    executor.batches.clear()
    response = client.post(path, json=BODIES[path] | fields)
    assert response.status_code == 200, response.text
    return {batch.key for batch in executor.batches}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("model", "lora"),
    [
        ("facts", [{"id": 2, "scale": 1}]),
        ("fake:facts", [{"name": "facts", "scale": 1}]),
        ("other:adapter1", [{"id": 1, "scale": 1}]),
        ("support", [{"id": 0, "scale": 0.5}, {"name": "tone", "scale": -0.25}]),
        ("other:support", [{"name": "tone", "id": 3, "scale": -0.25}, {"id": 0, "scale": 0.5}]),
        ("fake", [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]),
        ("other", []),
    ],
)
def test_every_route_takes_every_kind_of_name(
    named: LiveServer, client: httpx.Client, path: str, model: str, lora: list[dict[str, object]]
) -> None:
    by_name = keys_of(named, client, path, model=model)
    assert by_name == keys_of(named, client, path, lora=lora) == {key_of(named.engine, lora)}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("model", ["nobody", "fake:nobody", "fake:", "other:fake", "support:tone", "../x"])
def test_an_unknown_name_is_404_in_the_dialects_form(client: httpx.Client, path: str, model: str) -> None:
    response = client.post(path, json=BODIES[path] | {"model": model})
    error = response.json()["error"]
    assert response.status_code == 404
    assert error["message"].startswith(f"The model `{model}` does not exist; there are fake, other, adapter0, adapter1")
    if path in OPENAI_ROUTES:
        assert (error["code"], error["type"], error["param"]) == ("model_not_found", "invalid_request_error", "model")
    else:
        assert (error["code"], error["type"]) == (404, "not_found_error")


def test_openais_client_knows_the_error(named: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{named.url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S) as opened:
        with pytest.raises(openai.NotFoundError) as error:
            opened.completions.create(model="nobody", prompt="a")
        assert error.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "shown"), [("facts", "facts"), ("fake:support", "fake:support"), ("other", "fake"), (None, "fake")]
)
def test_answers_carry_the_name_that_chose_the_list(
    client: httpx.Client, model: str | None, shown: str, stream: bool
) -> None:
    response = client.post("/v1/completions", json={"prompt": "a", "model": model, "stream": stream})
    answers: list[dict[str, Any]] = list(frames(response)) if stream else [response.json()]
    assert {answer["model"] for answer in answers} == {shown}


def test_models_are_the_base_then_adapters_and_mixes(client: httpx.Client, folder: Path) -> None:
    base, *others = client.get("/v1/models").json()["data"]
    assert (base["id"], base["aliases"], base["parent"]) == ("fake", ["fake", "other"], None)
    assert [(item["id"], item["parent"], item["root"], item.get("lora")) for item in others] == [
        ("adapter0", "fake", "adapter0.gguf", None),
        ("adapter1", "fake", "adapter1.gguf", None),
        ("facts", "fake", str(folder / "facts.gguf"), None),
        ("tone", "fake", str(folder / "tone.gguf"), None),
        ("support", "fake", "fake.gguf", [{"name": "adapter0", "scale": 0.5}, {"name": "tone", "scale": -0.25}]),
    ]


def test_an_adapter_of_the_folder_is_loaded_when_it_is_first_used(folder: Path) -> None:
    loader = FakeLoader()
    settings = fake_settings().model_copy(update={"lora_dir": folder})
    with (
        LiveServer(lambda given: fake_engine(FakeExecutor(), given, loader=loader), settings) as server,
        server.client() as client,
    ):
        assert [item["scale"] for item in client.get("/lora-adapters").json()] == [1.0, 1.0, 0.0, 0.0]
        assert [item["task_name"] for item in client.get("/lora-adapters").json()] == ["task 0", "task 1", "", ""]
        assert loader.loaded == []
        for _ in range(2):
            assert client.post("/completion", json={"prompt": "a", "model": "facts"}).status_code == 200
        assert loader.loaded == ["facts"]
        assert 'cohort_adapter_loaded{adapter="facts"} 1.0' in client.get("/metrics").text
        # The current scales count for it as for any other.
        assert client.post("/lora-adapters", json=[{"name": "tone", "scale": 0.5}]).status_code == 200
        assert client.post("/completion", json={"prompt": "a"}).status_code == 200
        assert loader.loaded == ["facts", "tone"]
        assert client.get("/lora-adapters").json()[3]["scale"] == 0.5


def test_an_adapter_that_appears_later_is_found_by_its_name(folder: Path) -> None:
    settings = fake_settings(num_adapters=0).model_copy(update={"lora_dir": folder})
    with LiveServer(lambda given: fake_engine(FakeExecutor(), given), settings) as server, server.client() as client:
        body = {"prompt": "a", "model": "fake:late"}
        assert client.post("/completion", json=body).status_code == 404
        late = folder / "late.gguf"
        late.write_bytes(b"GGUF")
        try:
            assert client.post("/completion", json=body).status_code == 200
        finally:
            late.unlink()
        assert [item["path"] for item in client.get("/lora-adapters").json()][-1] == str(late)


def test_an_adapter_that_cannot_be_loaded_is_an_error_and_named(folder: Path) -> None:
    def refuse(entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        raise AdapterError(f"the adapter {entry.name!r} cannot be loaded: it is damaged")

    settings = fake_settings(num_adapters=0).model_copy(update={"lora_dir": folder})
    with (
        LiveServer(lambda given: fake_engine(FakeExecutor(), given, loader=FakeLoader(refuse)), settings) as server,
        server.client() as client,
    ):
        for path, body in BODIES.items():
            response = client.post(path, json=body | {"model": "facts"})
            assert response.status_code == 500
            assert response.json()["error"]["message"] == "the adapter 'facts' cannot be loaded: it is damaged"
        assert client.post("/completion", json={"prompt": "a"}).status_code == 200
        assert server.engine.adapters.residency.num_references == 0


def test_a_slot_shows_its_list_with_ids_and_names(named: LiveServer, folder: Path) -> None:
    turnstile = Turnstile()
    settings = fake_settings(num_adapters=1).model_copy(update={"lora_dir": folder})
    executor = FakeExecutor(turnstile=turnstile)
    with LiveServer(lambda given: fake_engine(executor, given), settings) as server, server.client() as client:
        with client.stream("POST", "/completion", json={"prompt": "a", "model": "tone", "stream": True}):
            turnstile.wait_for_step(1)
            [lora] = [slot["params"]["lora"] for slot in client.get("/slots").json() if slot["is_processing"]]
            assert lora == [
                {"id": 0, "name": "adapter0", "scale": 0.0},
                {"id": 2, "name": "tone", "scale": 1.0},
            ]
            assert server.engine.adapters.residency.num_references == 1
            turnstile.open()
        until(lambda: server.engine.adapters.residency.num_references == 0)


# What a list is read with.


def test_the_tokens_of_an_adapter_are_text_where_it_is_used_and_nowhere_else(client: httpx.Client) -> None:
    body = {"content": "<tone>", "with_pieces": True}
    assert client.post("/tokenize", json=body | {"model": "tone"}).json() == {
        "tokens": [{"id": ADDED, "piece": "<tone>"}]
    }
    assert len(client.post("/tokenize", json=body).json()["tokens"]) == 6
    assert client.post("/detokenize", json={"tokens": [ADDED], "model": "support"}).json()["content"] == "<tone>"
    assert client.post("/detokenize", json={"tokens": [ADDED]}).status_code == 400
    assert client.post("/tokenize", json=body | {"model": "nobody"}).status_code == 404


def test_a_prompt_an_answer_and_its_probabilities_may_hold_them(client: httpx.Client) -> None:
    body = {"prompt": "<tone>a", "model": "tone", "n_probs": 1, "return_tokens": True, "logit_bias": [["<tone>", 1]]}
    answer = client.post("/completion", json=body).json()
    assert (answer["tokens"], answer["content"], answer["tokens_evaluated"]) == ([ADDED, EOS], "<tone>", 3)
    assert answer["prompt"] == "<s><tone>a"
    assert answer["completion_probabilities"][0]["token"] == "<tone>"
    assert answer["generation_settings"]["logit_bias"] == [{"bias": 1.0, "token": ADDED}]
    assert client.post("/completion", json={"prompt": [ADDED], "model": "facts"}).status_code == 400
    assert client.post("/completion", json={"prompt": [ADDED], "model": "fake:tone"}).status_code == 200


def test_a_conversation_is_rendered_by_the_template_of_the_list(client: httpx.Client) -> None:
    body: dict[str, object] = {"messages": [{"role": "user", "content": "hi"}]}
    own = client.post("/apply-template", json=body | {"model": "tone"}).json()["prompt"]
    base = client.post("/apply-template", json=body).json()["prompt"]
    assert (own, base) == ("hi:", "<user>hi\n<assistant>")
    asked = body | {"lora": [{"name": "tone", "scale": 0.5}, {"name": "facts", "scale": 1}]}
    assert client.post("/v1/chat/completions", json=asked).json()["usage"]["prompt_tokens"] == 1 + len(own)
