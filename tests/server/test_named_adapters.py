"""Adapters by name with real files: loaded when first used, evicted and loaded again, mixed, taken over by another
model; and tokens that an adapter adds. What HTTP answers is what transformers and PEFT compute.
"""

import copy
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch
from peft import LoraConfig
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedModel

from model.adapters.tensors import AdapterError
from server.adapters.arguments import AdapterArgument, MixArgument
from server.assembly import load_engine
from server.engine import Engine
from server.errors import ModelUnknown
from server.settings import Settings
from tests.model.adapter_makers import attach, make_peft_adapter, set_scales
from tests.model.tiny import VOCAB_SIZE, make_model
from tests.server.live import LiveServer, frames

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
]

PROMPT = [5, 17, 33, 120, 200, 7, 9]
NUM_TOKENS = 6
TONE = "<tone>"
MIX = MixArgument("support", (("first", 0.5), ("second", -0.75)))


@dataclass(frozen=True)
class Files:
    """A tiny llama, three adapters of it in a folder, and other models."""

    base: PreTrainedModel
    resized: PreTrainedModel
    """The base with a row of zeros for the token that the adapter `tone` adds."""
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / "adapters"

    def oracle(self, **scales: float) -> list[int]:
        """What PEFT generates with these adapters."""
        if not scales:
            return greedy(self.base, PROMPT)
        adapted = attach(self.base, {name: self.folder / name for name in scales})
        set_scales(adapted, scales)
        return greedy(adapted, PROMPT)


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompt: Sequence[int]) -> list[int]:
    """Return the greedy tokens after a prompt."""
    ids = list(prompt)
    for _ in range(NUM_TOKENS):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    root = tmp_path_factory.mktemp("files")
    base = make_model("llama", root / "base")
    make_model("llama", root / "twin", seed=9)
    make_model("llama", root / "wide", changes={"hidden_size": 32})
    resized = copy.deepcopy(base)
    base.name_or_path = resized.name_or_path = str(root / "base")  # where PEFT looks whether it was resized
    resized.resize_token_embeddings(VOCAB_SIZE + 1, mean_resizing=False)
    with torch.no_grad():
        resized.get_input_embeddings().weight[VOCAB_SIZE:] = 0
        resized.get_output_embeddings().weight[VOCAB_SIZE:] = 0
    files = Files(base, resized, root)
    plain = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    make_peft_adapter(base, files.folder / "first", plain, seed=1)
    make_peft_adapter(base, files.folder / "second", LoraConfig(r=2, lora_alpha=8, target_modules="all-linear"), seed=2)
    saved = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    tone = make_peft_adapter(resized, files.folder / "tone", saved, seed=3)
    tokenizer = Tokenizer.from_file(str(root / "base" / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(TONE, normalized=False)])
    tokenizer.save(str(tone / "tokenizer.json"))
    return files


def settings_of(files: Files, **changes: object) -> Settings:
    """Settings that serve the files in float32."""
    given = {
        "model": files.root / "base",
        "alias": "tiny",
        "port": 0,
        "ctx_size": 256,
        "parallel": 2,
        "batch_size": 16,
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "lora_dir": files.folder,
        "mix": (MIX,),
    }
    return Settings.model_validate(given | changes)


@pytest.fixture(scope="module")
def server(files: Files) -> Iterator[LiveServer]:
    """Only two of the three adapters fit in memory."""
    with LiveServer(load_engine, settings_of(files, max_loras=2)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def ask(client: httpx.Client, prompt: object = PROMPT, **fields: object) -> list[int]:
    """Return the greedy tokens that the server answers with."""
    body = {"prompt": prompt, "n_predict": NUM_TOKENS, "temperature": 0, "return_tokens": True, "ignore_eos": True}
    response = client.post("/completion", json=body | fields)
    assert response.status_code == 200, response.text
    tokens: list[int] = response.json()["tokens"]
    return tokens


def test_names_choose_what_peft_computes_however_often_adapters_are_evicted(
    server: LiveServer, client: httpx.Client, files: Files
) -> None:
    assert ask(client) == files.oracle()
    wanted = {
        "first": files.oracle(first=1),
        "tiny:second": files.oracle(second=1),
        "support": files.oracle(first=0.5, second=-0.75),
    }
    assert len({tuple(tokens) for tokens in wanted.values()}) == 3
    for _ in range(2):
        for model, tokens in wanted.items():
            assert ask(client, model=model) == tokens
            assert ask(client, model="tone") != tokens
    lora = [{"name": "second", "scale": -0.75}, {"name": "first", "scale": 0.5}]
    assert ask(client, lora=lora) == wanted["support"]
    assert ask(client, model="tiny") == files.oracle()
    assert len(server.engine.adapters.residency.residents) == 2
    assert server.engine.adapters.residency.num_references == 0


def test_a_list_that_does_not_fit_in_memory_is_refused(client: httpx.Client) -> None:
    lora = [{"name": name, "scale": 1} for name in ("first", "second", "tone")]
    response = client.post("/completion", json={"prompt": PROMPT, "lora": lora})
    assert response.status_code == 400
    assert "--max-loras" in response.json()["error"]["message"]


def test_an_unknown_name_is_never_answered_by_the_base_model(client: httpx.Client) -> None:
    for model in ("third", "tiny:third", "gpt-4"):
        assert client.post("/v1/completions", json={"prompt": "a", "model": model}).status_code == 404


def test_a_damaged_adapter_is_an_error_and_named(files: Files, client: httpx.Client) -> None:
    damaged = files.folder / "damaged"
    damaged.mkdir()
    (damaged / "adapter_config.json").write_text("{}", encoding="utf-8")
    response = client.post("/completion", json={"prompt": PROMPT, "model": "damaged"})
    assert response.status_code == 500
    assert "'damaged' cannot be loaded" in response.json()["error"]["message"]
    assert ask(client) == files.oracle()
    shutil.rmtree(damaged)


# Added tokens.


def test_added_tokens_are_tokens_of_requests_that_use_their_adapter(client: httpx.Client, files: Files) -> None:
    ids = client.post("/tokenize", json={"content": f"{TONE} the", "model": "tone"}).json()["tokens"]
    assert ids[0] == VOCAB_SIZE
    assert VOCAB_SIZE not in client.post("/tokenize", json={"content": f"{TONE} the"}).json()["tokens"]
    wanted = greedy(attach(files.resized, {"tone": files.folder / "tone"}), ids)
    assert ask(client, ids, model="tone") == ask(client, f"{TONE} the", model="tiny:tone") == wanted


def test_added_tokens_are_generated_and_streamed_as_text(client: httpx.Client) -> None:
    body = {"prompt": "the", "model": "tone", "max_tokens": 2, "temperature": 0, "stream": True, "logprobs": 1}
    response = client.post("/v1/completions", json=body | {"logit_bias": {TONE: 1000}, "ignore_eos": True})
    chunks = [chunk["choices"][0] for chunk in frames(response)]
    tokens = [each["token"] for chunk in chunks if chunk["logprobs"] for each in chunk["logprobs"]["content"]]
    assert tokens == [TONE, TONE]
    assert "".join(chunk["text"] for chunk in chunks) == TONE + TONE


def test_without_the_adapter_its_tokens_do_not_exist(client: httpx.Client) -> None:
    response = client.post("/completion", json={"prompt": [VOCAB_SIZE], "model": "first"})
    assert response.status_code == 400
    assert f"0 to {VOCAB_SIZE - 1}" in response.json()["error"]["message"]


def test_a_mix_with_the_adapter_has_its_tokens(client: httpx.Client) -> None:
    lora = [{"name": "tone", "scale": 0.5}, {"name": "first", "scale": 1}]
    assert len(ask(client, [VOCAB_SIZE, 7], lora=lora)) == NUM_TOKENS


# The next model.


def adapters_of(engine: Engine) -> list[str]:
    return [resident.name for resident in engine.adapters.residency.residents]


def test_the_next_model_has_the_adapters_of_the_one_before(files: Files) -> None:
    lora = (AdapterArgument(f"pinned={files.folder / 'second'}"),)
    with LiveServer(load_engine, settings_of(files, lora=lora, mix=())) as server, server.client() as client:
        assert client.post("/completion", json={"prompt": PROMPT, "model": "first", "n_predict": 1}).status_code == 200
        before = server.engine
        following = load_engine(settings_of(files, model=files.root / "twin", alias="twin", lora=lora), before)
        assert adapters_of(before) == adapters_of(following) == ["pinned", "first"]
        ids = [resident.id for engine in (before, following) for resident in engine.adapters.residency.residents]
        assert len({adapter.load_id for adapter in ids}) == 4
        assert ids[0].digest == ids[2].digest

        catalog = following.adapters.catalog
        assert catalog.entries == before.adapters.catalog.entries
        assert catalog.resolve(None, "twin:first") == before.adapters.catalog.resolve(None, "tiny:first")
        with pytest.raises(ModelUnknown):
            catalog.resolve(None, "tiny:first")
        assert client.post("/lora-adapters", json=[{"name": "first", "scale": 0.25}]).status_code == 200
        assert [(entry.name, scale) for entry, scale in catalog.current] == [("first", 0.25)]


def test_a_model_that_an_adapter_does_not_fit_is_refused_by_the_adapters_name(files: Files) -> None:
    before = load_engine(settings_of(files, lora=(AdapterArgument(f"pinned={files.folder / 'second'}"),), mix=()))
    with pytest.raises(AdapterError, match="'pinned'"):
        load_engine(settings_of(files, model=files.root / "wide", alias="wide"), before)
    assert adapters_of(before) == ["pinned"]
    assert before.adapters.catalog.base_names == ("tiny",)


def test_an_adapter_of_the_command_line_that_cannot_be_loaded_ends_the_start(files: Files) -> None:
    with pytest.raises(AdapterError, match="'odd'"):
        load_engine(settings_of(files, lora=(AdapterArgument(f"odd={files.root / 'base'}"),)))


def test_adapters_that_stay_must_fit(files: Files) -> None:
    lora = tuple(AdapterArgument(str(files.folder / name)) for name in ("first", "second"))
    with pytest.raises(ValueError, match="--max-loras"):
        load_engine(settings_of(files, lora=lora, max_loras=1))
