"""The matrices of paged attention: pages unpacked to float32, and their product, for the kernels on CPUs.

A stripe is 64 consecutive keys of one row, from a multiple of 64 on, and one KV head. Matrices are row-major in float32
arrays that hold nothing else; a product rounds their rows up to 4 and their columns to 32.

K KV heads, h head size, P tokens per block.
"""

import numpy as np
from numpy.typing import NDArray

from model.cpu.jit import inlined
from model.cpu.simd import (
    WIDTH,
    Array,
    F32x16,
    fma,
    load,
    load_one,
    load_upto,
    prefetch,
    splat,
    store,
    store_one,
    transpose,
)
from scheduler.batch import BLOCK_SIZE

_P = BLOCK_SIZE
STRIPE = 4 * _P
"""Keys between two looks at the running maximum."""
ROWS, COLUMNS = 4, 2 * WIDTH
"""Shape of the piece of a product that is held in registers."""

assert _P == WIDTH, "a page's keys are the lanes of one vector"


@inlined
def round_up(count: int, multiple: int) -> int:
    """Return the least multiple that is not below `count`."""
    return (count + multiple - 1) // multiple * multiple


@inlined
def aligned(size: int) -> Array:
    """Return floats from the beginning of a cache line on: a vector across two lines takes twice as long to load."""
    memory = np.empty(size + WIDTH, np.float32)
    start = -(memory.ctypes.data // 4) % WIDTH
    return memory[start : start + size]


@inlined
def prefetch_stripe(cache: Array, block_table: NDArray[np.int32], stripe: int, num_keys: int, head: int) -> None:
    """Ask for what is read next: each head's part of a page is a few lines with gaps, which no hardware foresees."""
    K, h = cache.shape[2:]
    for j in range(num_keys):
        start = ((block_table[(stripe + j) // _P] * _P + j % _P) * K + head) * h
        for d in range(0, h, 64 // cache.itemsize):
            prefetch(cache, start + d)


@inlined
def unpack_keys(
    k_cache: Array, block_table: NDArray[np.int32], stripe: int, num_keys: int, head: int, target: Array
) -> None:
    """Transpose a stripe's keys into (h, 64). Slots past the context may hold anything: their scores are masked."""
    K, h = k_cache.shape[2:]
    at_once = 64 // k_cache.itemsize
    for column in range(0, num_keys, _P):
        start = (block_table[(stripe + column) // _P] * _P * K + head) * h
        whole = h // at_once * at_once
        for d in range(0, whole, at_once):
            transpose(k_cache, start + d, K * h, target, d * STRIPE + column, STRIPE)
        for d in range(whole, h):
            for j in range(_P):
                store_one(target, d * STRIPE + column + j, load_one(k_cache, start + j * K * h + d))


@inlined
def unpack_values(
    v_cache: Array, block_table: NDArray[np.int32], stripe: int, begin: int, num_keys: int, head: int,
    target: Array, padded_h: int,
) -> None:  # fmt: skip
    """Copy the values of keys begin … num_keys - 1 of a stripe, zeros after the head's end."""
    K, h = v_cache.shape[2:]
    for j in range(begin, num_keys):
        start = ((block_table[(stripe + j) // _P] * _P + j % _P) * K + head) * h
        for d in range(0, padded_h, WIDTH):
            store(target, j * padded_h + d, load_upto(v_cache, start + d, max(h - d, 0)))


@inlined
def multiply_matrices(
    a: Array, a_stride: int, b: Array, b_stride: int, c: Array, c_stride: int,
    num_rows: int, num_columns: int, begin: int, end: int, accumulate: bool,
) -> None:  # fmt: skip
    """C (rows, columns) = or += A (rows, begin … end - 1) · B (begin … end - 1, columns), in order of the inner index.

    Rows and columns are rounded up to 4 and 32: the matrices have room for that.
    """
    for column in range(0, num_columns, COLUMNS):
        for row in range(0, num_rows, ROWS):
            at = row * c_stride + column
            if accumulate:
                c00, c01 = _load_two(c, at)
                c10, c11 = _load_two(c, at + c_stride)
                c20, c21 = _load_two(c, at + 2 * c_stride)
                c30, c31 = _load_two(c, at + 3 * c_stride)
            else:
                c00 = c01 = c10 = c11 = c20 = c21 = c30 = c31 = splat(np.float32(0))
            for i in range(begin, end):
                b0, b1 = _load_two(b, i * b_stride + column)
                a0 = splat(load_one(a, row * a_stride + i))
                c00, c01 = fma(a0, b0, c00), fma(a0, b1, c01)
                a1 = splat(load_one(a, (row + 1) * a_stride + i))
                c10, c11 = fma(a1, b0, c10), fma(a1, b1, c11)
                a2 = splat(load_one(a, (row + 2) * a_stride + i))
                c20, c21 = fma(a2, b0, c20), fma(a2, b1, c21)
                a3 = splat(load_one(a, (row + 3) * a_stride + i))
                c30, c31 = fma(a3, b0, c30), fma(a3, b1, c31)
            _store_two(c, at, c00, c01)
            _store_two(c, at + c_stride, c10, c11)
            _store_two(c, at + 2 * c_stride, c20, c21)
            _store_two(c, at + 3 * c_stride, c30, c31)


@inlined
def _load_two(matrix: Array, at: int) -> tuple[F32x16, F32x16]:
    return load(matrix, at), load(matrix, at + WIDTH)


@inlined
def _store_two(matrix: Array, at: int, left: F32x16, right: F32x16) -> None:
    store(matrix, at, left)
    store(matrix, at + WIDTH, right)
