"""What an adapter list makes of the products in blocks: y ← gain ⊙ y + offset + B (A x), module by module.

Both factors are weights of 8 bits in blocks, so that A x and B (A x) are products of integers like the others.
A module's ranks are those that its part of B uses; they are filled up to whole blocks with zeros. Scales of blocks are
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
from model.lora_sum import DeltaSum

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

    def __init__(self, change: DeltaSum, sizes: Sequence[int]) -> None:
        """`sizes`: outputs of each module, in the order of the product's."""
        self.modules: list[BlockChange] = []
        row = 0
        for size in sizes:
            self.modules.append(_of_module(change, slice(row, row + size)))
            row += size
        self.num_bytes = sum(module.num_bytes for module in self.modules)


def _of_module(change: DeltaSum, rows: slice) -> BlockChange:
    b = change.b[rows]
    used = (b != 0).any(dim=0)  # (R,)
    gain, offset = (None if each is None else lanes_of(each[rows]) for each in (change.gain, change.offset))
    if not used.any():
        return BlockChange(None, None, gain, offset)
    a, b = _balanced(change.a[used], b[:, used])
    if not all(factor.abs().max() <= _LARGEST for factor in (a, b)):  # or they are NaN
        nothing_known = torch.full((b.shape[0],), torch.nan)
        return BlockChange(None, None, None, lanes_of(nothing_known))
    return BlockChange(quantise_blocks(a), quantise_blocks(F.pad(b, (0, -b.shape[1] % BLOCK))), gain, offset)


def _balanced(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply rows of A (R, in) and divide columns of B (out, R) by powers of two that make them equally large."""
    sizes_a, sizes_b = a.abs().amax(dim=1), b.abs().amax(dim=0)  # (R,) each
    exponents = ((sizes_b.log2() - sizes_a.log2()) / 2).round()
    exponents[~exponents.isfinite()] = 0  # of zeros, and of what is no number
    return torch.ldexp(a, exponents.unsqueeze(1)), torch.ldexp(b, -exponents)


def lanes_of(values: Tensor) -> NDArray[np.float32]:
    """Return values (out,) as float32 for kernels that read whole sixteens."""
    padded: NDArray[np.float32] = F.pad(values.to(torch.float32), (0, -len(values) % LANES)).contiguous().numpy()
    return padded
