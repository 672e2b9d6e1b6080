"""Activated adapters: position by position what PEFT's own forward of aLoRA computes, however the prompt is cut."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from torch import Tensor
from transformers import PreTrainedModel

from model.adapters.adapter import BaseWeights
from model.adapters.files import Adapter, load_adapter
from model.adapters.tensors import AdapterError
from model.backend import choose_backend
from model.checkpoint.weights import load_checkpoint
from model.decoder import Decoder
from model.lora_cache import LoraCache
from model.outputs import Wanted
from model.runner import step_tensors
from scheduler.batch import Row
from scheduler.cohort import Activation, CohortKey, cohort_key, key_at, next_switch
from tests.model.adapter_makers import ALL_LINEAR, attach, convert_to_gguf, edit_config, make_peft_adapter, set_scales
from tests.model.decoding import junk_cache, scattered_tables
from tests.model.tiny import make_model

# PEFT asks transformers by a name that transformers is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

INVOCATION = [7, 9, 7]
LENGTH = 40


class Tiny:
    """A tiny model, an activated adapter and a plain one, as PEFT saves them."""

    def __init__(self, family: str, path: Path) -> None:
        self.oracle: PreTrainedModel = make_model(family, path / "base")
        checkpoint = load_checkpoint(path / "base")
        self.decoder = Decoder(checkpoint.config, checkpoint.tensors, choose_backend("cpu", "float32"))
        self.weights = BaseWeights(checkpoint.config, self.decoder.module_shapes, checkpoint.tensors)
        fields = {"r": 4, "lora_alpha": 6, "target_modules": list(ALL_LINEAR), "task_type": "CAUSAL_LM"}
        late = LoraConfig(**fields, alora_invocation_tokens=INVOCATION)
        self.late_path = make_peft_adapter(self.oracle, path / "late", late, seed=1)
        self.plain_path = make_peft_adapter(self.oracle, path / "plain", LoraConfig(**fields), seed=2)
        self.late, self.plain = self.load(self.late_path, 0), self.load(self.plain_path, 1)

    def load(self, path: Path, load_id: int = 0) -> Adapter:
        return load_adapter(path, load_id, "name", self.weights)

    @torch.inference_mode()
    def logits(self, prompt: Sequence[int], key: CohortKey, start: int, chunk: int) -> Tensor:
        """Compute a prompt in chunks that end at the start of the activated adapter, each under its key."""
        activations = (Activation(start, self.late.id),)
        cache = LoraCache([self.late, self.plain], self.decoder.adaptable, self.decoder.backend, max_bytes=1 << 24)
        num_blocks, [table] = scattered_tables([len(prompt)])
        kv = junk_cache(self.decoder, num_blocks)
        logits = []
        for first, last in chunks(len(prompt), next_switch(activations, 0), chunk):
            row = Row(0, tuple(prompt[first:last]), first, table, sampling=None)
            token_ids, step, _ = step_tensors((row,), torch.device("cpu"))
            stack = cache.get(key_at(key, activations, first))
            logits.append(self.decoder.forward(token_ids, step, Wanted(torch.arange(last - first)), kv, stack).logits)
        return torch.cat(logits)


def chunks(length: int, switch: int | None, size: int) -> Iterator[tuple[int, int]]:
    first = 0
    while first < length:
        last = min(first + size, length)
        if switch is not None and first < switch:
            last = min(last, switch)
        yield first, last
        first = last


def prompt_with(start: int) -> list[int]:
    """A prompt whose last invocation is at `start`; where there is room, another one overlaps or comes before it."""
    prompt = [10 + position for position in range(LENGTH)]
    if start >= 2:
        prompt[start - 2 : start + 1] = INVOCATION
    prompt[start : start + 3] = INVOCATION
    return prompt


@torch.inference_mode()
def oracle_logits(model: torch.nn.Module, prompt: Sequence[int]) -> Tensor:
    logits: Tensor = model(input_ids=torch.tensor([prompt])).logits[0]
    return logits


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("chunk", [100, 5])
def test_logits_are_those_of_peft_for_every_place_of_the_invocation(tiny: Tiny, chunk: int) -> None:
    adapted = attach(tiny.oracle, {"late": tiny.late_path})
    set_scales(adapted, {"late": 0.7})
    for start in range(LENGTH - len(INVOCATION) + 1):
        prompt = prompt_with(start)
        wanted = oracle_logits(adapted, prompt)
        got = tiny.logits(prompt, cohort_key([(tiny.late.id, 0.7)]), start, chunk)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        base = oracle_logits(tiny.oracle, prompt)
        torch.testing.assert_close(got[:start], base[:start], rtol=1e-4, atol=1e-4)
        assert (got[start:] - base[start:]).abs().max(-1).values.min() > 0.1, "the first invocation token is adapted"


def test_a_plain_adapter_beside_it_acts_on_all_tokens(tiny: Tiny) -> None:
    merged = attach(tiny.oracle, {"plain": tiny.plain_path}).merge_and_unload()
    adapted = attach(merged, {"late": tiny.late_path})
    key = cohort_key([(tiny.late.id, 1.0), (tiny.plain.id, 1.0)])
    for start in (0, 15, 16, 20):
        prompt = prompt_with(start)
        got = tiny.logits(prompt, key, start, chunk=100)
        torch.testing.assert_close(got, oracle_logits(adapted, prompt), rtol=2e-4, atol=2e-4)


def test_what_is_before_the_boundary_has_the_bits_of_the_base_model(tiny: Tiny) -> None:
    prompt = prompt_with(20)
    late = tiny.logits(prompt, cohort_key([(tiny.late.id, 1.0)]), 20, chunk=100)
    base = tiny.logits(prompt, (), 20, chunk=100)
    assert torch.equal(late[:20], base[:20])
    assert not torch.equal(late[20], base[20])


def test_the_invocation_comes_with_either_format(tiny: Tiny, tmp_path: Path) -> None:
    converted = tiny.load(convert_to_gguf(tiny.oracle, tiny.late_path, tmp_path / "late.gguf"))
    assert converted.invocation_tokens == tiny.late.invocation_tokens == tuple(INVOCATION)
    assert converted.id == tiny.late.id
    assert tiny.plain.invocation_tokens == ()


def test_tokens_that_the_model_does_not_have_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    path = make_peft_adapter(tiny.oracle, tmp_path / "a", LoraConfig(r=1, target_modules=["q_proj"]))
    edit_config(path, {"alora_invocation_tokens": [7, 265]})
    with pytest.raises(AdapterError, match=r"invocation token 265 .* outside the model's vocabulary of 265"):
        tiny.load(path)
    with pytest.raises(AdapterError, match=r"invocation token 265 .* outside the model's vocabulary of 265"):
        tiny.load(convert_to_gguf(tiny.oracle, path, tmp_path / "a.gguf"))
