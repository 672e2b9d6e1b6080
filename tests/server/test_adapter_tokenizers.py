"""An adapter that comes with a tokenizer and rows of its own, over HTTP: what PEFT and transformers do with the same
files."""

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from peft import LoraConfig, PeftModel
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from server.assembly import load_engine
from tests.model.adapter_makers import make_peft_adapter
from tests.model.tiny import VOCAB_SIZE, make_model
from tests.server.live import LiveServer
from tests.server.test_activated import BASE, Lora, ask, settings_for

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

ADDED = ["<|think|>", "<|done|>"]
TEXT = "the <|think|> atlas<|done|><|think|>"
OWN: Lora = [{"id": 0, "scale": 1}]
NUM_TOKENS = 12


class Files:
    """A tiny model, and an adapter with two more tokens, as PEFT and transformers save them."""

    def __init__(self, folder: Path) -> None:
        self.model = folder / "base"
        base: PreTrainedModel = make_model("llama", self.model)
        base.resize_token_embeddings(VOCAB_SIZE + len(ADDED), mean_resizing=False)
        self.resized = base
        config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
        self.adapter = make_peft_adapter(base, folder / "adapter", config)
        self.tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(self.model)
        self.tokenizer.add_tokens(ADDED, special_tokens=True)
        self.tokenizer.eos_token = "<|done|>"
        self.tokenizer.chat_template = "{% for message in messages %}<|think|>{{ message.content }}{% endfor %}"
        self.tokenizer.save_pretrained(self.adapter)

    def generated(self, prompt: list[int]) -> list[int]:
        """What PEFT generates with the adapter."""
        model = PeftModel.from_pretrained(copy.deepcopy(self.resized), self.adapter).eval()
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            tokens: list[int] = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                suppress_tokens=[0, 2, VOCAB_SIZE + 1],  # what ends generation is ignored here
                eos_token_id=None,
                pad_token_id=0,
            )[0, len(prompt) :].tolist()
        return tokens


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def client(files: Files) -> Iterator[httpx.Client]:
    plain = shutil.copytree(files.adapter, files.adapter.with_name("plain"))
    for path in plain.iterdir():
        if not path.name.startswith("adapter_"):
            path.unlink()
    settings = settings_for(files.model, [files.adapter, plain])
    with LiveServer(load_engine, settings) as server, server.client() as client:
        yield client


def test_prompts_and_answers_hold_the_adapters_tokens(files: Files, client: httpx.Client) -> None:
    prompt: list[int] = files.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert {VOCAB_SIZE, VOCAB_SIZE + 1} <= set(prompt)
    answer = ask(client, TEXT, OWN)
    assert answer["tokens"] == files.generated(prompt)
    assert answer["tokens_evaluated"] == len(prompt)
    assert answer["prompt"] == TEXT
    assert ask(client, prompt, OWN)["tokens"] == answer["tokens"]


def test_other_requests_know_nothing_of_them(client: httpx.Client) -> None:
    num_tokens = ask(client, TEXT, BASE)["tokens_evaluated"]
    assert num_tokens > ask(client, TEXT, OWN)["tokens_evaluated"]
    body = {"prompt": [VOCAB_SIZE], "lora": BASE}
    refused = client.post("/completion", json=body)
    assert (refused.status_code, f"0 to {VOCAB_SIZE - 1}" in refused.text) == (400, True)


def test_rows_without_a_tokenizer_are_reached_by_their_ids(files: Files, client: httpx.Client) -> None:
    prompt: list[int] = files.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    answer = ask(client, prompt, [{"id": 1, "scale": 1}], logit_bias=[[VOCAB_SIZE + 1, False]])
    assert answer["tokens"] == files.generated(prompt)
    assert answer["prompt"] == "the  atlas"


def test_the_adapters_end_of_turn_ends_its_answers(client: httpx.Client) -> None:
    body = {"prompt": TEXT, "n_predict": 5, "temperature": 0, "logit_bias": [[VOCAB_SIZE + 1, 1000.0]]}
    answer = client.post("/completion", json=body | {"lora": OWN}).json()
    assert (answer["stop_type"], answer["tokens_predicted"], answer["content"]) == ("eos", 1, "")


def test_its_chat_template_makes_the_prompts_of_its_conversations(files: Files, client: httpx.Client) -> None:
    conversation = {"messages": [{"role": "user", "content": "hi"}]}
    own = client.post("/apply-template", json=conversation | {"lora": OWN}).json()
    base = client.post("/apply-template", json=conversation | {"lora": BASE}).json()
    assert own == {"prompt": "<|think|>hi"}
    assert base == {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"}
    usage = client.post("/v1/chat/completions", json=conversation | {"model": files.adapter.name, "max_tokens": 1})
    assert usage.json()["usage"]["prompt_tokens"] == 3


def test_a_tokenizer_of_another_model_stops_the_start(files: Files, tmp_path: Path) -> None:
    other = shutil.copytree(files.adapter, tmp_path / "other")
    for path in other.glob("*token*.json"):
        path.write_text(path.read_text().replace("<|endoftext|>", "<|other|>"))
    message = r"'other'.*token 0 .* is '<\|other\|>', the base model's is '<\|endoftext\|>'"
    with pytest.raises(ValueError, match=message):
        load_engine(settings_for(files.model, [other]))
