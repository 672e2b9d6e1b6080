"""Where keys and values live: per layer one tensor of pages for each. Knows nothing of who owns which block.

The layout (N, P, K, h) serves every attention backend, CUDA's flash kernels included.

N blocks, P tokens per block, K KV heads, h head size.
"""

import torch
from torch import Tensor

from model.backend import Backend
from model.config import ModelConfig
from scheduler.batch import BLOCK_SIZE


class KVCache:
    """Paged keys and values of every layer, in the backend's compute dtype."""

    def __init__(self, config: ModelConfig, num_blocks: int, backend: Backend) -> None:
        self.num_blocks = num_blocks
        self.num_bytes = num_blocks * self.bytes_per_block(config, backend.dtype)
        shape = (num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        # Zeros, not empty: a kernel may multiply what it masks by 0, and 0 · NaN would spoil the row.
        self.keys: list[Tensor] = [
            torch.zeros(shape, dtype=backend.dtype, device=backend.device) for _ in range(config.num_layers)
        ]
        self.values: list[Tensor] = [torch.zeros_like(keys) for keys in self.keys]

    @staticmethod
    def bytes_per_block(config: ModelConfig, dtype: torch.dtype) -> int:
        """Bytes that one block takes, keys and values of all layers together."""
        return 2 * config.num_layers * BLOCK_SIZE * config.num_kv_heads * config.head_dim * dtype.itemsize
