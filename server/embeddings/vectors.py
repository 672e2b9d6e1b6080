"""From what the model has made of a prompt to the vectors that an answer carries: pooled, normalised, and as JSON.

Source of the norms: llama-server's documentation of `--embd-normalize`.
"""

import base64
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from model.pooling import embedding
from scheduler.batch import Pooling
from scheduler.request import Request
from server.errors import GenerationFailed
from server.shapes.answers import Embedding, EmbeddingRows

Floats: TypeAlias = NDArray[np.float32]
_LARGEST = 32760
"""What the largest absolute value becomes where vectors are to fit 16-bit integers."""


@dataclass(frozen=True, slots=True)
class VectorForm:
    """What vectors a body asks for."""

    pooling: Pooling
    norm: int
    """As in `normalised`."""
    is_base64: bool

    def rows(self, index: int, request: Request) -> EmbeddingRows:
        """Return the embedding of an embedded request in llama-server's own form. Raises GenerationFailed."""
        return {"index": index, "embedding": self._vectors(request).tolist()}

    def item(self, index: int, request: Request) -> Embedding:
        """Return it in OpenAI's form. Raises GenerationFailed."""
        [vector] = self._vectors(request)
        if not self.is_base64:
            return {"embedding": vector.tolist(), "index": index, "object": "embedding"}
        text = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return {"embedding": text, "index": index, "object": "embedding", "encoding_format": "base64"}

    def _vectors(self, request: Request) -> Floats:
        vectors = embedding(self.pooling, request.pooled, len(request.prompt))
        if not np.isfinite(vectors).all():
            raise GenerationFailed("the hidden states of the prompt are not finite")
        return vectors if self.pooling is Pooling.NONE else normalised(vectors, self.norm)


def normalised(vectors: Floats, norm: int) -> Floats:
    """Return vectors (n, D) divided by a norm: -1 by none, 0 by the largest absolute value over 32760, p by the p-norm.
    A vector of zeros stays one."""
    if norm < 0:
        return vectors
    sizes = np.abs(vectors.astype(np.float64))
    largest = sizes.max(axis=1, keepdims=True)
    if norm == 0:
        divisors = largest / _LARGEST
    else:  # of numbers up to 1, lest their powers overflow
        scaled = np.divide(sizes, largest, out=np.zeros_like(sizes), where=largest > 0)
        divisors = largest * (scaled**norm).sum(axis=1, keepdims=True) ** (1 / norm)
    quotients: Floats = np.divide(vectors, divisors, out=np.zeros_like(sizes), where=divisors > 0).astype(np.float32)
    return quotients
