"""Adapter files: which format a path has, and the identity of what is loaded from it.

Knows no scale and no request.
"""

from collections.abc import Sequence
from pathlib import Path

from model.adapters.adapter import Adapter, BaseWeights
from model.adapters.gguf import read_gguf_adapter
from model.adapters.peft import read_peft
from model.adapters.tensors import AdapterError
from model.checkpoint.config import ModelConfig
from scheduler.cohort import AdapterId

__all__ = ["Adapter", "AdapterError", "load_adapter"]


def load_adapter(path: Path, load_id: int, name: str, base: BaseWeights) -> Adapter:
    """Load a PEFT directory or a GGUF file for the model `base`.

    load_id: an id that no other load has. Raises AdapterError naming the field or the tensor, and what would work.
    """
    if not path.exists():
        raise AdapterError(f"failed to open '{path}': no such file or directory")
    if path.is_dir():
        file_format, content = "peft", read_peft(path, base)
    elif path.suffix == ".gguf":
        file_format, content = "gguf", read_gguf_adapter(path, base)
    else:
        raise AdapterError(f"'{path}' is neither a directory that PEFT saved nor a .gguf file")
    _check_tokens(content.invocation_tokens, base.config, path)
    return Adapter(
        id=AdapterId(load_id, content.digest()),
        name=name,
        path=str(path),
        format=file_format,
        deltas=content.deltas,
        alpha=content.alpha,
        task_name=content.task_name,
        prompt_prefix=content.prompt_prefix,
        invocation_tokens=content.invocation_tokens,
        biases=content.biases,
        norms=content.norms,
        embedding=content.embedding,
        embedding_rows=content.embedding_rows,
        head_rows=content.head_rows,
    )


def _check_tokens(invocation_tokens: Sequence[int], config: ModelConfig, path: Path) -> None:
    """Refuse tokens that no prompt can hold: the adapter would never act."""
    for token_id in invocation_tokens:
        if token_id >= config.vocab_size:
            raise AdapterError(
                f"invocation token {token_id} of '{path}' is outside the model's vocabulary of {config.vocab_size} "
                "(hint: maybe wrong base model?)"
            )
