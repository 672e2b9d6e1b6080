"""The composition root, with real files: what HTTP answers is what transformers and PEFT compute."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch
from peft import LoraConfig
from transformers import PreTrainedModel

from scheduler.admission import ArrivalQueue
from scheduler.batch import SamplingParams
from scheduler.fairness import FairnessSettings, FairQueue
from scheduler.request import Request
from scheduler.turns import Draining
from server.adapters.arguments import AdapterArgument
from server.adapters.weights import AdapterWeight
from server.assembly import choose_chat_template, load_engine
from server.settings import Settings
from tests.model.adapter_makers import attach, make_peft_adapter, set_scales
from tests.model.tiny import CHAT_TEMPLATE, make_model
from tests.server.fakes import FakeExecutor, byte_tokenizer, current_key, fake_engine, fake_settings
from tests.server.live import LiveServer

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

PROMPT = [5, 17, 33, 120, 200, 7, 9]
NUM_TOKENS = 6


@dataclass(frozen=True)
class Files:
    """A tiny random model and two adapters for it on disk."""

    base: PreTrainedModel
    model: Path
    adapters: tuple[Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A llama, an adapter of its attention and one of everything."""
    folder = tmp_path_factory.mktemp("files")
    base = make_model("llama", folder / "base")
    attention = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    everything = LoraConfig(r=2, lora_alpha=8, target_modules="all-linear")
    first = make_peft_adapter(base, folder / "first", attention, seed=1)
    second = make_peft_adapter(base, folder / "second", everything, seed=2)
    return Files(base, folder / "base", (first, second))


def settings_of(files: Files, **changes: object) -> Settings:
    """Settings that serve the files in float32."""
    given = {
        "model": files.model,
        "port": 0,
        "ctx_size": 256,
        "parallel": 2,
        "batch_size": 16,
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "lora": tuple(AdapterArgument(str(path)) for path in files.adapters),
    }
    return Settings.model_validate(given | changes)


@torch.inference_mode()
def greedy(model: torch.nn.Module) -> list[int]:
    """Return the greedy tokens after PROMPT."""
    ids = list(PROMPT)
    for _ in range(NUM_TOKENS):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def ask(client: httpx.Client, lora: object = None, model: str | None = None) -> Sequence[int]:
    """Return the greedy tokens that the server answers with."""
    body = {"prompt": PROMPT, "n_predict": NUM_TOKENS, "temperature": 0, "return_tokens": True, "ignore_eos": True}
    response = client.post("/completion", json=body | {"lora": lora, "model": model})
    assert response.status_code == 200, response.text
    tokens: list[int] = response.json()["tokens"]
    return tokens


def test_answers_are_those_of_transformers_and_peft(files: Files) -> None:
    adapted = attach(files.base, {"first": files.adapters[0], "second": files.adapters[1]})
    with LiveServer(load_engine, settings_of(files)) as server, server.client() as client:

        def oracle(first: float, second: float) -> list[int]:
            # PEFT multiplies a scale that is set by the adapter's own factor.
            set_scales(adapted, {"first": first, "second": second})
            return greedy(adapted)

        base = greedy(files.base)
        assert ask(client, [{"id": 0, "scale": 0}]) == base
        assert ask(client) == ask(client, [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]) == oracle(1, 1)
        assert ask(client, [{"id": 0, "scale": 0.5}, {"id": 1, "scale": -0.75}]) == oracle(0.5, -0.75)
        assert ask(client, model="first") == ask(client, [{"id": 0, "scale": 1}]) == oracle(1, 0)
        assert ask(client, model="second") == oracle(0, 1) != base

        assert client.post("/lora-adapters", json=[]).status_code == 200
        assert ask(client) == base


def test_adapters_can_start_at_zero(files: Files) -> None:
    engine = load_engine(settings_of(files, lora_init_without_apply=True))
    assert [engine.adapters.catalog.scale_of(entry) for entry in engine.adapters.catalog.entries] == [0.0, 0.0]
    assert current_key(engine) == ()


def test_no_layers_on_a_card_means_the_cpu(files: Files) -> None:
    assert load_engine(settings_of(files, device="auto", gpu_layers=0)).model.n_ctx == 128
    with pytest.raises(ValueError, match="--gpu-layers 0 keeps the model off the card that --device cuda asks for"):
        load_engine(settings_of(files, device="cuda", gpu_layers=0))


def test_the_engine_tells_what_it_serves(files: Files) -> None:
    engine = load_engine(settings_of(files, alias="z,a"))
    assert engine.model.names == ("a", "z")
    assert engine.model.n_ctx == 128
    assert engine.model.n_vocab == files.base.config.vocab_size
    assert engine.model.path == str(files.model)
    assert [entry.name for entry in engine.adapters.catalog.entries] == ["first", "second"]
    assert engine.loop.scheduler.limits.num_slots == 2
    assert engine.chat_template is not None
    assert engine.chat_template.source == CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"model": "no/such/model"}, "no/such/model"),
        ({"lora": (AdapterArgument("no/such/adapter"),)}, "no/such/adapter"),
        ({"chat_template": "{% if %}"}, "chat template"),
        ({"chat_template_file": "no/such/template"}, "no/such/template"),
        ({"ctx_size": 2}, "--ctx-size 2"),
        ({"dtype": "float16"}, "float16"),
        ({"adapter_weight": (AdapterWeight("third", 2.0),)}, "'third'; there are base, first, second"),
    ],
)
def test_what_cannot_be_loaded_is_named(files: Files, changes: dict[str, object], part: str) -> None:
    with pytest.raises((ValueError, OSError), match=part):
        load_engine(settings_of(files, **changes))


def test_weights_reach_the_scheduler_by_the_adapters_names(files: Files) -> None:
    weights = (AdapterWeight("second", 4.0),)
    engine = load_engine(settings_of(files, adapter_weight=weights, fair_slack=7, max_wait=0.5, max_active_lists=1))
    queue = engine.loop.scheduler.queue
    assert isinstance(queue, FairQueue)
    assert queue.settings == FairnessSettings(max_wait_s=0.5, slack_tokens=7, max_active_lists=1)
    keys = [asyncio.run(engine.adapters.acquire(None, model)).key for model in ("first", "second")]
    for request_id, key in enumerate(keys):
        queue.push(Request(request_id, key, (1,), SamplingParams(), 1), 0.0)
    for key in keys:
        queue.served(key, 8, 0, 0.0)
    assert [queue.service_of(key) for key in keys] == [8, 2]


@pytest.mark.parametrize(("policy", "queue"), [("fair", FairQueue), ("fcfs", ArrivalQueue), ("drain", ArrivalQueue)])
def test_the_policy_is_the_settings_one(policy: str, queue: type) -> None:
    settings = fake_settings().model_copy(update={"policy": policy})
    scheduler = fake_engine(FakeExecutor(), settings).loop.scheduler
    assert isinstance(scheduler.queue, queue)
    assert isinstance(scheduler.turns, Draining) == (policy == "drain")


def test_a_template_of_the_settings_goes_before_the_models(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer("{{ 'own' }}")
    file = tmp_path / "template.jinja"
    file.write_text("{{ bos_token }}file", encoding="utf-8")
    given = Settings.model_validate({"model": "x", "chat_template": "{{ eos_token }}given"})
    from_file = Settings.model_validate({"model": "x", "chat_template_file": file})
    own = choose_chat_template(Settings.model_validate({"model": "x"}), tokenizer)
    templates = [own, choose_chat_template(given, tokenizer), choose_chat_template(from_file, tokenizer)]
    assert [template.render([]) for template in templates if template] == ["own", "</s>given", "<s>file"]
