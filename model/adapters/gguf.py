"""GGUF adapters, as llama.cpp's convert_lora_to_gguf.py writes them and its src/llama-adapter.cpp reads them.

Tensors are named after the base model's GGUF tensors, `blk.0.attn_q.weight.lora_a` and `….lora_b`, in any type that the
gguf package dequantises; gguf_tensors.py says what each of them changes. An activated adapter acts from the
first of its invocation tokens on, as it was trained to; llama-server begins one token earlier. (The converter stores
PEFT's tokens as they are, and of older adapters, trained to act after the first token of their invocation string, all
but that first one.)
"""

import math
from collections.abc import Mapping
from pathlib import Path

from model.adapters.adapter import BaseWeights
from model.adapters.content import AdapterContent
from model.adapters.gguf_tensors import place_tensors
from model.adapters.tensors import AdapterError
from model.checkpoint.config import CheckpointError
from model.checkpoint.fields import shorten
from model.checkpoint.gguf import GgufFile, read_gguf

_ARCHITECTURES: Mapping[str, str] = {
    "mistral": "llama",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
}
"""By family; those that are not here go by their own names."""


def read_gguf_adapter(path: Path, base: BaseWeights) -> AdapterContent:
    """Read a GGUF adapter for the base model. Raises AdapterError naming the metadata key or the tensor."""
    try:
        # Read, not mapped: an adapter file may be overwritten while the server runs.
        file = read_gguf(path, mapped=False)
    except CheckpointError as error:
        raise AdapterError(str(error)) from error
    _check_kind(file, _ARCHITECTURES.get(base.config.family, base.config.family))
    alpha = _number(file, "adapter.lora.alpha")
    tensors = place_tensors(file, alpha, base)
    invocation_tokens = _token_ids(file, "adapter.alora.invocation_tokens")
    if invocation_tokens and (tensors.norms or tensors.embedding is not None):
        raise AdapterError(
            f"{file.path}: adapter.alora.invocation_tokens together with tensors of norms or of token_embd is not "
            "supported: trained, those changed the tokens before the invocation too; train with linear modules alone"
        )
    return AdapterContent(
        deltas=tensors.deltas,
        norms=tensors.norms,
        embedding=tensors.embedding,
        alpha=alpha,
        task_name=_text(file, "adapter.lora.task_name"),
        prompt_prefix=_text(file, "adapter.lora.prompt_prefix"),
        invocation_tokens=invocation_tokens,
    )


def _check_kind(file: GgufFile, architecture: str) -> None:
    kind = _text(file, "general.type")
    if kind != "adapter":
        raise AdapterError(f"{file.path}: expect general.type to be 'adapter', but got: {shorten(kind)}")
    found = _text(file, "general.architecture")
    if found != architecture:
        raise AdapterError(
            f"{file.path}: model arch and LoRA arch mismatch: general.architecture is {shorten(found)}, "
            f"the model's is '{architecture}' (hint: maybe wrong base model?)"
        )
    kind = _text(file, "adapter.type")
    if kind != "lora":
        raise AdapterError(f"{file.path}: expect adapter.type to be 'lora', but got: {shorten(kind)}")


def _text(file: GgufFile, key: str) -> str:
    value = file.metadata.get(key, "")
    if not isinstance(value, str):
        raise AdapterError(f"{file.path}: invalid gguf type for {key}: {shorten(value)}, it must be a string")
    return value


def _number(file: GgufFile, key: str) -> float:
    value = file.metadata.get(key, 0.0)
    if not isinstance(value, float) or not math.isfinite(value):
        raise AdapterError(f"{file.path}: invalid gguf type for {key}: {shorten(value)}, it must be a finite float32")
    return value


def _token_ids(file: GgufFile, key: str) -> tuple[int, ...]:
    value = file.metadata.get(key, [])
    if not isinstance(value, list):
        raise AdapterError(f"{file.path}: invalid gguf type for {key}: {shorten(value)}, an array of ids is needed")
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value):
        raise AdapterError(
            f"{file.path}: invalid gguf element type for {key}: {shorten(value)}, an array of ids is needed"
        )
    return tuple(int(item) for item in value)
