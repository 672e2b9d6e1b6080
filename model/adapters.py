"""Adapter files: which format a path has, and the identity of what is loaded from it.

The identity's digest names the content, so that nothing computed under one adapter is taken for another's: the same
deltas give the same digest from any path and either format. (From which token on an adapter acts is no part of it: what
it computes where it acts is.) Knows no scale and no request.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from model.adapter import Adapter, LoraDelta
from model.adapter_gguf import read_gguf_adapter
from model.adapter_peft import read_peft
from model.adapter_tensors import AdapterError
from model.config import ModelConfig
from scheduler.cohort import AdapterId

__all__ = ["Adapter", "AdapterError", "load_adapter"]


def load_adapter(
    path: Path, load_id: int, name: str, config: ModelConfig, module_shapes: Mapping[str, tuple[int, int]]
) -> Adapter:
    """Load a PEFT directory or a GGUF file for the model of `config`.

    module_shapes: (out, in) of every module that can be adapted. Raises AdapterError naming the field or the tensor.
    """
    if path.is_dir():
        peft = read_peft(path, module_shapes)
        _check_tokens(peft.invocation_tokens, config, path)
        return Adapter(
            id=AdapterId(load_id, _digest(peft.deltas)),
            name=name,
            path=str(path),
            format="peft",
            deltas=peft.deltas,
            alpha=peft.alpha,
            task_name="",
            prompt_prefix="",
            invocation_tokens=peft.invocation_tokens,
        )
    if not path.exists():
        raise AdapterError(f"failed to open '{path}': no such file or directory")
    if path.suffix != ".gguf":
        raise AdapterError(f"'{path}' is neither a directory that PEFT saved nor a .gguf file")
    file = read_gguf_adapter(path, config, module_shapes)
    _check_tokens(file.invocation_tokens, config, path)
    return Adapter(
        id=AdapterId(load_id, _digest(file.deltas)),
        name=name,
        path=str(path),
        format="gguf",
        deltas=file.deltas,
        alpha=file.alpha,
        task_name=file.task_name,
        prompt_prefix=file.prompt_prefix,
        invocation_tokens=file.invocation_tokens,
    )


def _check_tokens(invocation_tokens: Sequence[int], config: ModelConfig, path: Path) -> None:
    """Refuse tokens that no prompt can hold: the adapter would never act."""
    for token_id in invocation_tokens:
        if token_id >= config.vocab_size:
            raise AdapterError(
                f"invocation token {token_id} of '{path}' is outside the model's vocabulary of {config.vocab_size} "
                "(hint: maybe wrong base model?)"
            )


def _digest(deltas: Mapping[str, LoraDelta]) -> str:
    """Hash modules, factors and float32 values, in the order of the modules' names."""
    content = hashlib.sha256()
    for module in sorted(deltas):
        delta = deltas[module]
        content.update(f"{module} {tuple(delta.a.shape)} {tuple(delta.b.shape)}\n".encode())
        content.update(struct.pack("<d", delta.factor))
        for half in (delta.a, delta.b):
            content.update(half.to(torch.float32).contiguous().numpy().tobytes())
    return content.hexdigest()
