"""A loaded adapter as values: what it adds to which part of the model, whatever file it came from.

Everything is a difference from the base model, so that lists are sums: at scale s an adapter adds s times what stands
here (but for DoRA, whose scale PEFT puts inside its norm, see `Dora`). Readers (peft.py, gguf.py) make
these values, lora.py computes with them. Tensors keep the precision of their file where they can.

R rank, D hidden, V the base model's vocabulary; `in` and `out` are a module's features; n changed tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from model.checkpoint.config import ModelConfig
from scheduler.cohort import AdapterId


@dataclass(frozen=True, slots=True)
class BaseWeights:
    """The model that an adapter is loaded for."""

    config: ModelConfig
    module_shapes: Mapping[str, tuple[int, int]]
    """(out, in) of each linear module that can be adapted, by its path; experts, routers and `lm_head` included."""
    tensors: Mapping[str, Tensor]
    """The checkpoint's, by Hugging Face's names and with Hugging Face's values, read on access."""


@dataclass(frozen=True, slots=True)
class Dora:
    """Weight-decomposed LoRA (Liu et al., arXiv 2402.09353): every output row of W + s BA gets a norm of its own.

    With the strength s = scale · factor, the row's gain is m / ‖W + s BA‖, and the delta on W x is
    (gain - 1) · W x + gain · s · B (A x). The squared norm is a polynomial in s, so that nobody needs W again.
    """

    magnitude: Tensor  # (out,) float32: m
    base_sq: Tensor  # (out,) float64: ‖W‖² of each row
    cross: Tensor  # (out,) float64: 2 W · BA
    delta_sq: Tensor  # (out,) float64: ‖BA‖²
    base_bias: Tensor | None  # (out,) float32: the module's own bias, which no gain scales

    def gain(self, strength: float) -> Tensor:
        """Return m / ‖W + strength · BA‖, (out,) float32."""
        norm = (self.base_sq + strength * self.cross + strength * strength * self.delta_sq).clamp_min(0).sqrt()
        return (self.magnitude.double() / norm).float()


@dataclass(frozen=True, slots=True)
class LoraDelta:
    """What an adapter adds to one linear module: factor · (B A x + bias)."""

    a: Tensor  # (R, in)
    b: Tensor  # (out, R)
    factor: float
    bias: Tensor | None = None  # (out,), of `lora_bias`
    dora: Dora | None = None

    @property
    def num_bytes(self) -> int:
        """Memory of its tensors."""
        dora = self.dora
        extra = () if dora is None else (dora.magnitude, dora.base_sq, dora.cross, dora.delta_sq)
        return sum(tensor.nbytes for tensor in (self.a, self.b, self.bias, *extra) if tensor is not None)


@dataclass(frozen=True, slots=True)
class EmbeddingDelta:
    """What an adapter adds to the embedding of a token: factor · B A[token], before the model scales embeddings."""

    a: Tensor  # (V, R)
    b: Tensor  # (D, R)
    factor: float

    @property
    def num_bytes(self) -> int:
        """Memory of its tensors."""
        return self.a.nbytes + self.b.nbytes


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of the embedding or of the head that differ from the base model's (a token overlay).

    A token that the base model does not have (an id of V or more) counts as a row of zeros there.
    """

    ids: Tensor  # (n,) int64, ascending
    rows: Tensor  # (n, D) float32: the adapter's row minus the base model's

    @property
    def num_bytes(self) -> int:
        """Memory of its tensors."""
        return self.ids.nbytes + self.rows.nbytes


@dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded adapter: who it is, and all that it changes."""

    id: AdapterId
    name: str
    path: str
    format: str
    """'peft' or 'gguf'."""
    deltas: Mapping[str, LoraDelta]
    """By module path, 'model.layers.0.self_attn.q_proj' or 'lm_head'."""
    alpha: float
    task_name: str
    """Of GGUF files; shown to clients, changes nothing. So is `prompt_prefix`."""
    prompt_prefix: str
    invocation_tokens: tuple[int, ...] = ()
    """It was trained to act from their last occurrence in a prompt on (aLoRA); empty where it acts on all tokens."""
    biases: Mapping[str, Tensor] = field(default_factory=dict)
    """(out,) by module path: the bias trained in place of the base model's, minus that one."""
    norms: Mapping[str, Tensor] = field(default_factory=dict)
    """By module path, 'model.layers.0.input_layernorm': the norm's trained weight minus the base model's, float32."""
    embedding: EmbeddingDelta | None = None
    embedding_rows: TokenRows | None = None
    head_rows: TokenRows | None = None
    """With a tied head these are not `embedding_rows`' doing: the reader says for each of the two what changes."""

    @property
    def vocabulary_end(self) -> int:
        """One more than the highest token id that it changes a row of; 0 where it changes none. Beyond the base model's
        vocabulary it extends that of the requests that use it."""
        rows = (self.embedding_rows, self.head_rows)
        return max((int(each.ids[-1]) + 1 for each in rows if each is not None and len(each.ids)), default=0)

    @property
    def num_bytes(self) -> int:
        """Memory that it holds, outside any stack."""
        parts = (*self.deltas.values(), self.embedding, self.embedding_rows, self.head_rows)
        tensors = (*self.biases.values(), *self.norms.values())
        return sum(part.num_bytes for part in parts if part is not None) + sum(tensor.nbytes for tensor in tensors)
