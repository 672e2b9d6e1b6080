"""What an adapter list makes of a matrix product, y ← gain ⊙ y + offset + B (A x), as one numba kernel for CPUs.

Two library calls for each projection cost more in dispatch than in arithmetic, 240 times a step. Here both products run
on a few rows at a time while they lie in the cache, in float32, and y is rounded once. Each element is one chain of
fused multiply-adds in the order of the inner index, so a row has the same bits whatever its neighbours.

T tokens in the step, R rank of the whole list; `in` and `out` are the projection's features.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.cpu.arrays import as_array
from model.cpu.jit import compiled, inlined, kernel
from model.cpu.matrices import COLUMNS, ROWS, aligned, multiply_matrices, round_up
from model.cpu.rows import NONE
from model.cpu.simd import WIDTH, Array, fma, load, load_upto, splat, store, store_upto
from model.cpu.team import Counter, fetch_add, run_in_team

_TILE, _BLOCK = 16, 4096
"""Rows and columns of y computed at once: they fit the second-level cache."""
_SHARE = 1024
"""Columns that are worth a thread of their own where rows are few."""


class CpuLowRank:
    """`LowRank` for bfloat16 and float32 on CPUs. Holds both factors in float32."""

    def __init__(self, a: Tensor, b: Tensor, gain: Tensor | None = None, offset: Tensor | None = None) -> None:
        """a (R, in), b (out, R), gain and offset (out,); R may be 0."""
        rank = a.shape[0]
        self._rank = rank
        self._a = _padded(a.t(), a.shape[1], round_up(rank, COLUMNS))  # (in, padded R)
        self._b = _padded(b.t(), rank, round_up(b.shape[0], COLUMNS))  # (R, padded out)
        self._gain = NONE if gain is None else gain.float().contiguous().numpy()  # (out,)
        self._offset = NONE if offset is None else offset.float().contiguous().numpy()  # (out,)
        self.num_bytes = sum(array.nbytes for array in (self._a, self._b, self._gain, self._offset))

    def add_to(self, y: Tensor, x: Tensor) -> None:
        assert x.dtype == y.dtype
        assert x.shape[1] == self._a.shape[0]
        assert y.shape[1] <= self._b.shape[1]
        _add_low_rank(
            as_array(x), self._a, self._b, self._gain, self._offset, as_array(y), self._rank, torch.get_num_threads()
        )


def _padded(matrix: Tensor, num_rows: int, num_columns: int) -> NDArray[np.float32]:
    out = np.zeros((num_rows, num_columns), np.float32)
    out[:, : matrix.shape[1]] = matrix.float().numpy()
    return out


@kernel
def _add_low_rank(
    x: Array, a: Array, b: Array, gain: Array, offset: Array, y: Array, rank: int, num_threads: int
) -> None:
    num_tiles = max(1, (x.shape[0] + _TILE - 1) // _TILE)
    num_shares = min((num_threads + num_tiles - 1) // num_tiles, (y.shape[1] + _SHARE - 1) // _SHARE)
    arguments = x, a, b.reshape(-1), gain, offset, y, rank, num_shares, np.zeros(1, np.int64)
    run_in_team(_add_shares, arguments, np.int32(min(num_threads, num_tiles * num_shares)))


@compiled
def _add_shares(
    x: Array, a: Array, b: Array, gain: Array, offset: Array, y: Array, rank: int, num_shares: int, next_share: Counter
) -> None:
    """Each share of the work is a tile of rows, and all columns or a part of them."""
    T, in_features = x.shape
    out_features, padded_rank = y.shape[1], a.shape[1]
    width = round_up((out_features + num_shares - 1) // num_shares, COLUMNS)
    M = round_up(min(T, _TILE), ROWS)
    inputs, between = aligned(M * in_features), aligned(M * padded_rank)
    outputs = aligned(M * min(width, _BLOCK))
    share = fetch_add(next_share, 1)
    while share // num_shares * _TILE < T:
        first = share // num_shares * _TILE
        count = min(_TILE, T - first)
        if rank:
            _widen(x, first * in_features, in_features, count, in_features, inputs, in_features)
            multiply_matrices(
                inputs, in_features, a, padded_rank, between, padded_rank, count, rank, 0, in_features, False
            )
        begin = share % num_shares * width
        end = min(begin + width, out_features)
        for column in range(begin, end, _BLOCK):
            _add_block(between, padded_rank, b, gain, offset, y, rank, first, count, column, end, outputs)
        share = fetch_add(next_share, 1)


@inlined
def _add_block(
    between: Array, padded_rank: int, b: Array, gain: Array, offset: Array, y: Array, rank: int,
    first: int, count: int, column: int, end: int, outputs: Array,
) -> None:  # fmt: skip
    """Finish rows first … first + count - 1 of y, in columns from `column` on: up to `end`, and as many as a block."""
    out_features, width = y.shape[1], min(_BLOCK, end - column)
    stride, start = round_up(width, COLUMNS), first * out_features + column
    _widen(y, start, out_features, count, width, outputs, stride)
    if gain.size or offset.size:
        _scale_and_shift(outputs, stride, count, width, gain, offset, column)
    if rank:
        multiply_matrices(
            between, padded_rank, b[column:], round_up(out_features, COLUMNS), outputs, stride,
            count, width, 0, rank, True,
        )  # fmt: skip
    for row in range(count):
        for i in range(0, width, WIDTH):
            value = load_upto(outputs, row * stride + i, width - i)
            store_upto(y, start + row * out_features + i, value, width - i)


@inlined
def _scale_and_shift(
    rows: Array, stride: int, count: int, width: int, gain: Array, offset: Array, column: int
) -> None:  # fmt: skip
    """rows ← gain ⊙ rows + offset, each only where it is given; the first column of rows is `column` of theirs."""
    for i in range(0, width, WIDTH):
        factor = load_upto(gain, column + i, width - i) if gain.size else splat(np.float32(1))
        term = load_upto(offset, column + i, width - i) if offset.size else splat(np.float32(0))
        for row in range(count):
            store(rows, row * stride + i, fma(load(rows, row * stride + i), factor, term))


@inlined
def _widen(source: Array, start: int, source_stride: int, count: int, width: int, target: Array, stride: int) -> None:
    for row in range(count):
        for i in range(0, width, WIDTH):
            value = load_upto(source, start + row * source_stride + i, width - i)
            store_upto(target, row * stride + i, value, width - i)
