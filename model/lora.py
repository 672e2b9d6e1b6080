"""The arithmetic of adapters: y = W x + Σ scale · factor · B (A x), and all else that a list of adapters changes.

All that the adapters of a list change is summed once, when its stack is built. For each matrix product of the decoder
that is y ← gain ⊙ y + offset + B (A x), scales and factors folded in: a step pays two skinny products where its list
touches a projection, and nothing elsewhere. Knows no file format and no request. The factor is alpha / rank (Hu et al.,
arXiv 2106.09685), or alpha / √rank (rsLoRA, arXiv 2312.03732); what a list means for each part of the model is said in
model/adapters/adapter.py.

T tokens in the step, S rows of logits, R rank, D hidden, V the base model's vocabulary; `in` and `out` are a module's
or a projection's features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.adapters.adapter import Adapter
from model.backend import Backend
from model.block_lora import BlockLowRank
from model.layers import LowRank
from model.lora_sum import sum_of_deltas
from model.token_rows import EmbeddingLowRank, EmbeddingRows, HeadRows


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix product of the decoder: modules that read the same input, their outputs side by side."""

    name: str
    in_features: int
    parts: tuple[tuple[str, int], ...]
    """(module path, output features) in the order of the output."""
    in_head_dtype: bool = False
    """Computed in the head's dtype, as the head itself is."""


@dataclass(frozen=True, slots=True)
class Adaptable:
    """What stacks need to know of a decoder."""

    projections: tuple[Projection, ...]
    """That of the head is called 'head'."""
    vocab_size: int
    hidden_size: int


class LoraStack:
    """One adapter list, ready to run."""

    def __init__(
        self,
        vocab_size: int,
        projections: Mapping[str, LowRank | BlockLowRank],
        norms: Mapping[str, Tensor],
        embedding: Sequence[EmbeddingLowRank | EmbeddingRows],
        head: HeadRows | None,
    ) -> None:
        """Each is the sum over the list: `projections` by name, `norms` by module path, (size,) float32 each."""
        self.vocab_size = vocab_size
        """V, or more where an adapter of the list has rows of added tokens."""
        parts = (*projections.values(), *embedding, *(() if head is None else (head,)))
        self.num_bytes = sum(part.num_bytes for part in parts) + sum(norm.nbytes for norm in norms.values())
        self._projections = projections
        self._norms = norms
        self._embedding = embedding
        self._head = head

    def change(self, name: str) -> LowRank | BlockLowRank | None:
        """Return what the list changes in a projection, in the backend's form; None where it does not touch it."""
        return self._projections.get(name)

    def add_to(self, name: str, y: Tensor, x: Tensor) -> None:
        """Turn the base model's `y` into the list's, in place, for projection `name`; nothing where the list does not
        touch it.

        x (T, in), what the product read, and y (T, out), what it gave, are contiguous and in the compute dtype, or the
        head's for a projection computed in that.
        """
        change = self._projections.get(name)
        if change is not None:
            assert not isinstance(change, BlockLowRank), "the kernel of all layers makes these changes"
            change.add_to(y, x)

    def norm(self, module: str, weight: Tensor) -> Tensor:
        """Return the list's version of a norm's weight (size,) float32: itself where the list does not change it."""
        change = self._norms.get(module)
        return weight if change is None else weight + change

    def embed(self, token_ids: Tensor, rows: Tensor) -> None:
        """Turn the base model's embedding of tokens (T,) into the list's, in place.

        rows (T, D) float32, before any scale of the model's; zeros for ids of V and more.
        """
        for change in self._embedding:
            change.add_to(rows, token_ids)

    def extend_logits(self, logits: Tensor, x: Tensor) -> Tensor:
        """Return the list's logits (S, vocab_size), of the head's (S, V) float32; x (S, D) is what the head read.

        May modify `logits`. A token that the list adds without a row in the head gets -inf.
        """
        if self.vocab_size > logits.shape[1]:
            added = logits.new_full((logits.shape[0], self.vocab_size - logits.shape[1]), -torch.inf)
            logits = torch.cat((logits, added), dim=1)
        if self._head is not None:
            self._head.add_to(logits, x)
        return logits


def stack_adapters(scaled: Sequence[tuple[Adapter, float]], adaptable: Adaptable, backend: Backend) -> LoraStack:
    """Build the stack of an adapter list. Sums are formed in the order given, so the key's order fixes them."""
    modules = {module for projection in adaptable.projections for module, _ in projection.parts}
    for adapter, _ in scaled:
        assert modules >= adapter.deltas.keys() | adapter.biases.keys(), f"{adapter.path} adapts unknown modules"
    embedding: list[EmbeddingLowRank | EmbeddingRows] = []
    if deltas := [(adapter.embedding, scale) for adapter, scale in scaled if adapter.embedding is not None]:
        embedding.append(EmbeddingLowRank(deltas, backend))
    for adapter, scale in scaled:
        if adapter.embedding_rows is not None and len(adapter.embedding_rows.ids):
            embedding.append(EmbeddingRows(adapter.embedding_rows, scale, backend))
    head = [(adapter.head_rows, scale) for adapter, scale in scaled if adapter.head_rows is not None]
    return LoraStack(
        vocab_size=max(adaptable.vocab_size, *(adapter.vocabulary_end for adapter, _ in scaled)),
        projections=_projections(scaled, adaptable, backend),
        norms=_norms(scaled, backend),
        embedding=embedding,
        head=HeadRows(head, adaptable.vocab_size, backend) if any(len(rows.ids) for rows, _ in head) else None,
    )


def _projections(
    scaled: Sequence[tuple[Adapter, float]], adaptable: Adaptable, backend: Backend
) -> dict[str, LowRank | BlockLowRank]:
    changes = {}
    for projection in adaptable.projections:
        change = _in_blocks(scaled, projection) if backend.blocks else _side_by_side(scaled, projection, backend)
        if change is not None:
            changes[projection.name] = change
    return changes


def _in_blocks(scaled: Sequence[tuple[Adapter, float]], projection: Projection) -> BlockLowRank | None:
    modules = [sum_of_deltas(scaled, projection.in_features, [part]) for part in projection.parts]
    return None if all(change is None for change in modules) else BlockLowRank(modules)


def _side_by_side(scaled: Sequence[tuple[Adapter, float]], projection: Projection, backend: Backend) -> LowRank | None:
    change = sum_of_deltas(scaled, projection.in_features, projection.parts)
    if change is None:
        return None
    ops = backend.head_ops if projection.in_head_dtype else backend.ops
    return ops.low_rank(change.a, change.b, change.gain, change.offset)


def _norms(scaled: Sequence[tuple[Adapter, float]], backend: Backend) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for adapter, scale in scaled:
        for module, change in adapter.norms.items():
            term = change.to(backend.device, torch.float32) * scale
            sums[module] = sums[module] + term if module in sums else term
    return sums
