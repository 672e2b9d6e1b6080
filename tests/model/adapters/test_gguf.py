"""GGUF adapter files: what their metadata and types mean, what must be refused, and what the message names."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig
from transformers import PreTrainedModel

from model.adapters.adapter import BaseWeights
from model.adapters.content import AdapterContent
from model.adapters.files import load_adapter
from model.adapters.gguf import read_gguf_adapter
from model.adapters.peft import read_peft
from model.adapters.tensors import AdapterError
from tests.model.adapter_makers import (
    ALL_LINEAR,
    Metadata,
    adapter_metadata,
    base_weights,
    convert_to_gguf,
    gguf_adapter_tensors,
    make_peft_adapter,
    write_gguf_adapter,
)
from tests.model.tiny import GGUF_FILE_TYPES, VOCAB_SIZE, Array, make_model

# PEFT asks transformers by a name that transformers is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

Q_MODULE = "model.layers.0.self_attn.q_proj"
Q_A, Q_B = "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"
D = 64
RANK = 32
"""What quantised types need: their blocks hold 32 values of a row."""


class Source:
    """A PEFT adapter of all linear modules for a tiny llama model, to be converted."""

    def __init__(self, path: Path) -> None:
        self.base: PreTrainedModel = make_model("llama", path / "base")
        weights = base_weights(path / "base")
        self.weights = replace(weights, module_shapes={**weights.module_shapes, "lm_head": (VOCAB_SIZE, D)})
        config = LoraConfig(r=RANK, lora_alpha=48, target_modules=list(ALL_LINEAR))
        self.peft = make_peft_adapter(self.base, path / "peft", config)
        self.deltas = read_peft(self.peft, self.weights).deltas

    def read(self, path: Path) -> AdapterContent:
        return read_gguf_adapter(path, self.weights)

    def read_tensors(self, path: Path, tensors: Mapping[str, Array], alpha: float = 0.0) -> AdapterContent:
        metadata: Metadata = {**adapter_metadata(self.base), "adapter.lora.alpha": alpha}
        return self.read(write_gguf_adapter(path / "a.gguf", metadata, tensors))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(tmp_path_factory.mktemp("gguf"))


@pytest.mark.parametrize("file_type", GGUF_FILE_TYPES)
def test_every_type_holds_the_adapter_to_its_precision(source: Source, tmp_path: Path, file_type: str) -> None:
    read = source.read(convert_to_gguf(source.base, source.peft, tmp_path / "a.gguf", file_type=file_type))
    tolerance = {"F32": 0.0, "F16": 1e-3, "BF16": 1e-2, "Q8_0": 0.02}.get(file_type, 0.2)
    assert read.deltas.keys() == source.deltas.keys()
    for module, delta in source.deltas.items():
        for got, wanted in ((read.deltas[module].a, delta.a), (read.deltas[module].b, delta.b)):
            assert got.dtype == {"F16": torch.float16, "BF16": torch.bfloat16}.get(file_type, torch.float32)
            assert (got - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize(("alpha", "factor"), [(48.0, 1.5), (8.0, 0.25), (0.0, 1.0)])
def test_the_factor_is_alpha_over_rank_and_1_where_alpha_is_0(
    source: Source, tmp_path: Path, alpha: float, factor: float
) -> None:
    read = source.read(convert_to_gguf(source.base, source.peft, tmp_path / "a.gguf", alpha=alpha))
    assert read.alpha == alpha
    assert {delta.factor for delta in read.deltas.values()} == {factor}


def test_without_alpha_the_factor_is_1(source: Source, tmp_path: Path) -> None:
    tensors = gguf_adapter_tensors(source.base, source.peft)
    read = source.read(write_gguf_adapter(tmp_path / "a.gguf", adapter_metadata(source.base), tensors))
    assert (read.alpha, read.deltas[Q_MODULE].factor) == (0.0, 1.0)


def test_each_tensor_has_the_factor_of_its_own_rank(source: Source, tmp_path: Path) -> None:
    metadata: Metadata = {**adapter_metadata(source.base), "adapter.lora.alpha": 8.0}
    tensors = gguf_adapter_tensors(source.base, source.peft)
    tensors[Q_A], tensors[Q_B] = tensors[Q_A][:4], np.ascontiguousarray(tensors[Q_B][:, :4])
    read = source.read(write_gguf_adapter(tmp_path / "a.gguf", metadata, tensors))
    assert read.deltas[Q_MODULE].factor == 2.0
    assert read.deltas["model.layers.0.mlp.up_proj"].factor == 0.25


def test_an_adapter_is_described(source: Source, tmp_path: Path) -> None:
    texts: Metadata = {"adapter.lora.task_name": "sums", "adapter.lora.prompt_prefix": "Sum: "}
    metadata = {**adapter_metadata(source.base), **texts, "adapter.lora.alpha": 8.0}
    tensors = gguf_adapter_tensors(source.base, source.peft)
    path = write_gguf_adapter(tmp_path / "a.gguf", metadata, tensors)
    adapter = load_adapter(path, 3, "three", source.weights)
    assert (adapter.id.load_id, adapter.name, adapter.path, adapter.format) == (3, "three", str(path), "gguf")
    assert (adapter.task_name, adapter.prompt_prefix) == ("sums", "Sum: ")
    assert adapter.alpha == 8.0
    assert {delta.a.shape[0] for delta in adapter.deltas.values()} == {RANK}


def test_the_deltas_do_not_change_when_the_file_does(source: Source, tmp_path: Path) -> None:
    path = convert_to_gguf(source.base, source.peft, tmp_path / "a.gguf")
    read = source.read(path)
    with path.open("r+b") as file:
        file.seek(-4096, 2)
        file.write(bytes(4096))
    assert all(torch.equal(read.deltas[module].b, delta.b) for module, delta in source.deltas.items())


def noise(*shape: int) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(np.float32)


def test_the_embedding_has_its_a_transposed(source: Source, tmp_path: Path) -> None:
    a, b = noise(VOCAB_SIZE, 4), noise(D, 4)
    tensors = {"token_embd.weight.lora_a": a, "token_embd.weight.lora_b": b}
    read = source.read_tensors(tmp_path, tensors, alpha=8.0)
    assert read.embedding is not None
    assert not read.deltas
    assert torch.equal(read.embedding.a, torch.from_numpy(a))
    assert torch.equal(read.embedding.b, torch.from_numpy(b))
    assert read.embedding.factor == 2.0


def test_the_output_head_is_a_linear_module(source: Source, tmp_path: Path) -> None:
    a, b = noise(4, D), noise(VOCAB_SIZE, 4)
    delta = source.read_tensors(tmp_path, {"output.weight.lora_a": a, "output.weight.lora_b": b}).deltas["lm_head"]
    assert torch.equal(delta.a, torch.from_numpy(a))
    assert torch.equal(delta.b, torch.from_numpy(b))


def test_a_norm_differs_from_the_base_model_by_what_the_file_says(source: Source, tmp_path: Path) -> None:
    tensors = {"blk.1.attn_norm.weight": noise(D), "output_norm.weight": noise(D)}
    read = source.read_tensors(tmp_path, tensors)
    wanted = {"model.layers.1.input_layernorm": noise(D), "model.norm": noise(D)}
    assert read.norms.keys() == wanted.keys()
    for module, weight in wanted.items():
        base = source.weights.tensors[f"{module}.weight"]
        torch.testing.assert_close(base + read.norms[module], torch.from_numpy(weight))


def test_gemma_has_its_norms_in_gguf_one_larger(source: Source, tmp_path: Path) -> None:
    metadata: Metadata = {**adapter_metadata(source.base), "general.architecture": "gemma3"}
    path = write_gguf_adapter(tmp_path / "a.gguf", metadata, {"output_norm.weight": noise(D) + np.float32(1)})
    gemma = replace(source.weights, config=replace(source.weights.config, family="gemma3_text", norm_offset=1.0))
    difference = read_gguf_adapter(path, gemma).norms["model.norm"]
    torch.testing.assert_close(gemma.tensors["model.norm.weight"] + difference, torch.from_numpy(noise(D)))


@pytest.mark.parametrize("tensors", ["output_norm.weight", "token_embd.weight"])
def test_what_acts_before_the_invocation_too_is_refused_with_one(source: Source, tmp_path: Path, tensors: str) -> None:
    """As it is of a PEFT directory."""
    added = {tensors: noise(D)}
    if tensors == "token_embd.weight":
        added = {f"{tensors}.lora_a": noise(VOCAB_SIZE, 4), f"{tensors}.lora_b": noise(D, 4)}
    tokens: Metadata = {"adapter.alora.invocation_tokens": [4, 5]}
    path = write_gguf_adapter(tmp_path / "a.gguf", {**adapter_metadata(source.base), **tokens}, added)
    with pytest.raises(AdapterError, match=r"adapter.alora.invocation_tokens together with tensors of norms or of tok"):
        source.read(path)


def test_a_factor_that_makes_values_infinite_is_refused(source: Source, tmp_path: Path) -> None:
    tensors = {Q_A: noise(4, D), Q_B: noise(D, 4) * np.float32(1e5)}
    with pytest.raises(AdapterError, match=r"attn_q.weight.lora_b' is too large for adapter.lora.alpha = 1"):
        source.read_tensors(tmp_path, tensors, alpha=1e35)


EXPERTS = ("blk.0.ffn_down_exps.weight.lora_a", "blk.0.ffn_down_exps.weight.lora_b")


def with_experts(source: Source, family: str, num_experts: int = 3) -> BaseWeights:
    """The model with experts, 96 wide, in its first layer."""
    modules = [f"model.layers.0.mlp.experts.{e}.down_proj" for e in range(num_experts)]
    shapes = {**source.weights.module_shapes, **dict.fromkeys(modules, (D, 96))}
    return replace(source.weights, config=replace(source.weights.config, family=family), module_shapes=shapes)


@pytest.mark.parametrize(("family", "architecture"), [("mixtral", "llama"), ("qwen3_moe", "qwen3moe")])
def test_stacked_experts_are_deltas_of_each_expert(
    source: Source, tmp_path: Path, family: str, architecture: str
) -> None:
    a, b = noise(3, 4, 96), noise(3, D, 4)
    metadata: Metadata = {"general.architecture": architecture, "adapter.lora.alpha": 2.0}
    path = write_gguf_adapter(
        tmp_path / "a.gguf", {**adapter_metadata(source.base), **metadata}, dict(zip(EXPERTS, (a, b), strict=True))
    )
    deltas = read_gguf_adapter(path, with_experts(source, family)).deltas
    assert len(deltas) == 3
    for expert in range(3):
        delta = deltas[f"model.layers.0.mlp.experts.{expert}.down_proj"]
        assert torch.equal(delta.a, torch.from_numpy(a[expert]))
        assert torch.equal(delta.b, torch.from_numpy(b[expert]))
        assert delta.factor == 0.5


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 4, 96), (2, D, 4), r"ffn_down_exps.weight' has incorrect shape .*\(3, rank, 96\) and \(3, 64, rank\)"),
        ((3, 4, 96), (1, D, 4), r"ffn_down_exps.weight' has incorrect shape .*lora_b is \(1, 64, 4\)"),
        ((3, 4, 96), (3, D, 5), "the ranks of 'blk.0.ffn_down_exps.weight' differ"),
        ((4, 96), (D, 4), "ffn_down_exps.weight' has incorrect shape"),
    ],
)
def test_experts_of_another_shape_are_refused(
    source: Source, tmp_path: Path, a: tuple[int, ...], b: tuple[int, ...], message: str
) -> None:
    tensors = dict(zip(EXPERTS, (noise(*a), noise(*b)), strict=True))
    path = write_gguf_adapter(tmp_path / "a.gguf", adapter_metadata(source.base), tensors)
    with pytest.raises(AdapterError, match=message):
        read_gguf_adapter(path, with_experts(source, "mixtral"))


REFUSED_METADATA: dict[str, tuple[Metadata, str]] = {
    "a model": ({"general.type": "model"}, "expect general.type to be 'adapter', but got: 'model'"),
    "no type": ({"general.type": ""}, "expect general.type to be 'adapter', but got: ''"),
    "another architecture": (
        {"general.architecture": "qwen2"},
        "model arch and LoRA arch mismatch: general.architecture is 'qwen2', the model's is 'llama'",
    ),
    "another kind of adapter": ({"adapter.type": "control"}, "expect adapter.type to be 'lora', but got: 'control'"),
    "invocation that is a string": (
        {"adapter.alora.invocation_tokens": "##!"},
        "invalid gguf type for adapter.alora.invocation_tokens: '##!'",
    ),
    "invocation of numbers that are no tokens": (
        {"adapter.alora.invocation_tokens": [1, -2]},
        r"invalid gguf element type for adapter.alora.invocation_tokens: \[1, -2\]",
    ),
    "alpha that is a string": ({"adapter.lora.alpha": "8"}, "invalid gguf type for adapter.lora.alpha: '8'"),
    "alpha that is not finite": ({"adapter.lora.alpha": float("nan")}, "adapter.lora.alpha: nan"),
    "task name that is a number": ({"adapter.lora.task_name": 1.0}, "invalid gguf type for adapter.lora.task_name: 1"),
}


@pytest.mark.parametrize("name", REFUSED_METADATA)
def test_metadata_that_cannot_be_honoured_is_named(source: Source, tmp_path: Path, name: str) -> None:
    changes, message = REFUSED_METADATA[name]
    metadata = {**adapter_metadata(source.base), **changes}
    path = write_gguf_adapter(tmp_path / "a.gguf", metadata, gguf_adapter_tensors(source.base, source.peft))
    with pytest.raises(AdapterError, match=message):
        source.read(path)


Edit = Callable[[dict[str, Array]], None]


def add(name: str, *shape: int) -> Edit:
    return lambda tensors: tensors.update({name: np.ones(shape, dtype=np.float32)})


def add_pair(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> Edit:
    ones = {f"{name}.lora_a": np.ones(a, dtype=np.float32), f"{name}.lora_b": np.ones(b, dtype=np.float32)}
    return lambda tensors: tensors.update(ones)


def replace_tensor(name: str, make: Callable[[Array], Array]) -> Edit:
    return lambda tensors: tensors.update({name: np.ascontiguousarray(make(tensors[name]))})


def remove(name: str) -> Edit:
    return lambda tensors: tensors.__delitem__(name)


REFUSED_TENSORS: dict[str, tuple[Edit, str]] = {
    "norm of another shape": (
        add("blk.0.attn_norm.weight", 32),
        r"attn_norm\.weight' has incorrect shape \(hint: maybe wrong base model\?\): it is \(32,\), .* \(64,\)",
    ),
    "norm that is not there": (add("blk.0.ssm_norm.weight", 64), r"ssm_norm\.weight' does not exist in base model"),
    "norm of a layer that is not there": (
        add("blk.7.ffn_norm.weight", 64),
        r"ffn_norm\.weight' does not exist in base",
    ),
    "delta of a norm": (
        add_pair("blk.0.attn_norm.weight", (4, 64), (1, 4)),
        r"attn_norm\.weight' does not exist in base model as the weight of a linear module",
    ),
    "embedding of another vocabulary": (
        add_pair("token_embd.weight", (264, 4), (64, 4)),
        r"token_embd\.weight' has incorrect shape .*wanted are \(265, rank\) and \(64, rank\)",
    ),
    "embedding that is not transposed": (
        add_pair("token_embd.weight", (4, 265), (64, 4)),
        r"token_embd\.weight' has incorrect shape .*lora_a is \(4, 265\)",
    ),
    "embedding of two ranks": (
        add_pair("token_embd.weight", (265, 4), (64, 8)),
        r"lora_a tensor is not transposed .*the ranks of 'token_embd\.weight' differ",
    ),
    "other suffix": (add("blk.0.attn_q.weight.scale", 4), r"attn_q\.weight\.scale' has unexpected suffix"),
    "bias": (add_pair("blk.0.attn_q.bias", (4, 64), (64, 4)), r"attn_q\.bias' does not exist in base model"),
    "unknown tensor": (
        add_pair("blk.0.ssm_in.weight", (4, 64), (64, 4)),
        r"ssm_in\.weight' does not exist in base model .*\(hint: maybe wrong base model\?\)",
    ),
    "unknown block": (add_pair("blk.9.attn_q.weight", (4, 64), (64, 4)), r"blk\.9\.attn_q\.weight' does not exist"),
    "experts of a model without": (
        add_pair("blk.0.ffn_up_exps.weight", (2, 4, 64), (2, 64, 4)),
        r"ffn_up_exps\.weight' does not exist in base model",
    ),
    "no B": (remove(Q_B), r"pair for 'blk\.0\.attn_q\.weight' is missing one component.*attn_q\.weight\.lora_b"),
    "no A": (remove(Q_A), r"pair for 'blk\.0\.attn_q\.weight' is missing one component.*attn_q\.weight\.lora_a"),
    "A that is transposed": (
        replace_tensor(Q_A, lambda a: a.T),
        r"attn_q\.weight' has incorrect shape .*lora_a is \(64, 32\)",
    ),
    "ranks that differ": (
        replace_tensor(Q_B, lambda b: b[:, :8]),
        r"lora_a tensor is not transposed .*lora_a is \(32, 64\), lora_b is \(64, 8\)",
    ),
    "more dimensions": (
        replace_tensor(Q_A, lambda a: np.stack([a, a])),
        r"attn_q\.weight' has incorrect shape .*lora_a is \(2, 32, 64\)",
    ),
    "NaN": (replace_tensor(Q_B, lambda b: b * np.float32("nan")), r"attn_q\.weight\.lora_b' contains NaN or infinity"),
    "nothing": (lambda tensors: tensors.clear(), r"holds no LoRA tensors"),
}


@pytest.mark.parametrize("name", REFUSED_TENSORS)
def test_a_tensor_that_cannot_be_used_is_named(source: Source, tmp_path: Path, name: str) -> None:
    edit, message = REFUSED_TENSORS[name]
    tensors = gguf_adapter_tensors(source.base, source.peft)
    edit(tensors)
    path = write_gguf_adapter(tmp_path / "a.gguf", adapter_metadata(source.base), tensors)
    with pytest.raises(AdapterError, match=message):
        source.read(path)


@pytest.mark.parametrize("keep", [0, 3, 100, -100])
def test_a_damaged_file_is_refused(source: Source, tmp_path: Path, keep: int) -> None:
    path = convert_to_gguf(source.base, source.peft, tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(AdapterError, match=re.escape(str(path))):
        source.read(path)


def test_a_path_that_is_no_adapter_is_refused(source: Source, tmp_path: Path) -> None:
    other = tmp_path / "adapter_model.safetensors"
    other.write_bytes(b"weights")
    for path, message in ((tmp_path / "absent.gguf", "failed to open"), (other, "neither a directory that PEFT saved")):
        with pytest.raises(AdapterError, match=f"{message}.*|.*{re.escape(str(path))}"):
            load_adapter(path, 0, "", source.weights)
