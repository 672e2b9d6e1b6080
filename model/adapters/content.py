"""What an adapter file holds, as its readers return it, and the digest that names this content.

The same content gives the same digest from any path and either format, and every tensor and number that changes what is
computed is part of it, so that nothing computed under one adapter is taken for another's. (From which token on an
adapter acts is no part of it: what it computes where it acts is. Nor are a file's texts.) Knows no file format.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model.adapters.adapter import EmbeddingDelta, LoraDelta, TokenRows


@dataclass(frozen=True, slots=True)
class AdapterContent:
    """An adapter without a name and an identity; its fields are those of `Adapter`."""

    deltas: Mapping[str, LoraDelta]
    alpha: float
    task_name: str = ""
    prompt_prefix: str = ""
    invocation_tokens: tuple[int, ...] = ()
    biases: Mapping[str, Tensor] = field(default_factory=dict)
    norms: Mapping[str, Tensor] = field(default_factory=dict)
    embedding: EmbeddingDelta | None = None
    embedding_rows: TokenRows | None = None
    head_rows: TokenRows | None = None

    def digest(self) -> str:
        """Hash all that is computed with: names, factors and float32 values, in the order of the modules' names."""
        content = hashlib.sha256()
        for label, factor, tensors in self._parts():
            content.update(f"{label} {' '.join(str(tuple(tensor.shape)) for tensor in tensors)}\n".encode())
            content.update(struct.pack("<d", factor))
            for tensor in tensors:
                values = tensor if tensor.dtype == torch.int64 else tensor.to(torch.float32)
                content.update(values.contiguous().numpy().tobytes())
        return content.hexdigest()

    def _parts(self) -> Iterator[tuple[str, float, tuple[Tensor, ...]]]:
        for module, delta in sorted(self.deltas.items()):
            yield module, delta.factor, (delta.a, delta.b)
            if delta.bias is not None:
                yield f"lora bias of {module}", delta.factor, (delta.bias,)
            if delta.dora is not None:
                yield f"magnitude of {module}", delta.factor, (delta.dora.magnitude,)
        for module, bias in sorted(self.biases.items()):
            yield f"bias of {module}", 1.0, (bias,)
        for module, weight in sorted(self.norms.items()):
            yield f"norm {module}", 1.0, (weight,)
        if self.embedding is not None:
            yield "embedding", self.embedding.factor, (self.embedding.a, self.embedding.b)
        for label, rows in (("embedding rows", self.embedding_rows), ("head rows", self.head_rows)):
            if rows is not None:
                yield label, 1.0, (rows.ids, rows.rows)
