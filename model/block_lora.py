"""What an adapter list makes of the products in blocks: y ← gain ⊙ y + offset + B (A x), module by module.

Both factors are weights of 8 bits in blocks, so that A x and B (A x) are products like the others, on the same integers.
A module's ranks are those that its part of B uses; they are filled up to whole blocks with zeros.
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
    b = b[:, used]
    return BlockChange(
        quantise_blocks(change.a[used]), quantise_blocks(F.pad(b, (0, -b.shape[1] % BLOCK))), gain, offset
    )


def lanes_of(values: Tensor) -> NDArray[np.float32]:
    """Return values (out,) as float32 for kernels that read whole sixteens."""
    padded: NDArray[np.float32] = F.pad(values.to(torch.float32), (0, -len(values) % LANES)).contiguous().numpy()
    return padded
