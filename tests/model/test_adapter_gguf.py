"""GGUF adapter files: what their metadata and types mean, what must be refused, and what the message names."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig
from transformers import PreTrainedModel

from model.adapter_content import AdapterContent
from model.adapter_gguf import read_gguf_adapter
from model.adapter_peft import read_peft
from model.adapter_tensors import AdapterError
from model.adapters import load_adapter
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
from tests.model.tiny import GGUF_FILE_TYPES, Array, make_model

# PEFT asks transformers by a name that transformers is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

Q_MODULE = "model.layers.0.self_attn.q_proj"
Q_A, Q_B = "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"
RANK = 32
"""What quantised types need: their blocks hold 32 values of a row."""


class Source:
    """A PEFT adapter of all linear modules for a tiny llama model, to be converted."""

    def __init__(self, path: Path) -> None:
        self.base: PreTrainedModel = make_model("llama", path / "base")
        self.weights = base_weights(self.base, path / "base")
        config = LoraConfig(r=RANK, lora_alpha=48, target_modules=list(ALL_LINEAR))
        self.peft = make_peft_adapter(self.base, path / "peft", config)
        self.deltas = read_peft(self.peft, self.weights).deltas

    def read(self, path: Path) -> AdapterContent:
        return read_gguf_adapter(path, self.weights)


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
    assert (adapter.alpha, adapter.max_rank) == (8.0, RANK)


def test_the_deltas_do_not_change_when_the_file_does(source: Source, tmp_path: Path) -> None:
    path = convert_to_gguf(source.base, source.peft, tmp_path / "a.gguf")
    read = source.read(path)
    with path.open("r+b") as file:
        file.seek(-4096, 2)
        file.write(bytes(4096))
    assert all(torch.equal(read.deltas[module].b, delta.b) for module, delta in source.deltas.items())


REFUSED_METADATA: dict[str, tuple[Metadata, str]] = {
    "a model": ({"general.type": "model"}, "expect general.type to be 'adapter', but got: model"),
    "no type": ({"general.type": ""}, "expect general.type to be 'adapter', but got: $"),
    "another architecture": (
        {"general.architecture": "qwen2"},
        "model arch and LoRA arch mismatch: the model is 'llama', the adapter 'qwen2'",
    ),
    "another kind of adapter": ({"adapter.type": "control"}, "expect adapter.type to be 'lora', but got: control"),
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


def replace(name: str, make: Callable[[Array], Array]) -> Edit:
    return lambda tensors: tensors.update({name: np.ascontiguousarray(make(tensors[name]))})


def remove(name: str) -> Edit:
    return lambda tensors: tensors.__delitem__(name)


REFUSED_TENSORS: dict[str, tuple[Edit, str]] = {
    "norm": (add("blk.0.attn_norm.weight", 64), r"'blk\.0\.attn_norm\.weight' replaces a norm"),
    "output norm": (add("output_norm.weight", 64), r"'output_norm\.weight' replaces a norm"),
    "delta of a norm": (
        add("blk.0.attn_norm.weight.lora_a", 4, 64),
        r"attn_norm\.weight\.lora_a' .*not a linear module",
    ),
    "embeddings": (add("token_embd.weight.lora_a", 265, 4), r"token_embd\.weight\.lora_a' adapts the embeddings"),
    "output head": (add("output.weight.lora_a", 4, 64), r"output\.weight\.lora_a' adapts the output head"),
    "other suffix": (add("blk.0.attn_q.weight.scale", 4), r"attn_q\.weight\.scale' has unexpected suffix"),
    "bias": (add("blk.0.attn_q.bias.lora_a", 4, 64), r"attn_q\.bias\.lora_a' does not exist in base model"),
    "unknown tensor": (
        add("blk.0.ssm_in.weight.lora_a", 4, 64),
        r"ssm_in\.weight\.lora_a' does not exist in base model",
    ),
    "unknown block": (
        add("blk.9.attn_q.weight.lora_a", 4, 64),
        r"blk\.9\.attn_q\.weight\.lora_a' .*not a linear module",
    ),
    "no B": (remove(Q_B), r"attn_q\.weight\.lora_a' has no matching B"),
    "no A": (remove(Q_A), r"attn_q\.weight\.lora_b' has no matching A"),
    "A that is transposed": (
        replace(Q_A, lambda a: a.T),
        r"lora_a' has shape \(64, 32\), the base model wants \(any, 64\)",
    ),
    "ranks that differ": (
        replace(Q_B, lambda b: b[:, :8]),
        r"lora_b' has shape \(64, 8\), the base model wants \(64, 32\)",
    ),
    "experts": (replace(Q_A, lambda a: np.stack([a, a])), r"lora_a' has shape \(2, 32, 64\)"),
    "NaN": (replace(Q_B, lambda b: b * np.float32("nan")), r"attn_q\.weight\.lora_b' contains NaN or infinity"),
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
