"""Adapter files against PEFT's own forward on every family, what is refused and how, and identity by content."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from model.adapters.adapter import BaseWeights
from model.adapters.files import Adapter, load_adapter
from model.backend import reference_backend
from model.checkpoint.tensor_shapes import tensor_shapes
from model.checkpoint.weights import load_checkpoint
from model.decoder import Decoder
from model.kv_cache import KVCache
from model.lora import LoraStack, stack_adapters
from model.outputs import Wanted
from model.runner import step_tensors
from scheduler.batch import Row
from tests.model.adapter_makers import (
    ALL_LINEAR,
    attach,
    convert_to_gguf,
    edit_config,
    edit_tensors,
    make_peft_adapter,
    set_scales,
)
from tests.model.peft_features import DENSE
from tests.model.tiny import make_model

# PEFT asks transformers by a name that transformers is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

PREFIX = "base_model.model.model."
PROMPT = tuple(range(10, 50))


class Base:
    """A tiny model of one family: the decoder, and transformers' model as PEFT's base."""

    def __init__(self, family: str, path: Path) -> None:
        self.path = path
        self.oracle: PreTrainedModel = make_model(family, path)
        checkpoint = load_checkpoint(path)
        self.decoder = Decoder(checkpoint.config, checkpoint.tensors, reference_backend())
        self.weights = BaseWeights(checkpoint.config, self.decoder.module_shapes, checkpoint.tensors)

    def load(self, path: Path, load_id: int = 0) -> Adapter:
        return load_adapter(path, load_id, "name", self.weights)

    def stack(self, *scaled: tuple[Adapter, float]) -> LoraStack:
        return stack_adapters(scaled, self.decoder.adaptable, self.decoder.backend)

    def logits(self, lora: LoraStack | None = None) -> Tensor:
        row = Row(request_id=0, token_ids=PROMPT, start=0, block_table=(2, 0, 1), sampling=None)
        token_ids, step, _ = step_tensors((row,), torch.device("cpu"))
        kv = KVCache(self.decoder.config, 3, self.decoder.backend)
        return self.decoder.forward(token_ids, step, Wanted(torch.arange(len(PROMPT))), kv, lora).logits


def oracle_logits(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([PROMPT])).logits[0]
    return logits


def assert_equal_logits(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=2e-4)


@pytest.fixture(scope="module", params=(*DENSE, "mistral", "smollm"))
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base("llama", tmp_path_factory.mktemp("llama"))


def lora(**fields: object) -> LoraConfig:
    return LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": list(ALL_LINEAR), **fields})


# What is computed


def test_one_adapter_computes_what_peft_computes(base: Base, tmp_path: Path) -> None:
    path = make_peft_adapter(base.oracle, tmp_path / "a", lora())
    oracle, adapter = attach(base.oracle, {"a": path}), base.load(path)
    for scale in (1.0, 0.3, -0.7):
        set_scales(oracle, {"a": scale})
        wanted = oracle_logits(oracle)
        assert (wanted - oracle_logits(base.oracle)).abs().max() > 0.1
        assert_equal_logits(base.logits(base.stack((adapter, scale))), wanted)


def test_two_adapters_at_fractional_and_negative_scales_add_up(base: Base, tmp_path: Path) -> None:
    a = make_peft_adapter(base.oracle, tmp_path / "a", lora(), seed=1)
    b = make_peft_adapter(
        base.oracle, tmp_path / "b", lora(r=7, target_modules=["q_proj", "v_proj", "up_proj"]), seed=2
    )
    oracle = attach(base.oracle, {"a": a, "b": b})
    set_scales(oracle, {"a": 0.5, "b": -1.1})
    stack = base.stack((base.load(a, 0), 0.5), (base.load(b, 1), -1.1))
    assert_equal_logits(base.logits(stack), oracle_logits(oracle))


def test_the_same_adapter_from_gguf_computes_the_same(base: Base, tmp_path: Path) -> None:
    path = make_peft_adapter(base.oracle, tmp_path / "a", lora())
    converted = base.load(convert_to_gguf(base.oracle, path, tmp_path / "a.gguf"))
    oracle = attach(base.oracle, {"a": path})
    assert_equal_logits(base.logits(base.stack((converted, 1.0))), oracle_logits(oracle))
    assert converted.id.digest == base.load(path).id.digest


@pytest.mark.parametrize(
    "fields",
    [
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.down_proj": 9}},
        {"alpha_pattern": {"self_attn.k_proj": 20, r"model\.layers\.0\.mlp\.(gate|up)_proj": 1}},
        {"alpha_pattern": {r"layers\.(0|1\.mlp\.up_proj)": 20}},
        {"use_rslora": True, "rank_pattern": {"^model.layers.0.self_attn.v_proj": 3}, "alpha_pattern": {"v_proj": 11}},
        {"target_modules": r".*\.self_attn\.[qv]_proj"},
        {"target_modules": "all-linear"},
        {"target_modules": ["k_proj"]},
        {"layers_to_transform": [1]},
        {"layers_to_transform": 0, "layers_pattern": "layers"},
        {"exclude_modules": ["o_proj", "model.layers.0.mlp.up_proj"]},
        {"init_lora_weights": "gaussian", "lora_dropout": 0.3},
    ],
    ids=str,
)
def test_every_honoured_field_computes_what_peft_computes(
    llama: Base, tmp_path: Path, fields: dict[str, object]
) -> None:
    path = make_peft_adapter(llama.oracle, tmp_path / "a", lora(**fields))
    oracle = attach(llama.oracle, {"a": path})
    assert_equal_logits(llama.logits(llama.stack((llama.load(path), 1.0))), oracle_logits(oracle))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_compute_what_peft_computes(llama: Base, tmp_path: Path, dtype: torch.dtype) -> None:
    path = make_peft_adapter(llama.oracle, tmp_path / "a", lora(), dtype=dtype)
    oracle = attach(llama.oracle, {"a": path})
    assert_equal_logits(llama.logits(llama.stack((llama.load(path), 1.0))), oracle_logits(oracle))


def test_no_list_computes_the_base_model_bit_for_bit(llama: Base, tmp_path: Path) -> None:
    before = llama.logits()
    llama.logits(llama.stack((llama.load(make_peft_adapter(llama.oracle, tmp_path / "a", lora())), 1.0)))
    assert torch.equal(llama.logits(None), before)
    assert_equal_logits(before, oracle_logits(llama.oracle))


# What is known about an adapter


def test_a_peft_adapter_is_described(llama: Base, tmp_path: Path) -> None:
    path = make_peft_adapter(llama.oracle, tmp_path / "a", lora(rank_pattern={"q_proj": 9}))
    adapter = load_adapter(path, 5, "five", llama.weights)
    assert (adapter.id.load_id, adapter.name, adapter.path, adapter.format) == (5, "five", str(path), "peft")
    assert (adapter.alpha, adapter.task_name, adapter.prompt_prefix) == (6.0, "", "")
    assert max(delta.a.shape[0] for delta in adapter.deltas.values()) == 9
    assert set(adapter.deltas) == set(llama.decoder.module_shapes) - {"lm_head"}
    assert adapter.num_bytes == sum(tensor.nbytes for tensor in load_file(path / "adapter_model.safetensors").values())


def test_the_digest_names_the_content_and_not_the_path(llama: Base, tmp_path: Path) -> None:
    first = llama.load(make_peft_adapter(llama.oracle, tmp_path / "a", lora(), seed=1), load_id=0)
    again = llama.load(make_peft_adapter(llama.oracle, tmp_path / "b", lora(), seed=1), load_id=1)
    assert first.id.digest == again.id.digest
    assert first.id != again.id


@pytest.mark.parametrize(
    "change",
    [
        lambda path: edit_config(path, {"lora_alpha": 7}),
        lambda path: edit_config(path, {"use_rslora": True}),
        lambda path: edit_config(path, {"alpha_pattern": {"layers.0.self_attn.q_proj": 5}}),
    ],
    ids=["alpha", "rslora", "alpha of one module"],
)
def test_a_change_of_factors_changes_the_digest(llama: Base, tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = make_peft_adapter(llama.oracle, tmp_path / "a", lora())
    before = llama.load(path).id.digest
    change(path)
    assert llama.load(path).id.digest != before


def negate_one_value(tensors: dict[str, Tensor]) -> None:
    tensors[f"{PREFIX}layers.1.mlp.down_proj.lora_B.weight"][0, 0] *= -1


def test_a_change_of_one_value_changes_the_digest(llama: Base, tmp_path: Path) -> None:
    path = make_peft_adapter(llama.oracle, tmp_path / "a", lora())
    before = llama.load(path).id.digest
    edit_tensors(path, negate_one_value)
    assert llama.load(path).id.digest != before


@pytest.mark.parametrize(("name", "rank", "modules_per_layer"), [("pirate", 3, 7), ("emoji", 8, 4)])
def test_the_demo_adapters_fit_the_demo_model(smollm2_path: Path, name: str, rank: int, modules_per_layer: int) -> None:
    checkpoint = load_checkpoint(smollm2_path)
    shapes = {
        tensor.removesuffix(".weight"): (shape[0], shape[1])
        for tensor, shape in tensor_shapes(checkpoint.config)
        if tensor.endswith("_proj.weight")
    }
    path = Path(__file__).parents[3] / "docs" / "demo" / name
    adapter = load_adapter(path, 0, name, BaseWeights(checkpoint.config, shapes, checkpoint.tensors))
    assert {delta.a.shape[0] for delta in adapter.deltas.values()} == {rank}
    assert len(adapter.deltas) == modules_per_layer * checkpoint.config.num_layers
    assert {delta.factor for delta in adapter.deltas.values()} == {2.0}
    assert sorted(file.name for file in path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert sum(file.stat().st_size for file in path.iterdir()) < 2_000_000
