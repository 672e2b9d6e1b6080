"""What an adapter list makes of the products in blocks: y ← gain ⊙ y + offset + B (A x), module by module.

A is a weight of 8 bits in blocks, so that A x is a product of integers like the others; B is bfloat16, for it has so
few inputs that the scale of a block would cost more than its product. A module's ranks are filled up to whole sixteens
with zeros. Scales of blocks are float16, whose range is small, so each rank's row of A and column of B are made about
equally large by a power of two: that changes nothing in their product. What is too large even so gives NaN, as infinite
factors would.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from model.cpu.block_weight import LANES, quantise_blocks
from model.cpu.jit import inlined, kernel
from model.cpu.matrices import round_up
from model.cpu.rank_products import RANKS, pack_ranks
from model.cpu.simd import WIDTH, Array, load, max_lanes, maximum, splat, subtract
from model.lora_sum import DeltaSum

_LARGEST = 30000.0
"""The largest element: the range of a block fits float16."""


@dataclass(frozen=True, slots=True)
class BlockChange:
    """What a list changes in one module. Nothing: no tiles, and None."""

    tiles: range
    """Those of the product's A that are the module's."""
    b: NDArray[np.uint16] | None
    """B (out, R) as model/cpu/rank_products.py packs it."""
    gain: NDArray[np.float32] | None  # (out up to a multiple of 16,)
    offset: NDArray[np.float32] | None


class BlockLowRank:
    """What a list changes in one product, by the modules that share it."""

    def __init__(self, changes: Sequence[DeltaSum | None]) -> None:
        """`changes`: of each module, in the order of the product's outputs; None where there is none."""
        self.modules: list[BlockChange] = []
        rows: list[Tensor] = []
        for change in changes:
            a, b, gain, offset = _parts(change)
            start = sum(len(before) for before in rows) // LANES
            self.modules.append(BlockChange(range(start, start + len(a) // LANES), b, gain, offset))
            rows += [a] if len(a) else []
        self.a = quantise_blocks(torch.cat(rows)) if rows else None
        """(16 · tiles, in): the modules' A after each other."""
        arrays = (array for module in self.modules for array in (module.b, module.gain, module.offset))
        self.num_bytes = sum(array.nbytes for array in arrays if array is not None)
        self.num_bytes += 0 if self.a is None else self.a.num_bytes

    def a_address(self, module: BlockChange) -> int:
        """Return where A of a module that has some begins; valid while this object lives."""
        assert self.a is not None
        return self.a.address + module.tiles.start * (self.a.num_bytes * LANES // self.a.out_features)


_Lanes: TypeAlias = NDArray[np.float32] | None
_NO_ROWS = torch.empty(0, 0)


def _parts(change: DeltaSum | None) -> tuple[Tensor, NDArray[np.uint16] | None, _Lanes, _Lanes]:
    """Return A (R up to a multiple of 16, in), B, gain and offset of a module."""
    if change is None:
        return _NO_ROWS, None, None, None
    gain, offset = (None if each is None else lanes_of(each) for each in (change.gain, change.offset))
    (rank, in_features), out_features = change.a.shape, change.b.shape[0]
    if rank == 0:
        return _NO_ROWS, None, gain, offset
    a, b = torch.zeros(round_up(rank, RANKS), in_features), np.empty((out_features, rank), np.float32)
    if not _balance(change.a.contiguous().numpy(), change.b.contiguous().numpy(), a.numpy(), b):
        return _NO_ROWS, None, None, lanes_of(torch.full((out_features,), torch.nan))
    return a, pack_ranks(b), gain, offset


@kernel
def _balance(a: Array, b: Array, balanced_a: Array, balanced_b: Array) -> bool:
    """Multiply rows of A (R, in) and divide columns of B (out, R) by powers of two that make them equally large.

    Rows of the balanced A beyond the ranks are left alone. Returns whether blocks can hold the result: not where an
    element is too large, or no number.
    """
    (rank, in_features), out_features = a.shape, b.shape[0]
    sizes_b = np.zeros(rank, np.float32)
    for n in range(out_features):
        for r in range(rank):
            sizes_b[r] = max(sizes_b[r], abs(b[n, r]))
    factors = np.ones(rank, np.float64)
    fits = True
    for r in range(rank):
        size_a = _largest(a, r)
        if 0 < size_a < np.inf and 0 < sizes_b[r] < np.inf:
            factors[r] = 2.0 ** np.round((np.log2(sizes_b[r]) - np.log2(size_a)) / 2)
        for k in range(in_features):
            value = a[r, k] * factors[r]
            fits &= abs(value) <= _LARGEST
            balanced_a[r, k] = value
        factors[r] = 1 / factors[r]
    for n in range(out_features):
        for r in range(rank):
            value = b[n, r] * factors[r]
            fits &= abs(value) <= _LARGEST
            balanced_b[n, r] = value
    return fits


@inlined
def _largest(a: Array, r: int) -> np.float32:
    """The largest magnitude in row `r` of A (R, in)."""
    most, zero = splat(np.float32(0)), splat(np.float32(0))
    for k in range(0, a.shape[1], WIDTH):
        values = load(a, r * a.shape[1] + k)
        most = maximum(maximum(values, subtract(zero, values)), most)
    largest: np.float32 = max_lanes(most)
    return largest


def lanes_of(values: Tensor) -> NDArray[np.float32]:
    """Return values (out,) as float32 for kernels that read whole sixteens."""
    padded: NDArray[np.float32] = F.pad(values.to(torch.float32), (0, -len(values) % LANES)).contiguous().numpy()
    return padded
