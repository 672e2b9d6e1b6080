"""GGUF adapters, as llama.cpp's convert_lora_to_gguf.py writes them and its src/llama-adapter.cpp reads them.

Tensors are named after the base model's GGUF tensors, `blk.0.attn_q.weight.lora_a` and `….lora_b`, in any type that the
gguf package dequantises. What upstream skips without a word (norms) is refused here.

H heads, h head size, R rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from model.adapter_tensors import AdapterError, DeltaTensors, Half
from model.config import ModelConfig
from model.lora import LoraDelta

_SUFFIXES = {".lora_a": Half.A, ".lora_b": Half.B}
_INVOCATION_TOKENS = "adapter.alora.invocation_tokens"


@dataclass(frozen=True, slots=True)
class GgufLora:
    """What a GGUF adapter file holds."""

    deltas: dict[str, LoraDelta]
    alpha: float
    task_name: str
    prompt_prefix: str


def read_gguf(path: Path, config: ModelConfig, module_shapes: Mapping[str, tuple[int, int]]) -> GgufLora:
    """Read a GGUF adapter for the base model. Raises AdapterError naming the metadata key or the tensor."""
    reader = _open(path)
    metadata = _Metadata(reader)
    architecture = "llama" if config.family == "mistral" else config.family
    _check_kind(metadata, architecture)
    alpha = metadata.number("adapter.lora.alpha")
    found = _place_tensors(reader, architecture, config, module_shapes)
    return GgufLora(
        deltas={module: _delta(found, module, alpha, architecture, config) for module in found.modules},
        alpha=alpha,
        task_name=metadata.text("adapter.lora.task_name"),
        prompt_prefix=metadata.text("adapter.lora.prompt_prefix"),
    )


def _open(path: Path) -> gguf.GGUFReader:
    try:
        return gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError, OverflowError) as error:
        raise AdapterError(f"cannot read {path} as GGUF, the file may be incomplete: {error}") from error


class _Metadata:
    """The key-value pairs of a GGUF file, typed as llama.cpp demands them; absent keys read as 0 or empty."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._fields = reader.fields

    def text(self, key: str) -> str:
        return str(self._value(key, gguf.GGUFValueType.STRING, ""))

    def number(self, key: str) -> float:
        value = float(self._value(key, gguf.GGUFValueType.FLOAT32, 0.0))
        if not np.isfinite(value):
            raise AdapterError(f"{key} = {value}, it must be a finite number")
        return value

    def is_set(self, key: str) -> bool:
        """Whether the key is there with anything but an empty array."""
        return key in self._fields and self._fields[key].contents() != []

    def _value(self, key: str, wanted: gguf.GGUFValueType, default: str | float) -> str | float:
        field = self._fields.get(key)
        if field is None:
            return default
        if field.types != [wanted]:
            found = "/".join(kind.name for kind in field.types)
            raise AdapterError(f"invalid gguf type for {key}: {found}, it must be {wanted.name}")
        value: str | float = field.contents()
        return value


def _check_kind(metadata: _Metadata, architecture: str) -> None:
    kind = metadata.text("general.type")
    if kind != "adapter":
        raise AdapterError(f"expect general.type to be 'adapter', but got: {kind}")
    if metadata.text("general.architecture") != architecture:
        found = metadata.text("general.architecture")
        raise AdapterError(f"model arch and LoRA arch mismatch: the model is '{architecture}', the adapter '{found}'")
    kind = metadata.text("adapter.type")
    if kind != "lora":
        raise AdapterError(f"expect adapter.type to be 'lora', but got: {kind}")
    if metadata.is_set(_INVOCATION_TOKENS):
        raise AdapterError(
            f"{_INVOCATION_TOKENS} is set: activated LoRA (aLoRA) is not supported, train and convert a plain LoRA"
        )


def _place_tensors(
    reader: gguf.GGUFReader, architecture: str, config: ModelConfig, module_shapes: Mapping[str, tuple[int, int]]
) -> DeltaTensors:
    modules = _modules_by_gguf_name(architecture, config, module_shapes)
    found = DeltaTensors(module_shapes)
    for tensor in reader.tensors:
        base, half = _split(tensor.name)
        if base not in modules:
            raise AdapterError(f"LoRA tensor '{tensor.name}' {_no_place(base)}")
        found.place(modules[base], half, tensor.name, _dequantise(tensor))
    if not found.modules:
        raise AdapterError("the file holds no LoRA tensors")
    return found


def _modules_by_gguf_name(
    architecture: str, config: ModelConfig, module_shapes: Mapping[str, tuple[int, int]]
) -> dict[str, str]:
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], config.num_layers)
    return {f"{names.get_name(module)}.weight": module for module in module_shapes}


def _split(name: str) -> tuple[str, Half]:
    """Split a tensor's name into the base model's tensor and the half of the delta that it is."""
    for suffix, half in _SUFFIXES.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), half
    if name.endswith("_norm.weight"):
        raise AdapterError(f"LoRA tensor '{name}' replaces a norm, which is not supported: train without the norms")
    raise AdapterError(f"LoRA tensor '{name}' has unexpected suffix, known are {' and '.join(_SUFFIXES)}")


def _no_place(base: str) -> str:
    if base == "token_embd.weight":
        return "adapts the embeddings, which is not supported: train without them"
    if base == "output.weight":
        return "adapts the output head, which is not supported: train without it"
    return "does not exist in base model (hint: maybe wrong base model?)"


def _dequantise(tensor: gguf.ReaderTensor) -> Tensor:
    try:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise AdapterError(
            f"LoRA tensor '{tensor.name}' has type {tensor.tensor_type.name}, which cannot be read"
        ) from error
    return torch.from_numpy(np.array(values, dtype=np.float32))  # a copy: the file's pages are not kept


def _delta(found: DeltaTensors, module: str, alpha: float, architecture: str, config: ModelConfig) -> LoraDelta:
    a, b = found.pair(module)
    rank = a.tensor.shape[0]
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(module.rpartition(".")[2])
    rows = b.tensor if architecture != "llama" or heads is None else _join_halves(b.tensor, heads)
    return LoraDelta(a.tensor, rows, alpha / rank if alpha else 1.0)


def _join_halves(b: Tensor, num_heads: int) -> Tensor:
    """Undo llama.cpp's row order 0, h/2, 1, h/2+1, … within each head, which serves its rotary kernel."""
    out_features, rank = b.shape
    pairs = b.view(num_heads, out_features // num_heads // 2, 2, rank)  # (H, h/2, 2, R)
    return pairs.transpose(1, 2).reshape(out_features, rank)
