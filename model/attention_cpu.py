"""Paged attention for CPUs: one numba kernel for decode and prefill that reads pages through the block table.

A work item is a tile, some consecutive queries of one row, with all query heads of one KV head: a matrix of queries that read the
same keys. It walks the context in stripes of 64 keys, aligned to the sequence's beginning: scores = Q Kᵀ, an online softmax
(arXiv 1805.02867, 2205.14135), then accumulated += P V. Both products are one routine, and each element of them is one chain of fused
multiply-adds in the order of the inner index. So a token's result has the same bits alone and in any batch, tile or chunk.
Knows no weights and no requests.

S rows, T tokens in the step, H query heads, K KV heads, h head size, N blocks, P tokens per block; G = H / K; a tile has
M (query, head) pairs.
"""

from typing import NamedTuple

import numba
import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor

from model.attention import AttentionStep
from model.kernels_cpu import as_array, num_kernel_threads
from model.simd import (
    WIDTH,
    Array,
    add,
    exp,
    fetch_add,
    fma,
    inlined,
    keep_between,
    kernel,
    load,
    load_one,
    load_upto,
    max_lanes,
    maximum,
    multiply,
    splat,
    store,
    store_one,
    store_upto,
    subtract,
    sum_lanes,
    transpose,
)
from scheduler.batch import BLOCK_SIZE

_P = BLOCK_SIZE
_STRIPE = 4 * _P
"""Keys between two looks at the running maximum."""
_TILE = 64
"""At most so many (query, head) pairs share a tile: enough to pay for unpacking keys and values, and they stay in the L1/L2 cache."""
_ROWS, _COLUMNS = 4, 2 * WIDTH
"""Shape of the piece of a product that is held in registers."""

_LOWEST = np.float32(-1e30)
"""The running maximum before the first key: finite, so that its distance to itself is 0 and not NaN."""
_MASKED = np.float32(-np.inf)

assert _P == WIDTH, "a page's keys are the lanes of one vector"


class PagedAttention:
    """`Attention` for bfloat16 and float32 on CPUs; head sizes are multiples of 8."""

    def __init__(self) -> None:
        self._num_threads = num_kernel_threads()

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: AttentionStep, scale: float, window: int | None
    ) -> Tensor:
        T, H, h = q.shape
        assert q.dtype == k_cache.dtype == v_cache.dtype
        assert k_cache.shape[1] == _P and h % 8 == 0 and H % k_cache.shape[2] == 0
        out = torch.empty(T, H * h, dtype=q.dtype)
        numba.set_num_threads(self._num_threads)
        _attend(
            as_array(q), as_array(k_cache), as_array(v_cache),
            step.query_starts.numpy(), step.context_lens.numpy(), step.block_tables.numpy(),
            scale, step.max_context if window is None else window, as_array(out), self._num_threads,
        )  # fmt: skip
        return out


class _Scratch(NamedTuple):
    """One worker's memory: matrices in float32, each beginning at a cache line."""

    queries: Array
    """(M, h), scaled."""
    page: Array
    """A stripe's keys (h, 64), and after the scores its values (64, padded h)."""
    scores: Array
    """(M, 64): scores, then probabilities."""
    out: Array
    """(M, padded h): the accumulated output."""
    sums: Array
    """(M, 16): sums of probabilities, by lane."""
    maxima: Array
    """(M,)."""


@kernel
def _attend(
    q: Array, k_cache: Array, v_cache: Array,
    query_starts: NDArray[np.int32], context_lens: NDArray[np.int32], block_tables: NDArray[np.int32],
    scale: float, window: int, out: Array, num_workers: int,
) -> None:  # fmt: skip
    H, h = q.shape[1:]
    K = k_cache.shape[2]
    tile_queries = max(1, _TILE * K // H)
    tiles = _longest_first(query_starts, context_lens, tile_queries)
    num_items = len(tiles) * K
    next_item = np.zeros(1, np.int64)
    for _worker in prange(num_workers):
        longest = min(tile_queries, np.max(query_starts[1:] - query_starts[:-1]))
        scratch = _allocate(longest * H // K, h)
        item = fetch_add(next_item, 1)
        while item < num_items:
            s, first = tiles[item // K]
            count = min(tile_queries, query_starts[s + 1] - query_starts[s] - first)
            position = context_lens[s] - (query_starts[s + 1] - query_starts[s]) + first
            _attend_tile(
                q, k_cache, v_cache, block_tables[s], query_starts[s] + first, count, position, item % K,
                np.float32(scale), window, out, scratch,
            )  # fmt: skip
            item = fetch_add(next_item, 1)


@inlined
def _longest_first(
    query_starts: NDArray[np.int32], context_lens: NDArray[np.int32], tile_queries: int
) -> NDArray[np.int64]:
    """Cut each row into tiles (row, first query in the row), the most work first, so that no worker is left with it at the end."""
    S = len(context_lens)
    num_tiles = 0
    for s in range(S):
        num_tiles += (query_starts[s + 1] - query_starts[s] + tile_queries - 1) // tile_queries
    tiles, work = np.empty((num_tiles, 2), np.int64), np.empty(num_tiles, np.int64)
    i = 0
    for s in range(S):
        num_queries = query_starts[s + 1] - query_starts[s]
        for first in range(0, num_queries, tile_queries):
            last = min(first + tile_queries, num_queries)
            tiles[i, 0], tiles[i, 1] = s, first
            work[i] = -(context_lens[s] - num_queries + last) * (last - first)
            i += 1
    return tiles[np.argsort(work)]


@inlined
def _allocate(M: int, h: int) -> _Scratch:
    padded_M, padded_h = _round_up(M, _ROWS), _round_up(h, _COLUMNS)
    sizes = (padded_M * h, _STRIPE * padded_h, padded_M * _STRIPE, padded_M * padded_h, padded_M * WIDTH, padded_M)
    total = 0
    for size in sizes:
        total += _round_up(size, WIDTH)
    memory = np.empty(total + WIDTH, np.float32)
    at = -(memory.ctypes.data // 4) % WIDTH
    ends = np.empty(7, np.int64)
    ends[0] = at
    for i in range(6):
        ends[i + 1] = ends[i] + _round_up(sizes[i], WIDTH)
    return _Scratch(
        memory[ends[0] : ends[1]], memory[ends[1] : ends[2]], memory[ends[2] : ends[3]],
        memory[ends[3] : ends[4]], memory[ends[4] : ends[5]], memory[ends[5] : ends[6]],
    )  # fmt: skip


@inlined
def _round_up(count: int, multiple: int) -> int:
    return (count + multiple - 1) // multiple * multiple


@inlined
def _attend_tile(
    q: Array, k_cache: Array, v_cache: Array, block_table: NDArray[np.int32],
    token: int, num_queries: int, position: int, head: int, scale: np.float32, window: int, out: Array, scratch: _Scratch,
) -> None:  # fmt: skip
    """Attend with queries token … token + num_queries - 1, the first at `position`, to KV head `head`."""
    H, h = q.shape[1:]
    G = H // k_cache.shape[2]
    M = num_queries * G
    padded_M, padded_h = _round_up(M, _ROWS), _round_up(h, _COLUMNS)
    _read_queries(q, token, head * G, num_queries, G, scale, scratch)
    scratch.out[: padded_M * padded_h] = 0
    scratch.sums[: padded_M * WIDTH] = 0
    scratch.maxima[:padded_M] = _LOWEST
    end = position + num_queries
    first_key = max(0, position - window + 1)
    for stripe in range(first_key // _STRIPE * _STRIPE, end, _STRIPE):
        begin, num_keys = max(first_key - stripe, 0), min(end - stripe, _STRIPE)
        _unpack_keys(k_cache, block_table, stripe, num_keys, head, scratch.page)
        _product(scratch.queries, h, scratch.page, _STRIPE, scratch.scores, _STRIPE, M, num_keys, 0, h, False)
        for m in range(M):
            last = position + m // G - stripe
            _softmax_row(scratch, m, max(last - window + 1, 0), last + 1, _round_up(num_keys, WIDTH), padded_h)
        _unpack_values(v_cache, block_table, stripe, begin, num_keys, head, scratch.page, padded_h)
        _product(
            scratch.scores, _STRIPE, scratch.page, padded_h, scratch.out, padded_h, M, padded_h, begin, num_keys, True
        )
    _write_out(scratch, out, token, head * G, num_queries, G, H, h, padded_h)


@inlined
def _read_queries(
    q: Array, token: int, first_head: int, num_queries: int, G: int, scale: np.float32, scratch: _Scratch
) -> None:
    """Row m of the tile is query m // G, head m % G of the group."""
    H, h = q.shape[1:]
    scratch.queries[num_queries * G * h :] = 0
    for m in range(num_queries * G):
        start = ((token + m // G) * H + first_head + m % G) * h
        for d in range(0, h, WIDTH):
            store_upto(scratch.queries, m * h + d, multiply(load_upto(q, start + d, h - d), splat(scale)), h - d)


@inlined
def _unpack_keys(
    k_cache: Array, block_table: NDArray[np.int32], stripe: int, num_keys: int, head: int, page: Array
) -> None:
    """Transpose a stripe's keys into (h, 64). Slots past the context may hold anything: their columns are masked later."""
    K, h = k_cache.shape[2:]
    at_once = 64 // k_cache.itemsize
    for column in range(0, num_keys, _P):
        start = (block_table[(stripe + column) // _P] * _P * K + head) * h
        whole = h // at_once * at_once
        for d in range(0, whole, at_once):
            transpose(k_cache, start + d, K * h, page, d * _STRIPE + column, _STRIPE)
        for d in range(whole, h):
            for j in range(_P):
                store_one(page, d * _STRIPE + column + j, load_one(k_cache, start + j * K * h + d))


@inlined
def _unpack_values(
    v_cache: Array, block_table: NDArray[np.int32], stripe: int, begin: int, num_keys: int, head: int,
    page: Array, padded_h: int,
) -> None:  # fmt: skip
    """Copy the values of keys begin … num_keys - 1 of a stripe, zeros after the head's end."""
    K, h = v_cache.shape[2:]
    for j in range(begin, num_keys):
        start = ((block_table[(stripe + j) // _P] * _P + j % _P) * K + head) * h
        for d in range(0, padded_h, WIDTH):
            store(page, j * padded_h + d, load_upto(v_cache, start + d, max(h - d, 0)))


@inlined
def _product(
    a: Array, a_stride: int, b: Array, b_stride: int, c: Array, c_stride: int,
    num_rows: int, num_columns: int, begin: int, end: int, accumulate: bool,
) -> None:  # fmt: skip
    """C (rows, columns) = or += A (rows, begin … end - 1) · B (begin … end - 1, columns), in the order of the inner index.

    Rows and columns are rounded up to 4 and 32: the matrices have room for that.
    """
    for column in range(0, num_columns, _COLUMNS):
        for row in range(0, num_rows, _ROWS):
            at = row * c_stride + column
            if accumulate:
                c00, c01 = load(c, at), load(c, at + WIDTH)
                c10, c11 = load(c, at + c_stride), load(c, at + c_stride + WIDTH)
                c20, c21 = load(c, at + 2 * c_stride), load(c, at + 2 * c_stride + WIDTH)
                c30, c31 = load(c, at + 3 * c_stride), load(c, at + 3 * c_stride + WIDTH)
            else:
                c00 = c01 = c10 = c11 = c20 = c21 = c30 = c31 = splat(np.float32(0))
            for i in range(begin, end):
                b0, b1 = load(b, i * b_stride + column), load(b, i * b_stride + column + WIDTH)
                a0 = splat(load_one(a, row * a_stride + i))
                c00, c01 = fma(a0, b0, c00), fma(a0, b1, c01)
                a1 = splat(load_one(a, (row + 1) * a_stride + i))
                c10, c11 = fma(a1, b0, c10), fma(a1, b1, c11)
                a2 = splat(load_one(a, (row + 2) * a_stride + i))
                c20, c21 = fma(a2, b0, c20), fma(a2, b1, c21)
                a3 = splat(load_one(a, (row + 3) * a_stride + i))
                c30, c31 = fma(a3, b0, c30), fma(a3, b1, c31)
            store(c, at, c00), store(c, at + WIDTH, c01)
            store(c, at + c_stride, c10), store(c, at + c_stride + WIDTH, c11)
            store(c, at + 2 * c_stride, c20), store(c, at + 2 * c_stride + WIDTH, c21)
            store(c, at + 3 * c_stride, c30), store(c, at + 3 * c_stride + WIDTH, c31)


@inlined
def _softmax_row(scratch: _Scratch, m: int, begin: int, end: int, num_keys: int, padded_h: int) -> None:
    """Turn row m's scores into probabilities relative to the running maximum; only keys begin … end - 1 are visible to it."""
    row = m * _STRIPE
    highest = splat(_MASKED)
    for j in range(0, num_keys, WIDTH):
        visible = keep_between(load(scratch.scores, row + j), np.int32(begin - j), np.int32(end - j), _MASKED)
        store(scratch.scores, row + j, visible)
        highest = maximum(visible, highest)
    before = scratch.maxima[m]
    now = max(before, max_lanes(highest))
    sums = load(scratch.sums, m * WIDTH)
    if now > before:
        scratch.maxima[m] = now
        shrink = exp(splat(before - now))
        sums = multiply(sums, shrink)
        for d in range(m * padded_h, (m + 1) * padded_h, WIDTH):
            store(scratch.out, d, multiply(load(scratch.out, d), shrink))
    for j in range(0, num_keys, WIDTH):
        probability = exp(subtract(load(scratch.scores, row + j), splat(now)))
        store(scratch.scores, row + j, probability)
        sums = add(sums, probability)
    store(scratch.sums, m * WIDTH, sums)


@inlined
def _write_out(
    scratch: _Scratch, out: Array, token: int, first_head: int, num_queries: int, G: int, H: int, h: int, padded_h: int
) -> None:
    for m in range(num_queries * G):
        share = splat(np.float32(1) / sum_lanes(load(scratch.sums, m * WIDTH)))
        start = ((token + m // G) * H + first_head + m % G) * h
        for d in range(0, h, WIDTH):
            store_upto(out, start + d, multiply(load(scratch.out, m * padded_h + d), share), h - d)
