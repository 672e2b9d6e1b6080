"""The arithmetic of adapters: y = W x + Σ scale · factor · B (A x), for one adapter list at a time.

The deltas of all adapters of a list are stacked once into one A and one B for each matrix product of the decoder,
scales and factors folded into B; a step then pays two skinny products where its list touches a projection, and nothing
elsewhere. Knows no file format and no request. The factor is alpha / rank (Hu et al., arXiv 2106.09685), or
alpha / √rank (rsLoRA, arXiv 2312.03732).

T tokens in the step, R rank; `in` and `out` are a module's or a projection's features.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.adapter import Adapter, LoraDelta
from model.backend import Backend
from model.layers import LowRank
from scheduler.cohort import CohortKey


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix product of the decoder: modules that read the same input, their outputs side by side."""

    name: str
    in_features: int
    parts: tuple[tuple[str, int], ...]
    """(module path, output features) in the order of the output."""


class LoraStack:
    """One adapter list, ready to run."""

    def __init__(self, deltas: Mapping[str, LowRank]) -> None:
        """`deltas`: the sum of all deltas of the list on each projection that it touches, by name."""
        self.num_bytes = sum(delta.num_bytes for delta in deltas.values())
        self._deltas = deltas

    def touches(self, name: str) -> bool:
        """Whether the list changes the projection at all."""
        return name in self._deltas

    def add_to(self, name: str, y: Tensor, x: Tensor) -> None:
        """Add Σ scale · factor · B (A x) to `y` in place, for projection `name`; nothing where the list does not touch
        it.

        x (T, in) and y (T, out) are contiguous, in the compute dtype.
        """
        delta = self._deltas.get(name)
        if delta is not None:
            delta.add_to(y, x)


def stack_adapters(
    scaled: Sequence[tuple[Adapter, float]], projections: Sequence[Projection], backend: Backend
) -> LoraStack:
    """Build the stack of an adapter list. Sums are formed in the order given, so the key's order fixes them."""
    deltas = {}
    for projection in projections:
        blocks = _blocks(scaled, projection)
        if blocks:
            deltas[projection.name] = backend.ops.low_rank(*_stack(blocks, projection))
    return LoraStack(deltas)


@dataclass(frozen=True, slots=True)
class _Block:
    delta: LoraDelta
    scale: float
    row: int
    """Where its part's outputs begin among the projection's."""


def _blocks(scaled: Sequence[tuple[Adapter, float]], projection: Projection) -> list[_Block]:
    blocks = []
    for adapter, scale in scaled:
        row = 0
        for module, out_features in projection.parts:
            if module in adapter.deltas:
                blocks.append(_Block(adapter.deltas[module], scale, row))
            row += out_features
    return blocks


def _stack(blocks: Sequence[_Block], projection: Projection) -> tuple[Tensor, Tensor]:
    """Return A (R, in) and B (out, R) in float32: each block has ranks of its own, and the rows of its part in B."""
    a = torch.cat([block.delta.a.float() for block in blocks])  # (R, in)
    b = torch.zeros(sum(out for _, out in projection.parts), a.shape[0])  # (out, R)
    column = 0
    for block in blocks:
        out_features, rank = block.delta.b.shape
        b[block.row : block.row + out_features, column : column + rank] = block.delta.b.float() * (
            block.scale * block.delta.factor
        )
        column += rank
    return a, b


class LoraCache:
    """The resident adapters, and the stacks of the lists used last. Not thread-safe: the model's thread owns it."""

    def __init__(
        self, adapters: Iterable[Adapter], projections: Sequence[Projection], backend: Backend, max_bytes: int
    ) -> None:
        self._adapters = {adapter.id: adapter for adapter in adapters}
        self._projections = projections
        self._backend = backend
        self._max_bytes = max_bytes
        self._stacks: OrderedDict[CohortKey, LoraStack] = OrderedDict()
        self.num_bytes = 0
        """Held by the cached stacks; above `max_bytes` only where a single stack is larger than that."""

    def add(self, adapter: Adapter) -> None:
        """Make an adapter available to keys."""
        self._adapters[adapter.id] = adapter

    def drop(self, load_id: int) -> None:
        """Free an adapter and every stack it takes part in. No key may name it afterwards."""
        for adapter_id in [adapter_id for adapter_id in self._adapters if adapter_id.load_id == load_id]:
            del self._adapters[adapter_id]
        for key in [key for key in self._stacks if any(adapter_id.load_id == load_id for adapter_id, _ in key)]:
            self.num_bytes -= self._stacks.pop(key).num_bytes

    def get(self, key: CohortKey) -> LoraStack | None:
        """Return the stack of a key, built where it is not cached; None for the base key."""
        if not key:
            return None
        if key not in self._stacks:
            scaled = [(self._adapters[adapter_id], scale) for adapter_id, scale in key]
            self._insert(key, stack_adapters(scaled, self._projections, self._backend))
        self._stacks.move_to_end(key)
        return self._stacks[key]

    def _insert(self, key: CohortKey, stack: LoraStack) -> None:
        while self._stacks and self.num_bytes + stack.num_bytes > self._max_bytes:
            _, evicted = self._stacks.popitem(last=False)
            self.num_bytes -= evicted.num_bytes
        self._stacks[key] = stack
        self.num_bytes += stack.num_bytes
