"""All layers of a decoder as one kernel for CPUs: embedded tokens in, logits out, the threads together all the while.

Between two products of a small model there is little to do, and a call from Python for each would take as long as the
arithmetic. Here the threads of torch's team go through the phases of a step together: each takes the next items of a
phase, and begins the next phase when all items of the last are done. Matrix products are those of
model/cpu/block_products.py, so what they read is quantised where it is made. All else is in float32.

A row's result is computed in one order of operations, whatever its neighbours, so it has the same bits in every batch.
Knows no weights and no requests; addresses come from model/cpu/layer_tables.py's tables.

T tokens in the step, S rows of logits, D hidden, F MLP, H query heads, K KV heads, h head size, V vocabulary.
"""

import numpy as np
from numpy.typing import NDArray

from model.cpu.addresses import array_at
from model.cpu.amx import configure_tiles, release_tiles
from model.cpu.attention import Scratch, Tile, allocate_scratch, attend_tile, longest_first
from model.cpu.block_tiles import BlockRows
from model.cpu.jit import compiled, inlined, kernel
from model.cpu.layer_memory import (
    BLOCK,
    FLOATS,
    INTEGERS,
    LINE,
    Buffers,
    Dims,
    Own,
    Step,
    claim,
    divide_memory,
    finish,
    floats_at,
    new_counters,
    own_bytes,
    quantise_row,
    wait_for_all,
)
from model.cpu.layer_products import Ahead, gate_phase, product_phase, rank_phase, rank_rows, ranks_ahead, rows_per_item
from model.cpu.layer_tables import (
    ATTENTION_NORM,
    ATTENTION_OUT_NORM,
    DOWN,
    GATE,
    IS_LOCAL,
    K_NORM,
    KEY_CACHE,
    MLP_NORM,
    MLP_OUT_NORM,
    OUTPUT,
    Q_NORM,
    QUERIES,
    VALUE_CACHE,
    WINDOW,
)
from model.cpu.matrices import COLUMNS, ROWS, round_up
from model.cpu.rotary import rope_store_row
from model.cpu.rows import add_to_residual, rms_scale
from model.cpu.simd import WIDTH, Array, load_upto, multiply, splat, store_upto
from model.cpu.team import fetch_add, run_in_team
from scheduler.batch import BLOCK_SIZE

PHASES_PER_LAYER, LAST_PHASES = 10, 3
_HALVES = np.empty(0, np.uint16)


@kernel
def run_layers(
    products: NDArray[np.int64], layers: NDArray[np.int64], T: int, buffers: Buffers, dims: Dims, step: Step,
    configuration: NDArray[np.uint8], num_threads: int,
) -> None:  # fmt: skip
    """Compute a step: write its keys and values to the caches, and its logits to `buffers.logits`.

    `configuration`: the tile registers', empty where the machine has no AMX.
    """
    counters = new_counters((len(layers) - 1) * PHASES_PER_LAYER + LAST_PHASES, num_threads)
    tiles = longest_first(step.query_starts, step.context_lens, step.tile_queries)
    arguments = (
        _integers(products), _integers(layers), T, buffers, dims, _without_owners(step), _integers(tiles), _HALVES,
        configuration.ctypes.data if configuration.size else 0, num_threads, _integers(counters),
    )  # fmt: skip
    run_in_team(_run_phases, arguments, np.int32(num_threads))
    counters[0, 0] = len(tiles)  # numba frees arrays after their last use, and the phases have but addresses


@inlined
def _integers(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same integers in an array that owns nothing; the caller keeps `array`."""
    view: NDArray[np.int64] = array_at(array.ctypes.data, array.shape, INTEGERS)
    return view


@inlined
def _without_owners(step: Step) -> Step:
    return Step(
        array_at(step.query_starts.ctypes.data, step.query_starts.shape, step.query_starts),
        array_at(step.context_lens.ctypes.data, step.context_lens.shape, step.context_lens),
        array_at(step.block_tables.ctypes.data, step.block_tables.shape, step.block_tables),
        _integers(step.slots),
        array_at(step.cos.ctypes.data, step.cos.shape, FLOATS),
        array_at(step.sin.ctypes.data, step.sin.shape, FLOATS),
        array_at(step.local_cos.ctypes.data, step.local_cos.shape, FLOATS),
        array_at(step.local_sin.ctypes.data, step.local_sin.shape, FLOATS),
        _integers(step.final_rows),
        step.num_logit_rows,
        step.tile_queries,
        step.max_context,
        step.num_blocks,
    )


@compiled
def _run_phases(
    products: NDArray[np.int64], layers: NDArray[np.int64], T: int, buffers: Buffers, dims: Dims, step: Step,
    tiles: NDArray[np.int64], cache: Array, configuration_at: int, num_threads: int, counters: NDArray[np.int64],
) -> None:  # fmt: skip
    """Go through all phases with the other threads of the team."""
    if configuration_at:
        configure_tiles(configuration_at)
    memory = np.empty(own_bytes(buffers, dims.D), np.uint8)
    address = round_up(memory.ctypes.data, LINE)
    number = fetch_add(counters[len(counters) - 1], 1)
    own = divide_memory(address, buffers, configuration_at != 0, number, num_threads)
    scratch = allocate_scratch(round_up(step.tile_queries * dims.H // dims.K, ROWS), dims.h, round_up(dims.h, COLUMNS))
    inner = buffers.inner
    attended = BlockRows(inner.codes, inner.scales, inner.sums, dims.H * dims.h // BLOCK)
    normed = BlockRows(inner.codes, inner.scales, inner.sums, dims.D // BLOCK)
    # Constants are types of their own to numba: each would have a phase compiled once more.
    one, two, three = int(np.int64(1)), int(np.int64(2)), int(np.int64(3))
    queries, output, gate, down = (
        int(np.int64(QUERIES)),
        int(np.int64(OUTPUT)),
        int(np.int64(GATE)),
        int(np.int64(DOWN)),
    )
    L = len(layers) - 1
    y_norm = int(np.int64(0))
    nothing = Ahead(y_norm, y_norm)
    for i in range(L):
        p, layer, phase = products[i], layers[i], i * PHASES_PER_LAYER
        _norm_phase(
            buffers, normed, T, i > 0, y_norm, layer[ATTENTION_NORM], dims, p, queries, three, counters, phase, own
        )
        ahead = ranks_ahead(p, output, one, attended.num_blocks)
        product_phase(p, queries, three, normed, T, buffers, buffers.qkv, ahead, counters, phase + 1, own)
        _rope_phase(layer, T, buffers, dims, step, cache, counters, phase + 2, own)
        _attention_phase(layer, T, buffers, dims, step, tiles, cache, scratch, counters, phase + 3, own)
        _quantise_phase(attended, T, buffers, p, output, counters, phase + 4, own)
        ahead = ranks_ahead(p, gate, two, normed.num_blocks)
        product_phase(p, output, one, attended, T, buffers, buffers.y, ahead, counters, phase + 5, own)
        _norm_phase(
            buffers, normed, T, i >= 0, layer[ATTENTION_OUT_NORM], layer[MLP_NORM], dims, p, gate, two, counters,
            phase + 6, own,
        )  # fmt: skip
        ahead = ranks_ahead(p, down, one, buffers.gated.num_blocks)
        gate_phase(p, normed, T, buffers, dims.is_gelu, ahead, counters, phase + 7, own)
        rank_phase(p, down, buffers.gated, T, buffers, counters, phase + 8, own)
        ahead = ranks_ahead(products[i + 1], queries, three if i + 1 < L else one, normed.num_blocks)
        product_phase(p, down, one, buffers.gated, T, buffers, buffers.y, ahead, counters, phase + 9, own)
        y_norm = layer[MLP_OUT_NORM]
    S, phase = step.num_logit_rows, L * PHASES_PER_LAYER
    if len(step.final_rows):
        weight = layers[L, ATTENTION_NORM]
        _final_norm_phase(buffers, normed, T, step.final_rows, y_norm, weight, dims, counters, phase, own)
    if S:
        rank_phase(products[L], queries, normed, S, buffers, counters, phase + 1, own)
        product_phase(products[L], queries, one, normed, S, buffers, buffers.logits, nothing, counters, phase + 2, own)
    if configuration_at:
        release_tiles()
    memory[0] = 0  # in use so far


@compiled
def _norm_phase(
    buffers: Buffers, rows: BlockRows, T: int, has_y: bool, y_norm: int, weight: int, dims: Dims,
    products: NDArray[np.int64], first: int, count: int, counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    """residual += y, or its norm; then the norm of the sum, quantised, and A x for the modules that read it."""
    D = dims.D
    norm, y_weight = floats_at(weight, D), floats_at(y_norm, D if y_norm else 0)
    residual, y, row = floats_at(buffers.residual, T * D), floats_at(buffers.y, T * D), floats_at(own.row, D)
    at_once = rows_per_item(T, own)
    num_items = (T + at_once - 1) // at_once
    item = claim(counters, phase, num_items, own)
    while item >= 0:
        start, end = item * at_once, min(T, (item + 1) * at_once)
        for t in range(start, end):
            if has_y:
                add_to_residual(residual, y, y_weight, t * D, D, dims.eps)
            _norm_row(residual, t * D, norm, D, dims.eps, row, 0)
            quantise_row(own.row, rows, t)
        rank_rows(products, first, count, rows, start, end - start, T, buffers, own)
        finish(counters, phase, own)
        item = claim(counters, phase, num_items, own)
    wait_for_all(counters, phase, num_items, own)


@inlined
def _norm_row(x: Array, start: int, weight: Array, D: int, eps: np.float32, out: Array, at: int) -> None:
    scale = splat(rms_scale(x, start, D, eps))
    for d in range(0, D, WIDTH):
        value = multiply(multiply(load_upto(x, start + d, D - d), scale), load_upto(weight, d, D - d))
        store_upto(out, at + d, value, D - d)


@compiled
def _final_norm_phase(
    buffers: Buffers, rows: BlockRows, T: int, final_rows: NDArray[np.int64], y_norm: int, weight: int, dims: Dims,
    counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    D, count = dims.D, len(final_rows)
    norm, y_weight = floats_at(weight, D), floats_at(y_norm, D if y_norm else 0)
    residual, y, final = (
        floats_at(buffers.residual, T * D), floats_at(buffers.y, T * D), floats_at(buffers.final, count * D)
    )  # fmt: skip
    item = claim(counters, phase, count, own)
    while item >= 0:
        t = final_rows[item]
        add_to_residual(residual, y, y_weight, t * D, D, dims.eps)
        _norm_row(residual, t * D, norm, D, dims.eps, final, item * D)
        quantise_row(buffers.final + item * D * 4, rows, item)
        finish(counters, phase, own)
        item = claim(counters, phase, count, own)
    wait_for_all(counters, phase, count, own)


@compiled
def _rope_phase(
    layer: NDArray[np.int64], T: int, buffers: Buffers, dims: Dims, step: Step, cache: Array,
    counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    """Rotate queries and keys, and write keys and values to the caches."""
    H, K, h = dims.H, dims.K, dims.h
    q_norm = floats_at(layer[Q_NORM], h if layer[Q_NORM] else 0)
    k_norm = floats_at(layer[K_NORM], h if layer[K_NORM] else 0)
    cos, sin = (step.local_cos, step.local_sin) if layer[IS_LOCAL] else (step.cos, step.sin)
    shape = (step.num_blocks, BLOCK_SIZE, K, h)
    keys, values = array_at(layer[KEY_CACHE], shape, cache), array_at(layer[VALUE_CACHE], shape, cache)
    qkv, q = floats_at(buffers.qkv, T * (H + 2 * K) * h), floats_at(buffers.q, T * H * h)
    at_once = rows_per_item(T, own)
    num_items = (T + at_once - 1) // at_once
    item = claim(counters, phase, num_items, own)
    while item >= 0:
        for t in range(item * at_once, min(T, (item + 1) * at_once)):
            rope_store_row(qkv, cos, sin, t, q_norm, k_norm, dims.eps, keys, values, step.slots[t], q, H, K, h)
        finish(counters, phase, own)
        item = claim(counters, phase, num_items, own)
    wait_for_all(counters, phase, num_items, own)


@compiled
def _attention_phase(
    layer: NDArray[np.int64], T: int, buffers: Buffers, dims: Dims, step: Step, tiles: NDArray[np.int64],
    cache: Array, scratch: Scratch, counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    H, K, h = dims.H, dims.K, dims.h
    shape = (step.num_blocks, BLOCK_SIZE, K, h)
    keys, values = array_at(layer[KEY_CACHE], shape, cache), array_at(layer[VALUE_CACHE], shape, cache)
    q, attended = array_at(buffers.q, (T, H, h), FLOATS), array_at(buffers.attended, (T, H * h), FLOATS)
    window = layer[WINDOW] if layer[WINDOW] else step.max_context
    num_items = len(tiles) * K
    item = claim(counters, phase, num_items, own)
    while item >= 0:
        s, first = tiles[item // K]
        num_queries = step.query_starts[s + 1] - step.query_starts[s]
        count = min(step.tile_queries, num_queries - first)
        tile = Tile(step.query_starts[s] + first, count, step.context_lens[s] - num_queries + first, item % K)
        attend_tile(q, keys, values, step.block_tables[s], tile, dims.attention_scale, window, attended, scratch)
        finish(counters, phase, own)
        item = claim(counters, phase, num_items, own)
    wait_for_all(counters, phase, num_items, own)


@compiled
def _quantise_phase(
    rows: BlockRows, T: int, buffers: Buffers, products: NDArray[np.int64], part: int,
    counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    """Quantise what attention gave, and A x of the module that reads it."""
    at_once = rows_per_item(T, own)
    num_items = (T + at_once - 1) // at_once
    item = claim(counters, phase, num_items, own)
    while item >= 0:
        start, end = item * at_once, min(T, (item + 1) * at_once)
        for t in range(start, end):
            quantise_row(buffers.attended + t * rows.num_blocks * BLOCK * 4, rows, t)
        rank_rows(products, part, 1, rows, start, end - start, T, buffers, own)
        finish(counters, phase, own)
        item = claim(counters, phase, num_items, own)
    wait_for_all(counters, phase, num_items, own)
