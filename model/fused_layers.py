"""All layers of a decoder as one kernel for CPUs: embedded tokens in, logits out, the threads together all the while.

Between two products of a small model there is little to do, and a call from Python for each would take as long as the
arithmetic. Here the threads of torch's team go through the phases of a step together: each takes the next items of a
phase, and begins the next phase when all items of the last are done. Matrix products are those of
model/block_products.py, so what they read is quantised where it is made. All else is in float32.

A row's result is computed in one order of operations, whatever its neighbours, so it has the same bits in every batch.
Knows no weights and no requests; addresses come from model/layer_tables.py's tables.

T tokens in the step, S rows of logits, D hidden, F MLP, H query heads, K KV heads, h head size, V vocabulary.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.addresses import array_at
from model.amx import configure_tiles, release_tiles
from model.attention_cpu import Scratch, Tile, allocate_scratch, attend_tile, longest_first
from model.block_rows import quantise_block
from model.block_tiles import BlockRows, TileScratch, multiply_tile, scratch_bytes, tile_bytes, tile_scratch
from model.jit import compiled, inlined, kernel
from model.layer_tables import (
    A,
    A_TILES,
    ATTENTION_NORM,
    ATTENTION_OUT_NORM,
    B,
    BIAS,
    BITS,
    DOWN,
    GAIN,
    GATE,
    HEAD,
    IS_LOCAL,
    K_NORM,
    KEY_CACHE,
    MLP_NORM,
    MLP_OUT_NORM,
    OFFSET,
    OUTPUT,
    OUTPUTS,
    Q_NORM,
    QUERIES,
    RANK_BLOCKS,
    UP,
    VALUE_CACHE,
    WEIGHT,
    WINDOW,
)
from model.matrices_cpu import COLUMNS, ROWS, round_up
from model.rotary_cpu import rotate_head
from model.rows_cpu import activated, add_to_residual, rms_scale
from model.simd import WIDTH, Array, add, load, load_upto, multiply, splat, store, store_upto
from model.team import fetch_add, run_in_team, wait_until
from scheduler.batch import BLOCK_SIZE

LINE = 64
_BLOCK = 32
_ROWS_AT_ONCE = 128
"""Rows that go through a tile of weights before the next one: their codes stay in the second-level cache."""
_TILES_AT_ONCE = 8
"""Tiles that a thread takes of a product at most: so much of the weights lies side by side."""
_NORM_ROWS = 4
PHASES_PER_LAYER = 13
LAST_PHASES = 3
_FLOATS = np.empty(0, np.float32)
_HALVES = np.empty(0, np.uint16)


class Dims(NamedTuple):
    """Sizes and constants of the model."""

    D: int
    F: int
    H: int
    K: int
    h: int
    eps: np.float32
    attention_scale: np.float32
    is_gelu: bool


class Buffers(NamedTuple):
    """What a step passes from phase to phase; rows are rounded up to whole sixteens. Addresses of blocks."""

    residual: Array  # (T, D) float32
    y: Array  # (T, D) float32: what is to be added to it
    qkv: Array  # (T, (H + 2K) · h) float32
    q: Array  # (T, H, h) float32
    attended: Array  # (T, H · h) float32
    inner: BlockRows
    """(T, D) or (T, H · h): what the products before and after attention read."""
    gated: BlockRows
    """(T, F): what `down` reads."""
    ranks: BlockRows
    """Three times (T, ranks), one after the other: A x of up to three modules."""
    final: Array  # (S, D) float32: what the head reads, before it is quantised
    logits: Array  # (S, V) float32


class Step(NamedTuple):
    """Where the tokens of the step stand: `AttentionStep`, and the rotary tables (T, h/2) of both kinds of layers."""

    query_starts: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    slots: NDArray[np.int64]
    cos: Array
    sin: Array
    local_cos: Array
    local_sin: Array
    logit_rows: NDArray[np.int64]
    tile_queries: int
    max_context: int
    num_blocks: int
    """Of the caches."""


class Own(NamedTuple):
    """One thread's memory."""

    tile: TileScratch
    out: Array
    """Four tiles of `_ROWS_AT_ONCE` rows, float32."""
    more: Array
    """One such tile: what adapters add."""
    row: Array
    """Some float32: a row of ranks, or a block."""
    num_threads: int


@inlined
def _claim(counters: NDArray[np.int64], phase: int) -> int:
    return fetch_add(counters[2 * phase], 1)


@inlined
def _finish(counters: NDArray[np.int64], phase: int) -> None:
    fetch_add(counters[2 * phase + 1], 1)


@inlined
def _wait(counters: NDArray[np.int64], phase: int, num_items: int) -> None:
    wait_until(counters[2 * phase + 1], num_items)


@inlined
def _floats_at(address: int, count: int) -> Array:
    return array_at(address, (count,), _FLOATS)


@inlined
def _rows_from(rows: BlockRows, first: int) -> BlockRows:
    scalars = 4 * first * rows.num_blocks
    return BlockRows(
        rows.codes + first * rows.num_blocks * LINE, rows.scales + scalars, rows.sums + scalars, rows.num_blocks
    )


@inlined
def _quantise(source: int, rows: BlockRows, row: int) -> None:
    """Quantise a row of float32 at an address."""
    first = row * rows.num_blocks
    for b in range(rows.num_blocks):
        at = first + b
        quantise_block(source + b * _BLOCK * 4, rows.codes + at * LINE, rows.scales + at * 4, rows.sums + at * 4)


@compiled
def _norm_phase(
    buffers: Buffers, rows: BlockRows, T: int, has_y: bool, y_norm: int, weight: int, dims: Dims,
    counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    """residual += y, or its norm; then the norm of the sum, quantised."""
    D = dims.D
    norm, y_weight = _floats_at(weight, D), _floats_at(y_norm, D if y_norm else 0)
    num_items = (T + _NORM_ROWS - 1) // _NORM_ROWS
    item = _claim(counters, phase)
    while item < num_items:
        for t in range(item * _NORM_ROWS, min(T, (item + 1) * _NORM_ROWS)):
            if has_y:
                add_to_residual(buffers.residual, buffers.y, y_weight, t * D, D, dims.eps)
            _norm_row(buffers.residual, t * D, norm, D, dims.eps, own.row, 0)
            _quantise(own.row.ctypes.data, rows, t)
        _finish(counters, phase)
        item = _claim(counters, phase)
    _wait(counters, phase, num_items)


@inlined
def _norm_row(x: Array, start: int, weight: Array, D: int, eps: np.float32, out: Array, at: int) -> None:
    scale = splat(rms_scale(x, start, D, eps))
    for d in range(0, D, WIDTH):
        value = multiply(multiply(load_upto(x, start + d, D - d), scale), load_upto(weight, d, D - d))
        store_upto(out, at + d, value, D - d)


@compiled
def _final_norm_phase(
    buffers: Buffers, rows: BlockRows, logit_rows: NDArray[np.int64], y_norm: int, weight: int, dims: Dims,
    counters: NDArray[np.int64], phase: int,
) -> None:  # fmt: skip
    D, S = dims.D, len(logit_rows)
    norm, y_weight = _floats_at(weight, D), _floats_at(y_norm, D if y_norm else 0)
    item = _claim(counters, phase)
    while item < S:
        t = logit_rows[item]
        add_to_residual(buffers.residual, buffers.y, y_weight, t * D, D, dims.eps)
        _norm_row(buffers.residual, t * D, norm, D, dims.eps, buffers.final, item * D)
        _quantise(buffers.final.ctypes.data + item * D * 4, rows, item)
        _finish(counters, phase)
        item = _claim(counters, phase)
    _wait(counters, phase, S)


@compiled
def _rank_phase(
    products: NDArray[np.int64], first: int, count: int, rows: BlockRows, T: int, buffers: Buffers,
    counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    """A x of modules first … first + count - 1 that read the same rows, quantised."""
    sixteens = (T + 15) // 16
    has_any = False
    for part in range(first, first + count):
        has_any |= products[part, A] != 0
    if not has_any:
        return
    item = _claim(counters, phase)
    while item < count * sixteens:
        part, start = first + item // sixteens, item % sixteens * 16
        if products[part, A]:
            num_rows = min(16, T - start)
            ranks = _ranks_of(buffers, products, part, first, T)
            size = ranks.num_blocks * _BLOCK
            own.row[: 16 * size] = 0
            for tile in range(products[part, A_TILES]):
                weight = products[part, A] + tile * tile_bytes(8, rows.num_blocks)
                multiply_tile(rows, start, num_rows, weight, 8, own.more.ctypes.data, own.tile)
                for row in range(num_rows):
                    store(own.row, row * size + tile * WIDTH, load(own.more, row * WIDTH))
            for row in range(num_rows):
                _quantise(own.row.ctypes.data + row * size * 4, ranks, start + row)
        _finish(counters, phase)
        item = _claim(counters, phase)
    _wait(counters, phase, count * sixteens)


@inlined
def _ranks_of(buffers: Buffers, products: NDArray[np.int64], part: int, first: int, T: int) -> BlockRows:
    ranks, num_blocks = buffers.ranks, products[part, RANK_BLOCKS]
    before = (part - first) * round_up(T, 16) * ranks.num_blocks
    return BlockRows(ranks.codes + before * LINE, ranks.scales + before * 4, ranks.sums + before * 4, num_blocks)


@compiled
def _finished_tile(
    products: NDArray[np.int64], part: int, first_part: int, tile: int, rows: BlockRows, first: int, count: int, T: int,
    buffers: Buffers, out: Array, own: Own,
) -> None:  # fmt: skip
    """Write what a module gives under the adapter list in one tile: count times 16 float32."""
    bits = products[part, BITS]
    weight = products[part, WEIGHT] + tile * tile_bytes(bits, rows.num_blocks)
    multiply_tile(rows, first, count, weight, bits, out.ctypes.data, own.tile)
    if products[part, BIAS]:
        bias = load(_floats_at(products[part, BIAS], (tile + 1) * WIDTH), tile * WIDTH)
        for row in range(count):
            store(out, row * WIDTH, add(load(out, row * WIDTH), bias))
    if products[part, GAIN]:
        gain = load(_floats_at(products[part, GAIN], (tile + 1) * WIDTH), tile * WIDTH)
        for row in range(count):
            store(out, row * WIDTH, multiply(load(out, row * WIDTH), gain))
    if products[part, OFFSET]:
        offset = load(_floats_at(products[part, OFFSET], (tile + 1) * WIDTH), tile * WIDTH)
        for row in range(count):
            store(out, row * WIDTH, add(load(out, row * WIDTH), offset))
    if products[part, B]:
        ranks = _ranks_of(buffers, products, part, first_part, T)
        weight = products[part, B] + tile * tile_bytes(8, ranks.num_blocks)
        multiply_tile(ranks, first, count, weight, 8, own.more.ctypes.data, own.tile)
        for row in range(count):
            store(out, row * WIDTH, add(load(out, row * WIDTH), load(own.more, row * WIDTH)))


@compiled
def _product_phase(
    products: NDArray[np.int64], first_part: int, num_parts: int, rows: BlockRows, T: int, buffers: Buffers,
    out: Array, counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    """The products of modules that read the same rows, their outputs side by side in out (T, sum of outputs)."""
    width, num_tiles = 0, 0
    for part in range(first_part, first_part + num_parts):
        width += products[part, OUTPUTS]
        num_tiles += (products[part, OUTPUTS] + WIDTH - 1) // WIDTH
    at_once = max(1, min(_TILES_AT_ONCE, num_tiles // (own.num_threads * 4)))
    num_chunks = (num_tiles + at_once - 1) // at_once
    num_items = num_chunks * ((T + _ROWS_AT_ONCE - 1) // _ROWS_AT_ONCE)
    item = _claim(counters, phase)
    while item < num_items:
        first = item // num_chunks * _ROWS_AT_ONCE
        count = min(_ROWS_AT_ONCE, T - first)
        chunk = item % num_chunks * at_once
        for number in range(chunk, min(chunk + at_once, num_tiles)):
            part, tile, column = first_part, number, 0
            while tile * WIDTH >= products[part, OUTPUTS]:
                tile -= (products[part, OUTPUTS] + WIDTH - 1) // WIDTH
                column += products[part, OUTPUTS]
                part += 1
            _finished_tile(products, part, first_part, tile, rows, first, count, T, buffers, own.out, own)
            left = products[part, OUTPUTS] - tile * WIDTH
            start = first * width + column + tile * WIDTH
            for row in range(count):
                store_upto(out, start + row * width, load(own.out, row * WIDTH), left)
        _finish(counters, phase)
        item = _claim(counters, phase)
    _wait(counters, phase, num_items)


@compiled
def _gate_phase(
    products: NDArray[np.int64], rows: BlockRows, T: int, buffers: Buffers, is_gelu: bool,
    counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    """act(gate) · up, quantised: two tiles of each are one block of what `down` reads."""
    gated = buffers.gated
    size = _ROWS_AT_ONCE * WIDTH
    num_items = gated.num_blocks * ((T + _ROWS_AT_ONCE - 1) // _ROWS_AT_ONCE)
    item = _claim(counters, phase)
    while item < num_items:
        first = item // gated.num_blocks * _ROWS_AT_ONCE
        block, count = item % gated.num_blocks, min(_ROWS_AT_ONCE, T - first)
        for half in range(2):
            tile = 2 * block + half
            gate, up = own.out[half * size :], own.out[(2 + half) * size :]
            _finished_tile(products, GATE, GATE, tile, rows, first, count, T, buffers, gate, own)
            _finished_tile(products, UP, GATE, tile, rows, first, count, T, buffers, up, own)
        for row in range(count):
            for half in range(2):
                at = half * size + row * WIDTH
                value = multiply(activated(load(own.out, at), is_gelu), load(own.out, 2 * size + at))
                store(own.row, half * WIDTH, value)
            at = (first + row) * gated.num_blocks + block
            quantise_block(own.row.ctypes.data, gated.codes + at * LINE, gated.scales + at * 4, gated.sums + at * 4)
        _finish(counters, phase)
        item = _claim(counters, phase)
    _wait(counters, phase, num_items)


@compiled
def _rope_phase(
    layer: NDArray[np.int64], T: int, buffers: Buffers, dims: Dims, step: Step, cache: Array,
    counters: NDArray[np.int64], phase: int,
) -> None:  # fmt: skip
    H, K, h = dims.H, dims.K, dims.h
    q_norm, k_norm = _floats_at(layer[Q_NORM], h if layer[Q_NORM] else 0), _floats_at(layer[K_NORM], h if layer[K_NORM] else 0)
    cos, sin = (step.local_cos, step.local_sin) if layer[IS_LOCAL] else (step.cos, step.sin)
    shape = (step.num_blocks, BLOCK_SIZE, K, h)
    keys, values = array_at(layer[KEY_CACHE], shape, cache), array_at(layer[VALUE_CACHE], shape, cache)
    qkv, q = buffers.qkv, buffers.q
    num_items = (T + _NORM_ROWS - 1) // _NORM_ROWS
    item = _claim(counters, phase)
    while item < num_items:
        for t in range(item * _NORM_ROWS, min(T, (item + 1) * _NORM_ROWS)):
            row, page = t * (H + 2 * K) * h, step.slots[t] * K * h
            for i in range(H):
                rotate_head(qkv, row + i * h, cos, sin, t, q_norm, dims.eps, q, (t * H + i) * h, h)
            for i in range(K):
                rotate_head(qkv, row + (H + i) * h, cos, sin, t, k_norm, dims.eps, keys, page + i * h, h)
            for d in range(0, K * h, WIDTH):
                store_upto(values, page + d, load_upto(qkv, row + (H + K) * h + d, K * h - d), K * h - d)
        _finish(counters, phase)
        item = _claim(counters, phase)
    _wait(counters, phase, num_items)


@compiled
def _attention_phase(
    layer: NDArray[np.int64], buffers: Buffers, dims: Dims, step: Step, tiles: NDArray[np.int64], cache: Array,
    scratch: Scratch,
    counters: NDArray[np.int64], phase: int,
) -> None:  # fmt: skip
    K = dims.K
    shape = (step.num_blocks, BLOCK_SIZE, K, dims.h)
    keys, values = array_at(layer[KEY_CACHE], shape, cache), array_at(layer[VALUE_CACHE], shape, cache)
    window = layer[WINDOW] if layer[WINDOW] else step.max_context
    num_items = len(tiles) * K
    item = _claim(counters, phase)
    while item < num_items:
        s, first = tiles[item // K]
        num_queries = step.query_starts[s + 1] - step.query_starts[s]
        count = min(step.tile_queries, num_queries - first)
        tile = Tile(step.query_starts[s] + first, count, step.context_lens[s] - num_queries + first, item % K)
        attend_tile(
            buffers.q, keys, values, step.block_tables[s], tile, dims.attention_scale, window, buffers.attended, scratch
        )
        _finish(counters, phase)
        item = _claim(counters, phase)
    _wait(counters, phase, num_items)


@compiled
def _quantise_phase(
    source: Array, rows: BlockRows, T: int, counters: NDArray[np.int64], phase: int
) -> None:
    num_items = (T + _NORM_ROWS - 1) // _NORM_ROWS
    item = _claim(counters, phase)
    while item < num_items:
        for t in range(item * _NORM_ROWS, min(T, (item + 1) * _NORM_ROWS)):
            _quantise(source.ctypes.data + t * rows.num_blocks * _BLOCK * 4, rows, t)
        _finish(counters, phase)
        item = _claim(counters, phase)
    _wait(counters, phase, num_items)


@compiled
def _run_phases(
    products: NDArray[np.int64], layers: NDArray[np.int64], T: int, buffers: Buffers, dims: Dims, step: Step,
    tiles: NDArray[np.int64], cache: Array, configuration: NDArray[np.uint8], num_threads: int,
    counters: NDArray[np.int64],
) -> None:  # fmt: skip
    """Go through all phases with the other threads of the team."""
    has_amx = configuration.size > 0
    if has_amx:
        configure_tiles(configuration.ctypes.data)
    own = _own_memory(buffers, has_amx, num_threads)
    scratch = allocate_scratch(round_up(step.tile_queries * dims.H // dims.K, ROWS), dims.h, round_up(dims.h, COLUMNS))
    inner = buffers.inner
    attended = BlockRows(inner.codes, inner.scales, inner.sums, dims.H * dims.h // _BLOCK)
    normed = BlockRows(inner.codes, inner.scales, inner.sums, dims.D // _BLOCK)
    L = len(layers) - 1
    y_norm = 0
    for l in range(L):
        p, layer, phase = products[l], layers[l], l * PHASES_PER_LAYER
        _norm_phase(buffers, normed, T, l > 0, y_norm, layer[ATTENTION_NORM], dims, counters, phase, own)
        _rank_phase(p, QUERIES, 3, normed, T, buffers, counters, phase + 1, own)
        _product_phase(p, QUERIES, 3, normed, T, buffers, buffers.qkv, counters, phase + 2, own)
        _rope_phase(layer, T, buffers, dims, step, cache, counters, phase + 3)
        _attention_phase(layer, buffers, dims, step, tiles, cache, scratch, counters, phase + 4)
        _quantise_phase(buffers.attended, attended, T, counters, phase + 5)
        _rank_phase(p, OUTPUT, 1, attended, T, buffers, counters, phase + 6, own)
        _product_phase(p, OUTPUT, 1, attended, T, buffers, buffers.y, counters, phase + 7, own)
        _norm_phase(buffers, normed, T, True, layer[ATTENTION_OUT_NORM], layer[MLP_NORM], dims, counters, phase + 8, own)
        _rank_phase(p, GATE, 2, normed, T, buffers, counters, phase + 9, own)
        _gate_phase(p, normed, T, buffers, dims.is_gelu, counters, phase + 10, own)
        _rank_phase(p, DOWN, 1, buffers.gated, T, buffers, counters, phase + 11, own)
        _product_phase(p, DOWN, 1, buffers.gated, T, buffers, buffers.y, counters, phase + 12, own)
        y_norm = layer[MLP_OUT_NORM]
    S, phase = len(step.logit_rows), L * PHASES_PER_LAYER
    if S:
        _final_norm_phase(buffers, normed, step.logit_rows, y_norm, layers[L, ATTENTION_NORM], dims, counters, phase)
        _rank_phase(products[L], HEAD, 1, normed, S, buffers, counters, phase + 1, own)
        _product_phase(products[L], HEAD, 1, normed, S, buffers, buffers.logits, counters, phase + 2, own)
    if has_amx:
        release_tiles()


@inlined
def _own_memory(buffers: Buffers, has_amx: bool, num_threads: int) -> Own:
    num_blocks = max(buffers.inner.num_blocks, buffers.gated.num_blocks)
    size = _ROWS_AT_ONCE * WIDTH
    row_size = max(buffers.y.shape[1], 16 * _BLOCK * max(1, buffers.ranks.num_blocks))
    num_bytes = scratch_bytes(num_blocks) + 4 * (5 * size + row_size) + LINE
    memory = np.empty(num_bytes, np.uint8)
    start = -memory.ctypes.data % LINE
    floats = memory[start + scratch_bytes(num_blocks) : start + num_bytes - LINE].view(np.float32)
    tile = tile_scratch(memory.ctypes.data + start, has_amx)
    return Own(tile, floats[: 4 * size], floats[4 * size : 5 * size], floats[5 * size :], num_threads)


@kernel
def run_layers(
    products: NDArray[np.int64], layers: NDArray[np.int64], T: int, buffers: Buffers, dims: Dims, step: Step,
    configuration: NDArray[np.uint8], num_threads: int,
) -> None:  # fmt: skip
    """Compute a step: write its keys and values to the caches, and its logits to `buffers.logits`."""
    counters = np.zeros((2 * ((len(layers) - 1) * PHASES_PER_LAYER + LAST_PHASES), 8), np.int64)
    tiles = longest_first(step.query_starts, step.context_lens, step.tile_queries)
    arguments = (products, layers, T, buffers, dims, step, tiles, _HALVES, configuration, num_threads, counters)
    run_in_team(_run_phases, arguments, np.int32(num_threads))

