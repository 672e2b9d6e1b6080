"""Where keys and values live: per layer one tensor of pages for each. Knows nothing of who owns which block.

The layout (N, P, K, h) serves every attention backend, CUDA's flash kernels included.

N blocks, P tokens per block, K KV heads, h head size.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from model.backend import Backend
from model.checkpoint.config import ModelConfig
from scheduler.batch import BLOCK_SIZE

_CACHE_LINE = 64
"""Bytes. Kernels load whole lines; from an address between two they would read both."""


class KVCache:
    """Paged keys and values of every layer, in the backend's dtype."""

    def __init__(self, config: ModelConfig, num_blocks: int, backend: Backend) -> None:
        self.num_blocks = num_blocks
        self.num_bytes = num_blocks * self.bytes_per_block(config, backend.dtype)
        shape = (num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        # Zeros, not empty: a kernel may multiply what it masks by 0, and 0 · NaN would spoil the row.
        self.keys: list[Tensor] = [_zeros(shape, backend) for _ in range(config.num_layers)]
        self.values: list[Tensor] = [_zeros(shape, backend) for _ in range(config.num_layers)]
        pairs = zip(self.keys, self.values, strict=True)
        self.addresses = np.array([(keys.data_ptr(), values.data_ptr()) for keys, values in pairs], np.int64)  # (L, 2)
        """Where each layer's keys and values begin, for kernels that compute all layers."""

    def read(self, block_ids: Sequence[int]) -> bytes:
        """Return what blocks hold, one after the other: of each layer its keys, then its values."""
        index = torch.tensor(block_ids, device=self.keys[0].device)  # (n,)
        pages = [part[index] for pair in zip(self.keys, self.values, strict=True) for part in pair]
        content = torch.stack(pages, 1).cpu()  # (n, 2L, P, K, h)
        return content.view(torch.uint8).numpy().tobytes()

    def write(self, block_ids: Sequence[int], content: bytes) -> None:
        """Write what `read` has returned of as many blocks of a cache of the same layout and dtype."""
        first = self.keys[0]
        index = torch.tensor(block_ids, device=first.device)  # (n,)
        shape = (len(block_ids), 2 * len(self.keys), *first.shape[1:])
        pages = torch.frombuffer(bytearray(content), dtype=first.dtype).view(shape).to(first.device)  # (n, 2L, P, K, h)
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            keys[index] = pages[:, 2 * layer]
            values[index] = pages[:, 2 * layer + 1]

    @staticmethod
    def bytes_per_block(config: ModelConfig, dtype: torch.dtype) -> int:
        """Bytes that one block takes, keys and values of all layers together."""
        return 2 * config.num_layers * BLOCK_SIZE * config.num_kv_heads * config.head_dim * dtype.itemsize


def _zeros(shape: tuple[int, ...], backend: Backend) -> Tensor:
    """On a CPU, from pages that the system gives as zeros and that take memory only once they are written: a pool is
    planned for the fullest hour. (`torch.zeros` would write them all.)"""
    if backend.device.type != "cpu":
        return torch.zeros(shape, dtype=backend.dtype, device=backend.device)
    num_bytes = math.prod(shape) * backend.dtype.itemsize
    memory = np.zeros(num_bytes + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return torch.from_numpy(memory[start : start + num_bytes]).view(backend.dtype).view(shape)
