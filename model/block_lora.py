"""What an adapter list makes of the products in blocks: y ← gain ⊙ y + offset + B (A x), module by module.

Both factors are weights of 8 bits in blocks, so that A x and B (A x) are products of integers like the others.
A module's ranks are filled up to whole blocks with zeros. Scales of blocks are
float16, whose range is small, so each rank's row of A and column of B are made about equally large by a power of two:
that changes nothing in their product. What is too large even so gives NaN, as infinite factors would.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from model.block_weight import BLOCK, LANES, BlockWeight, quantise_blocks
from model.jit import inlined, kernel
from model.lora_sum import DeltaSum
from model.simd import WIDTH, Array, load, max_lanes, maximum, splat, subtract

_LARGEST = 30000.0
"""The largest element: the range of a block fits float16."""


@dataclass(frozen=True, slots=True)
class BlockChange:
    """What a list changes in one module. Nothing: None."""

    a: BlockWeight | None  # (R, in)
    b: BlockWeight | None  # (out, R up to a multiple of 32)
    gain: NDArray[np.float32] | None  # (out up to a multiple of 16,)
    offset: NDArray[np.float32] | None

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes in memory."""
        weights = (weight.num_bytes for weight in (self.a, self.b) if weight is not None)
        return sum(weights) + sum(array.nbytes for array in (self.gain, self.offset) if array is not None)


class BlockLowRank:
    """What a list changes in one product, by the modules that share it."""

    def __init__(self, changes: Sequence[DeltaSum | None]) -> None:
        """`changes`: of each module, in the order of the product's outputs; None where there is none."""
        self.modules = [_of_module(change) for change in changes]
        self.num_bytes = sum(module.num_bytes for module in self.modules)


def _of_module(change: DeltaSum | None) -> BlockChange:
    if change is None:
        return BlockChange(None, None, None, None)
    gain, offset = (None if each is None else lanes_of(each) for each in (change.gain, change.offset))
    (rank, in_features), out_features = change.a.shape, change.b.shape[0]
    if rank == 0:
        return BlockChange(None, None, gain, offset)
    a = torch.empty(rank, in_features)
    b = torch.empty(out_features, -(-rank // BLOCK) * BLOCK)
    if not _balance(change.a.contiguous().numpy(), change.b.contiguous().numpy(), a.numpy(), b.numpy()):
        return BlockChange(None, None, None, lanes_of(torch.full((out_features,), torch.nan)))
    return BlockChange(quantise_blocks(a), quantise_blocks(b), gain, offset)


@kernel
def _balance(a: Array, b: Array, balanced_a: Array, balanced_b: Array) -> bool:
    """Multiply rows of A (R, in) and divide columns of B (out, R) by powers of two that make them equally large.

    Columns of the balanced B beyond the ranks become zeros. Returns whether blocks can hold the result: not where an
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
    balanced_b[:, rank:] = 0
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
