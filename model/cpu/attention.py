"""Paged attention for CPUs: one numba kernel for decode and prefill that reads pages through the block table.

A tile is some consecutive queries of one row, with all query heads of one KV head: a matrix of queries that read the
same keys. It walks the context in stripes of 64 keys, aligned to the sequence's beginning: scores = Q Kᵀ, an online
softmax (arXiv 1805.02867, 2205.14135), output += P V. Both products are one routine, in which each element is one chain
of fused multiply-adds in the order of the inner index. So a token's result has the same bits alone, in any batch, tile
or chunk. Knows no weights and no requests.

S rows, T tokens in the step, H query heads, K KV heads, h head size, N blocks, P tokens per block; G = H / K query
heads share a KV head, M (query, head) pairs share a tile.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.attention import AttentionStep
from model.cpu.addresses import address_of, array_at, elements_of
from model.cpu.jit import compiled, inlined, kernel
from model.cpu.matrices import (
    COLUMNS,
    ROWS,
    STRIPE,
    aligned,
    multiply_matrices,
    prefetch_stripe,
    round_up,
    unpack_keys,
    unpack_values,
)
from model.cpu.simd import (
    WIDTH,
    Array,
    add,
    exp,
    keep_between,
    load,
    load_upto,
    max_lanes,
    maximum,
    multiply,
    splat,
    store,
    store_upto,
    subtract,
    sum_lanes,
)
from model.cpu.team import Counter, fetch_add, run_in_team
from scheduler.batch import BLOCK_SIZE

TILE = 64
"""So many (query, head) pairs share a tile at most: enough to pay for unpacking keys, few enough for the L1 cache."""
_ALONE = 128
"""Up to so many queries times keys, one thread is done before a second one would have begun."""
_LOWEST = np.float32(-1e30)
"""The running maximum before the first key: finite, so that its distance to itself is 0 and not NaN."""
_MASKED = np.float32(-np.inf)
_INDICES = elements_of(torch.int32)


class PagedAttention:
    """`Attention` for bfloat16 and float32 on CPUs; head sizes are multiples of 8."""

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: AttentionStep, scale: float, window: int | None
    ) -> Tensor:
        T, H, h = q.shape
        N, P, K, _ = k_cache.shape
        S, max_blocks = step.block_tables.shape
        assert v_cache.shape == k_cache.shape
        assert (P, h % 8, H % K) == (BLOCK_SIZE, 0, 0)
        dtype = q.dtype
        out = torch.empty(T, H * h, dtype=dtype)
        _attend(
            elements_of(dtype), T, H, h, N, K, S, max_blocks,
            address_of(q, dtype), address_of(k_cache, dtype), address_of(v_cache, dtype),
            address_of(step.query_starts, torch.int32), address_of(step.context_lens, torch.int32),
            address_of(step.block_tables, torch.int32),
            scale, step.max_context if window is None else window, min(max(TILE * K // H, 1), step.max_query),
            address_of(out, dtype), 1 if T * step.max_context <= _ALONE else torch.get_num_threads(),
        )  # fmt: skip
        return out


class Tile(NamedTuple):
    """Queries token … token + num_queries - 1 of the step, the first at `position` in its row, and one KV head."""

    token: int
    num_queries: int
    position: int
    head: int


class Scratch(NamedTuple):
    """One thread's float32 matrices."""

    queries: Array
    """(M, h), scaled; row m is query m // G with head m % G of the group."""
    unpacked: Array
    """A stripe's keys (h, 64), and after the scores its values (64, padded h)."""
    scores: Array
    """(M, 64): scores, then probabilities."""
    out: Array
    """(M, padded h): the output so far, not yet divided by the sum."""
    sums: Array
    """(M, 16): sums of probabilities, by lane."""
    maxima: Array
    """(M,): the highest scores so far."""


@kernel
def _attend(
    elements: Array, T: int, H: int, h: int, N: int, K: int, S: int, max_blocks: int,
    q_at: int, k_cache_at: int, v_cache_at: int, query_starts_at: int, context_lens_at: int, block_tables_at: int,
    scale: float, window: int, tile_queries: int, out_at: int, num_threads: int,
) -> None:  # fmt: skip
    q, out = array_at(q_at, (T, H, h), elements), array_at(out_at, (T, H * h), elements)
    k_cache = array_at(k_cache_at, (N, BLOCK_SIZE, K, h), elements)
    v_cache = array_at(v_cache_at, (N, BLOCK_SIZE, K, h), elements)
    query_starts = array_at(query_starts_at, (S + 1,), _INDICES)
    context_lens = array_at(context_lens_at, (S,), _INDICES)
    block_tables = array_at(block_tables_at, (S, max_blocks), _INDICES)
    tiles = longest_first(query_starts, context_lens, tile_queries)
    arguments = (
        q, k_cache, v_cache, query_starts, context_lens, block_tables, np.float32(scale), window, tile_queries, out,
        tiles, np.zeros(1, np.int64),
    )  # fmt: skip
    run_in_team(_attend_tiles, arguments, np.int32(num_threads))


@inlined
def longest_first(
    query_starts: NDArray[np.int32], context_lens: NDArray[np.int32], tile_queries: int
) -> NDArray[np.int64]:
    """Cut the rows into tiles (row, first query in it), the most work first, lest one thread is left with it."""
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
            work[i] = (context_lens[s] - num_queries + last) * (last - first)
            i += 1
    return tiles[np.argsort(-work)]


@compiled
def _attend_tiles(
    q: Array, k_cache: Array, v_cache: Array,
    query_starts: NDArray[np.int32], context_lens: NDArray[np.int32], block_tables: NDArray[np.int32],
    scale: np.float32, window: int, tile_queries: int, out: Array, tiles: NDArray[np.int64], next_item: Counter,
) -> None:  # fmt: skip
    """Take tiles, one KV head at a time, until none is left."""
    H, h = q.shape[1:]
    K = k_cache.shape[2]
    scratch = allocate_scratch(round_up(tile_queries * H // K, ROWS), h, round_up(h, COLUMNS))
    item = fetch_add(next_item, 1)
    while item < len(tiles) * K:
        s, first = tiles[item // K]
        num_queries = query_starts[s + 1] - query_starts[s]
        count = min(tile_queries, num_queries - first)
        tile = Tile(query_starts[s] + first, count, context_lens[s] - num_queries + first, item % K)
        attend_tile(q, k_cache, v_cache, block_tables[s], tile, scale, window, out, scratch)
        item = fetch_add(next_item, 1)


@inlined
def allocate_scratch(M: int, h: int, padded_h: int) -> Scratch:
    return Scratch(
        aligned(M * h), aligned(STRIPE * padded_h), aligned(M * STRIPE), aligned(M * padded_h), aligned(M * WIDTH),
        aligned(M),
    )  # fmt: skip


@inlined
def attend_tile(
    q: Array, k_cache: Array, v_cache: Array, block_table: NDArray[np.int32],
    tile: Tile, scale: np.float32, window: int, out: Array, scratch: Scratch,
) -> None:  # fmt: skip
    H, h = q.shape[1:]
    G, padded_h = H // k_cache.shape[2], round_up(h, COLUMNS)
    M = tile.num_queries * G
    _read_queries(q, tile, G, scale, scratch)
    scratch.out[:], scratch.sums[:], scratch.maxima[:] = 0, 0, _LOWEST
    end = tile.position + tile.num_queries
    first_key = max(0, tile.position - window + 1)
    for stripe in range(first_key // STRIPE * STRIPE, end, STRIPE):
        begin, num_keys = max(first_key - stripe, 0), min(end - stripe, STRIPE)
        prefetch_stripe(v_cache, block_table, stripe, num_keys, tile.head)
        prefetch_stripe(k_cache, block_table, stripe + STRIPE, min(end - stripe - STRIPE, STRIPE), tile.head)
        unpack_keys(k_cache, block_table, stripe, num_keys, tile.head, scratch.unpacked)
        multiply_matrices(
            scratch.queries, h, scratch.unpacked, STRIPE, scratch.scores, STRIPE, M, num_keys, 0, h, False
        )
        for m in range(M):
            last = tile.position + m // G - stripe
            _softmax_row(scratch, m, max(last - window + 1, 0), last + 1, round_up(num_keys, WIDTH), padded_h)
        unpack_values(v_cache, block_table, stripe, begin, num_keys, tile.head, scratch.unpacked, padded_h)
        multiply_matrices(
            scratch.scores,
            STRIPE,
            scratch.unpacked,
            padded_h,
            scratch.out,
            padded_h,
            M,
            padded_h,
            begin,
            num_keys,
            True,
        )
    _write_out(scratch, tile, G, padded_h, q, out)


@inlined
def _read_queries(q: Array, tile: Tile, G: int, scale: np.float32, scratch: Scratch) -> None:
    H, h = q.shape[1:]
    M = tile.num_queries * G
    scratch.queries[M * h :] = 0
    for m in range(M):
        start = ((tile.token + m // G) * H + tile.head * G + m % G) * h
        for d in range(0, h, WIDTH):
            store_upto(scratch.queries, m * h + d, multiply(load_upto(q, start + d, h - d), splat(scale)), h - d)


@inlined
def _softmax_row(scratch: Scratch, m: int, begin: int, end: int, num_keys: int, padded_h: int) -> None:
    """Turn row m's scores into probabilities relative to the running maximum; it sees keys begin … end - 1 alone."""
    row = m * STRIPE
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
def _write_out(scratch: Scratch, tile: Tile, G: int, padded_h: int, q: Array, out: Array) -> None:
    H, h = q.shape[1:]
    for m in range(tile.num_queries * G):
        share = splat(np.float32(1) / sum_lanes(load(scratch.sums, m * WIDTH)))
        start = ((tile.token + m // G) * H + tile.head * G + m % G) * h
        for d in range(0, h, WIDTH):
            store_upto(out, start + d, multiply(load(scratch.out, m * padded_h + d), share), h - d)
