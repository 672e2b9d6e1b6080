"""GGUF adapters, as llama.cpp's convert_lora_to_gguf.py writes them and its src/llama-adapter.cpp reads them.

Tensors are named after the base model's GGUF tensors, `blk.0.attn_q.weight.lora_a` and `….lora_b`, in any type that the
gguf package dequantises. What upstream skips without a word (norms) is refused here. An activated adapter acts from the
first of its invocation tokens on, as it was trained to; llama-server begins one token earlier. (The converter stores
PEFT's tokens as they are, and of older adapters, trained to act after the first token of their invocation string, all
but that first one.)
"""

import math
from collections.abc import Mapping
from pathlib import Path

from model.adapter import BaseWeights, LoraDelta
from model.adapter_content import AdapterContent
from model.adapter_tensors import AdapterError, DeltaTensors, Half
from model.config import CheckpointError, ModelConfig
from model.gguf import GgufFile, read_gguf
from model.gguf_names import hf_name, separate_halves

_SUFFIXES = {".lora_a": Half.A, ".lora_b": Half.B}


def read_gguf_adapter(path: Path, base: BaseWeights) -> AdapterContent:
    """Read a GGUF adapter for the base model. Raises AdapterError naming the metadata key or the tensor."""
    try:
        file = read_gguf(path)
    except CheckpointError as error:
        raise AdapterError(str(error)) from error
    _check_kind(file, _architecture(base.config))
    alpha = _number(file, "adapter.lora.alpha")
    found = _place_tensors(file, base.module_shapes)
    return AdapterContent(
        deltas={module: _delta(found, module, alpha, base.config) for module in found.modules},
        alpha=alpha,
        task_name=_text(file, "adapter.lora.task_name"),
        prompt_prefix=_text(file, "adapter.lora.prompt_prefix"),
        invocation_tokens=_token_ids(file, "adapter.alora.invocation_tokens"),
    )


def _architecture(config: ModelConfig) -> str:
    return "llama" if config.family == "mistral" else config.family


def _text(file: GgufFile, key: str) -> str:
    value = file.metadata.get(key, "")
    if not isinstance(value, str):
        raise AdapterError(f"invalid gguf type for {key}: {value!r}, it must be a string")
    return value


def _number(file: GgufFile, key: str) -> float:
    value = file.metadata.get(key, 0.0)
    if not isinstance(value, float) or not math.isfinite(value):
        raise AdapterError(f"invalid gguf type for {key}: {value!r}, it must be a finite float32")
    return value


def _token_ids(file: GgufFile, key: str) -> tuple[int, ...]:
    value = file.metadata.get(key, [])
    if not isinstance(value, list):
        raise AdapterError(f"invalid gguf type for {key}: {value!r}, it must be an array of token ids")
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value):
        raise AdapterError(f"invalid gguf element type for {key}: {value!r}, it must be an array of token ids")
    return tuple(int(item) for item in value)


def _check_kind(file: GgufFile, architecture: str) -> None:
    kind = _text(file, "general.type")
    if kind != "adapter":
        raise AdapterError(f"expect general.type to be 'adapter', but got: {kind}")
    found = _text(file, "general.architecture")
    if found != architecture:
        raise AdapterError(f"model arch and LoRA arch mismatch: the model is '{architecture}', the adapter '{found}'")
    kind = _text(file, "adapter.type")
    if kind != "lora":
        raise AdapterError(f"expect adapter.type to be 'lora', but got: {kind}")


def _place_tensors(file: GgufFile, module_shapes: Mapping[str, tuple[int, int]]) -> DeltaTensors:
    found = DeltaTensors(module_shapes)
    for name in file.tensors:
        module, half = _place_of(name)
        found.place(module, half, name, file.read(name))
    if not found.modules:
        raise AdapterError(f"{file.path} holds no LoRA tensors")
    return found


def _place_of(name: str) -> tuple[str, Half]:
    """Return the module that a tensor belongs to, and which half of its delta it is."""
    for suffix, half in _SUFFIXES.items():
        if name.endswith(suffix):
            base = hf_name(name.removesuffix(suffix))
            if base is None or not base.endswith(".weight"):
                raise AdapterError(f"LoRA tensor '{name}' does not exist in base model (hint: maybe wrong base model?)")
            return base.removesuffix(".weight"), half
    if name.endswith("_norm.weight"):
        raise AdapterError(f"LoRA tensor '{name}' replaces a norm, which is not supported: train without the norms")
    raise AdapterError(f"LoRA tensor '{name}' has unexpected suffix, known are {' and '.join(_SUFFIXES)}")


def _delta(found: DeltaTensors, module: str, alpha: float, config: ModelConfig) -> LoraDelta:
    a, b = found.pair(module)
    rows = b.tensor
    if _architecture(config) == "llama":  # its converter reorders W's output rows, and so B's
        num_heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(module.rpartition(".")[2])
        rows = rows if num_heads is None else separate_halves(rows, num_heads)
    return LoraDelta(a.tensor, rows, alpha / a.tensor.shape[0] if alpha else 1.0)
