"""The memory that steps pass their rows through, kept from step to step: as large as the largest so far.

T tokens in the step, S rows of logits, D hidden, F MLP, H query heads, K KV heads, h head size, V vocabulary.
"""

import numpy as np
from numpy.typing import NDArray

from model.checkpoint.config import ModelConfig
from model.cpu.block_tiles import BlockRows
from model.cpu.layer_memory import BLOCK, LINE, Buffers
from model.cpu.rank_products import RANK_ROW_BYTES, RankRows

_SIXTEEN = 16
_NUM_RANK_MODULES = 3
"""Modules that read the same rows, at most."""


class LayerWorkspace:
    """What `run_layers` reads and writes beside weights and caches."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._num_rows, self._num_logit_rows, self._rank_tiles = _SIXTEEN, 1, 1
        self._allocate()

    def make_room(self, num_rows: int, num_logit_rows: int, rank_tiles: int) -> None:
        """Be large enough for so many tokens, of which so many have logits, and so many sixteens of ranks a module."""
        if num_rows > self._num_rows or num_logit_rows > self._num_logit_rows or rank_tiles > self._rank_tiles:
            self._num_rows = max(self._num_rows, -(-num_rows // _SIXTEEN) * _SIXTEEN)
            self._num_logit_rows = max(self._num_logit_rows, num_logit_rows)
            self._rank_tiles = max(self._rank_tiles, rank_tiles)
            self._allocate()

    def _allocate(self) -> None:
        config, T, S = self._config, self._num_rows, self._num_logit_rows
        D, F, h = config.hidden_size, config.intermediate_size, config.head_dim
        H, K = config.num_heads, config.num_kv_heads
        self._kept: list[NDArray[np.uint8]] = []
        self.residual = self._floats(T, D)
        """(T or more, D): the embedded tokens before the step."""
        self.final = self._floats(T, D)
        """(T or more, D): the states after the last norm; the head read the first S."""
        self.logits = self._floats(S, config.vocab_size)
        """(S or more, V)."""
        self.buffers = Buffers(
            residual=self.residual.ctypes.data,
            y=self._floats(T, D).ctypes.data,
            qkv=self._floats(T, (H + 2 * K) * h).ctypes.data,
            q=self._floats(T, H * h).ctypes.data,
            attended=self._floats(T, H * h).ctypes.data,
            inner=self._rows(T, max(D, H * h) // BLOCK),
            gated=self._rows(T, F // BLOCK),
            ranks=RankRows(
                self._memory(_NUM_RANK_MODULES * T * self._rank_tiles * RANK_ROW_BYTES).ctypes.data, self._rank_tiles
            ),
            final=self.final.ctypes.data,
            logits=self.logits.ctypes.data,
        )
        """Where all of it lies."""

    def _floats(self, num_rows: int, size: int) -> NDArray[np.float32]:
        return self._memory(num_rows * size * 4).view(np.float32).reshape(num_rows, size)

    def _rows(self, num_rows: int, num_blocks: int) -> BlockRows:
        count = num_rows * num_blocks
        start = self._memory(count * (LINE + 8)).ctypes.data
        return BlockRows(start, start + count * LINE, start + count * (LINE + 4), num_blocks)

    def _memory(self, num_bytes: int) -> NDArray[np.uint8]:
        """Zeros from a cache line on, which live as long as the buffers."""
        memory = np.zeros(num_bytes + LINE, np.uint8)
        self._kept.append(memory)
        start = -memory.ctypes.data % LINE
        return memory[start : start + num_bytes]
