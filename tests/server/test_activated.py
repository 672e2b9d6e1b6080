"""Activated adapters over HTTP: PEFT's own answers with a small model, and with the demo model in float32 the same
tokens together and over several turns as alone and uncached.
"""

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import save_file
from transformers import PreTrainedModel

from server.adapters.arguments import AdapterArgument
from server.assembly import load_engine
from server.settings import Settings
from tests.model.adapter_makers import attach, convert_to_gguf, make_peft_adapter
from tests.model.tiny import make_model
from tests.server.live import LiveServer

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

Lora = list[dict[str, float]]
LATE: Lora = [{"id": 0, "scale": 1}]
BASE: Lora = [{"id": 0, "scale": 0}]
NUM_TOKENS = 12


def settings_for(model: Path, adapters: Sequence[Path], **changes: object) -> Settings:
    given = {"model": model, "port": 0, "parallel": 4, "batch_size": 16, "device": "cpu", "dtype": "float32"}
    lora = tuple(AdapterArgument(str(path)) for path in adapters)
    return Settings.model_validate(given | {"threads": 1, "lora": lora} | changes)


def ask(client: httpx.Client, prompt: object, lora: Lora, **fields: object) -> dict[str, Any]:
    """Return the answer to a prompt, greedy, of just so many tokens."""
    body = {"prompt": prompt, "lora": lora, "n_predict": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    response = client.post("/completion", json=body | {"return_tokens": True} | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def ask_together(client: httpx.Client, prompts: Sequence[object], lora: Lora) -> list[list[int]]:
    with ThreadPoolExecutor(len(prompts)) as threads:
        return [answer["tokens"] for answer in threads.map(lambda prompt: ask(client, prompt, lora), prompts)]


# A small model, against PEFT.

INVOCATION = [7, 9]
PROMPTS = [
    [*range(20, 60), 7, 9, 11, 12],
    [*range(20, 36), 7, 9],
    [7, 9, 30, 31, 7, 7, 9, 32],
    [7, 9, *range(20, 60)],
]


class Files:
    """A tiny llama, an activated adapter of it as PEFT and as GGUF, and a plain one."""

    def __init__(self, folder: Path) -> None:
        self.base: PreTrainedModel = make_model("llama", folder / "base")
        self.model = folder / "base"
        fields = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
        config = LoraConfig(**fields, alora_invocation_tokens=INVOCATION)
        self.late = make_peft_adapter(self.base, folder / "late", config, seed=1)
        self.converted = convert_to_gguf(self.base, self.late, folder / "late.gguf")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("late"))


@pytest.fixture(scope="module")
def client(files: Files) -> Iterator[httpx.Client]:
    settings = settings_for(files.model, [files.late, files.converted])
    with LiveServer(load_engine, settings) as server, server.client() as client:
        yield client


def generated(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    """What transformers, or PEFT on top of it, generates: there the place of the invocation is that in the prompt."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        tokens: list[int] = model.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            suppress_tokens=[0, 2],  # what ends generation is ignored here
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize("adapter", [0, 1], ids=["peft", "gguf"])
def test_answers_are_those_of_peft(files: Files, client: httpx.Client, adapter: int) -> None:
    adapted = attach(files.base, {"late": files.late})
    wanted = [generated(adapted, prompt) for prompt in PROMPTS]
    lora: Lora = [{"id": adapter, "scale": 1}]
    assert [ask(client, prompt, lora, cache_prompt=False)["tokens"] for prompt in PROMPTS] == wanted
    assert ask_together(client, PROMPTS, lora) == wanted
    assert wanted != [generated(files.base, prompt) for prompt in PROMPTS]


def test_a_prompt_without_the_invocation_is_answered_by_the_base_model(files: Files, client: httpx.Client) -> None:
    prompt = [20, 7, 21, 9, 7]
    answer = ask(client, prompt, LATE)
    assert answer["tokens"] == generated(files.base, prompt)
    assert [each["scale"] for each in answer["generation_settings"]["lora"]] == [0.0, 0.0]
    invoked = ask(client, [*prompt, 9], LATE)["generation_settings"]["lora"]
    assert [(each["id"], each["scale"]) for each in invoked] == [(0, 1.0), (1, 0.0)]


def test_a_base_request_and_an_activated_one_share_the_blocks_before_the_invocation(client: httpx.Client) -> None:
    prompt = [*range(100, 140), 7, 9, *range(100, 110)]
    assert ask(client, prompt, BASE)["timings"]["cache_n"] == 0
    assert ask(client, prompt, LATE)["timings"]["cache_n"] == 32
    assert ask(client, prompt, LATE)["timings"]["cache_n"] == 48


def test_several_prompts_of_one_request_have_their_own_boundaries(files: Files, client: httpx.Client) -> None:
    adapted = attach(files.base, {"late": files.late})
    body = {"prompt": [*PROMPTS[1:3], [20, 21]], "lora": LATE, "n_predict": NUM_TOKENS, "temperature": 0}
    response = client.post("/completion", json=body | {"ignore_eos": True, "return_tokens": True})
    wanted = [generated(adapted, prompt) for prompt in PROMPTS[1:3]]
    assert [answer["tokens"] for answer in response.json()] == [*wanted, generated(files.base, [20, 21])]


def test_the_invocation_is_shown(client: httpx.Client) -> None:
    first, second = client.get("/lora-adapters").json()
    shown = ["id", "path", "scale", "task_name", "prompt_prefix", "alora_invocation_string", "alora_invocation_tokens"]
    assert list(first) == list(second) == shown
    text = client.post("/detokenize", json={"tokens": INVOCATION}).json()["content"]
    assert (first["alora_invocation_string"], first["alora_invocation_tokens"]) == (text, INVOCATION)


# The demo model.

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
ASSISTANT = "<|im_start|>assistant\n"
QUESTIONS = ("What is bread?", "Why is the sky blue?", "Name three rivers.", "How far away is the moon?")


def ask_for(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n{ASSISTANT}"


def write_random_adapter(folder: Path, invocation_tokens: list[int]) -> Path:
    """Write an aLoRA adapter of rank 4 for the demo model: 30 layers, 576 features, 3 KV heads of 64."""
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for layer in range(30):
        for module, out_features in (("q_proj", 576), ("v_proj", 192)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(4, 576, generator=generator) * 0.05
            tensors[f"{name}.lora_B.weight"] = torch.randn(out_features, 4, generator=generator) * 0.05
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    config |= {"alora_invocation_tokens": invocation_tokens}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def demo(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The demo model in float32 with an adapter that the beginning of an assistant's turn invokes."""
    invocation_tokens = [1, 520, 9531, 198]
    adapter = write_random_adapter(tmp_path_factory.mktemp("demo") / "late", invocation_tokens)
    settings = settings_for(smollm2_path, [adapter], ctx_size=1024, threads=2, batch_size=64)
    with LiveServer(load_engine, settings) as server, server.client() as client:
        assert client.get("/lora-adapters").json()[0]["alora_invocation_string"] == ASSISTANT
        yield client


def num_full_steps(client: httpx.Client) -> float:
    """How many steps had more than two rows."""
    buckets = dict(re.findall(r'cohort_step_rows_bucket\{le="(.+?)"\} (.+)', client.get("/metrics").text))
    return float(buckets["+Inf"]) - float(buckets["2.0"])


def test_four_in_parallel_are_answered_as_each_alone_and_uncached(demo: httpx.Client) -> None:
    prompts = [SYSTEM + ask_for(question) for question in QUESTIONS]
    before = num_full_steps(demo)
    together = ask_together(demo, prompts, LATE)
    assert num_full_steps(demo) > before, "they did not meet"
    alone = [ask(demo, prompt, LATE, cache_prompt=False)["tokens"] for prompt in prompts]
    assert together == alone
    assert len({tuple(tokens) for tokens in alone}) == 4
    assert alone != [ask(demo, prompt, BASE)["tokens"] for prompt in prompts]


def test_three_turns_are_answered_as_each_alone_and_uncached(demo: httpx.Client) -> None:
    conversation = SYSTEM
    cached = []
    for question in QUESTIONS[:3]:
        conversation += ask_for(question)
        answer = ask(demo, conversation, LATE)
        assert answer["tokens"] == ask(demo, conversation, LATE, cache_prompt=False)["tokens"]
        cached.append(answer["timings"]["cache_n"])
        conversation += f"{answer['content']}<|im_end|>\n"
    assert cached[1] > 0
    assert cached[2] > cached[1], "each turn finds what the base model computed of the one before"
