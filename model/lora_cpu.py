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

from model.arrays import as_array
from model.jit import compiled, inlined, kernel
from model.matrices_cpu import COLUMNS, ROWS, aligned, multiply_matrices, round_up
from model.simd import WIDTH, Array, fma, load, load_upto, splat, store, store_upto
from model.team import Counter, fetch_add, run_in_team

_TILE = 16
"""Rows computed at once: what they need fits the second-level cache."""

_NONE = np.empty(0, np.float32)
"""No gain, or no offset."""


class CpuLowRank:
    """`LowRank` for bfloat16 and float32 on CPUs. Holds both factors in float32."""

    def __init__(self, a: Tensor, b: Tensor, gain: Tensor | None = None, offset: Tensor | None = None) -> None:
        """a (R, in), b (out, R), gain and offset (out,); R may be 0."""
        rank = a.shape[0]
        self._rank = rank
        self._a = _padded(a.t(), a.shape[1], round_up(rank, COLUMNS))  # (in, padded R)
        self._b = _padded(b.t(), rank, round_up(b.shape[0], COLUMNS))  # (R, padded out)
        self._gain = _NONE if gain is None else gain.float().contiguous().numpy()  # (out,)
        self._offset = _NONE if offset is None else offset.float().contiguous().numpy()  # (out,)
        self.num_bytes = sum(array.nbytes for array in (self._a, self._b, self._gain, self._offset))

    def add_to(self, y: Tensor, x: Tensor) -> None:
        assert x.shape[1] == self._a.shape[0]
        assert y.shape[1] <= self._b.shape[1]
        assert x.dtype == y.dtype
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
    num_tiles = (x.shape[0] + _TILE - 1) // _TILE
    next_tile = np.zeros(1, np.int64)
    run_in_team(_add_tiles, (x, a, b, gain, offset, y, rank, next_tile), np.int32(min(num_threads, num_tiles)))


@compiled
def _add_tiles(
    x: Array, a: Array, b: Array, gain: Array, offset: Array, y: Array, rank: int, next_tile: Counter
) -> None:
    T = x.shape[0]
    M = round_up(min(T, _TILE), ROWS)
    inputs, between, outputs = aligned(M * x.shape[1]), aligned(M * a.shape[1]), aligned(M * b.shape[1])
    tile = fetch_add(next_tile, 1)
    while tile * _TILE < T:
        first, count = tile * _TILE, min(_TILE, T - tile * _TILE)
        _add_tile(x, a, b, gain, offset, y, rank, first, count, inputs, between, outputs)
        tile = fetch_add(next_tile, 1)


@inlined
def _add_tile(
    x: Array, a: Array, b: Array, gain: Array, offset: Array, y: Array, rank: int, first: int, count: int,
    inputs: Array, between: Array, outputs: Array,
) -> None:  # fmt: skip
    in_features, padded_rank, out_features, padded_out = x.shape[1], a.shape[1], y.shape[1], b.shape[1]
    _widen_rows(y, first, count, out_features, outputs, padded_out)
    if gain.size or offset.size:
        _scale_and_shift(outputs, count, out_features, padded_out, gain, offset)
    if rank:
        _widen_rows(x, first, count, in_features, inputs, in_features)
        multiply_matrices(inputs, in_features, a, padded_rank, between, padded_rank, count, rank, 0, in_features, False)
        multiply_matrices(between, padded_rank, b, padded_out, outputs, padded_out, count, out_features, 0, rank, True)
    for row in range(count):
        for i in range(0, out_features, WIDTH):
            value = load_upto(outputs, row * padded_out + i, out_features - i)
            store_upto(y, (first + row) * out_features + i, value, out_features - i)


@inlined
def _scale_and_shift(rows: Array, count: int, width: int, stride: int, gain: Array, offset: Array) -> None:
    """rows ← gain ⊙ rows + offset, each only where it is given."""
    for i in range(0, width, WIDTH):
        factor = load_upto(gain, i, width - i) if gain.size else splat(np.float32(1))
        term = load_upto(offset, i, width - i) if offset.size else splat(np.float32(0))
        for row in range(count):
            at = row * stride + i
            store(rows, at, fma(load(rows, at), factor, term))


@inlined
def _widen_rows(source: Array, first: int, count: int, width: int, target: Array, stride: int) -> None:
    for row in range(count):
        for i in range(0, width, WIDTH):
            value = load_upto(source, (first + row) * width + i, width - i)
            store_upto(target, row * stride + i, value, width - i)
