"""The matrix products of all layers' kernel, phase by phase, each under the adapter list of the step.

A thread takes some tiles of 16 outputs at a time, and all rows, or 128 of them, with each. What a list changes is added
while the tile's sums are in the cache.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.cpu.addresses import array_at
from model.cpu.block_products import ask_for
from model.cpu.block_rows import quantise_block
from model.cpu.block_tiles import BlockRows, multiply_tile, tile_bytes
from model.cpu.jit import compiled, inlined
from model.cpu.layer_memory import (
    BLOCK,
    INTEGERS,
    LINE,
    ROWS_AT_ONCE,
    Buffers,
    Own,
    claim,
    finish,
    floats_at,
    wait_for_all,
)
from model.cpu.layer_tables import (
    A_TILES,
    BIAS,
    BITS,
    GAIN,
    GATE,
    NUM_PRODUCT_FIELDS,
    OFFSET,
    OUTPUTS,
    UP,
    WEIGHT,
    A,
    B,
)
from model.cpu.matrices import round_up
from model.cpu.rank_products import RANK_ROW_BYTES, RankRows, multiply_ranks, rank_tile_bytes, store_ranks
from model.cpu.rows import activated
from model.cpu.simd import WIDTH, Array, add, load, multiply, store, store_upto

_TILES_AT_ONCE = 8
"""Tiles that a thread takes of a product at most."""
_ENOUGH_ROWS = 24
"""Of each thread, for items of sixteen rows; fewer make items of four, lest a thread waits for others."""
_SHARES = 4
"""Items that each thread should find at least."""


class Ahead(NamedTuple):
    """What the phase after this one will read, to be brought into the cache meanwhile."""

    address: int
    num_bytes: int


@inlined
def ranks_ahead(products: NDArray[np.int64], first: int, count: int, num_blocks: int) -> Ahead:
    """The A of modules first … first + count - 1, which read rows of so many blocks."""
    address, num_bytes = 0, 0
    for part in range(first, first + count):
        if products[part, A]:
            if not address:
                address = products[part, A]
            num_bytes += products[part, A_TILES] * tile_bytes(8, num_blocks)
    return Ahead(address, num_bytes)


@inlined
def _ask_for_share(ahead: Ahead, asked: int, share: int) -> int:
    """Ask for the next share of what comes, of which so much has been asked for; return how much has been then."""
    if asked < ahead.num_bytes:
        ask_for(ahead.address + asked, min(share, ahead.num_bytes - asked))
    return asked + share


@inlined
def _share(ahead: Ahead, num_tiles: int, own: Own) -> int:
    """What a thread asks for with each tile, in whole lines, so that all has been asked for at the end."""
    return round_up(ahead.num_bytes * own.num_threads // num_tiles + 1, LINE)


@inlined
def rank_rows(
    products: NDArray[np.int64], first: int, count: int, rows: BlockRows, start: int, num_rows: int, T: int,
    buffers: Buffers, own: Own,
) -> None:  # fmt: skip
    """A x of modules first … first + count - 1, which read the same rows, for up to 16 rows from `start` on."""
    for part in range(first, first + count):
        if products[part, A]:
            _rank_rows(products[part], rows, start, num_rows, _ranks_of(buffers, products, part, first, T), own)


@inlined
def rows_per_item(T: int, own: Own) -> int:
    """Return how many tokens make an item where each token is worked on by itself."""
    return 16 if _ENOUGH_ROWS * own.num_threads <= T else 4


@compiled
def rank_phase(
    products: NDArray[np.int64], part: int, rows: BlockRows, T: int, buffers: Buffers,
    counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    """A x of one module, whose rows were not made row by row."""
    if not products[part, A]:
        return
    at_once = rows_per_item(T, own)
    num_items = (T + at_once - 1) // at_once
    item = claim(counters, phase, num_items, own)
    while item >= 0:
        rank_rows(products, part, 1, rows, item * at_once, min(at_once, T - item * at_once), T, buffers, own)
        finish(counters, phase, own)
        item = claim(counters, phase, num_items, own)
    wait_for_all(counters, phase, num_items, own)


@inlined
def _rank_rows(
    product: NDArray[np.int64], rows: BlockRows, start: int, num_rows: int, ranks: RankRows, own: Own
) -> None:
    """A x of up to sixteen rows."""
    more = floats_at(own.more, 16 * WIDTH)
    for tile in range(product[A_TILES]):
        weight = product[A] + tile * tile_bytes(8, rows.num_blocks)
        multiply_tile(rows, start, num_rows, weight, 8, own.more, own.tile)
        for row in range(num_rows):
            store_ranks(ranks, start + row, tile, load(more, row * WIDTH))


@inlined
def _ranks_of(buffers: Buffers, products: NDArray[np.int64], part: int, first: int, T: int) -> RankRows:
    """The rows of A x of a module that is number part - first of those that read the same."""
    before = (part - first) * round_up(T, 16) * buffers.ranks.num_tiles
    return RankRows(buffers.ranks.address + before * RANK_ROW_BYTES, products[part, A_TILES])


@compiled
def _finished_tile(
    product_at: int, tile: int, rows: BlockRows, ranks: RankRows, first: int, count: int, out_at: int, own: Own
) -> None:  # fmt: skip
    """Write what a module gives under the adapter list in one tile: count times 16 float32."""
    product, out = array_at(product_at, (NUM_PRODUCT_FIELDS,), INTEGERS), floats_at(out_at, count * WIDTH)
    weight = product[WEIGHT] + tile * tile_bytes(product[BITS], rows.num_blocks)
    if product[B]:  # first, for what AMX stores takes a while to be there
        change = product[B] + tile * rank_tile_bytes(ranks.num_tiles)
        multiply_ranks(ranks, first, count, change, own.more, own.tile.has_amx)
    multiply_tile(rows, first, count, weight, product[BITS], out_at, own.tile)
    if product[BIAS]:
        _add_to_rows(out, count, product[BIAS] + tile * LINE)
    if product[GAIN]:
        gain = load(floats_at(product[GAIN] + tile * LINE, WIDTH), 0)
        for row in range(count):
            store(out, row * WIDTH, multiply(load(out, row * WIDTH), gain))
    if product[OFFSET]:
        _add_to_rows(out, count, product[OFFSET] + tile * LINE)
    if product[B]:
        more = floats_at(own.more, count * WIDTH)
        for row in range(count):
            store(out, row * WIDTH, add(load(out, row * WIDTH), load(more, row * WIDTH)))


@inlined
def _add_to_rows(out: Array, count: int, address: int) -> None:
    lanes = load(floats_at(address, WIDTH), 0)
    for row in range(count):
        store(out, row * WIDTH, add(load(out, row * WIDTH), lanes))


@inlined
def _address_of(products: NDArray[np.int64], part: int) -> int:
    return products.ctypes.data + part * NUM_PRODUCT_FIELDS * 8


@compiled
def product_phase(
    products: NDArray[np.int64], first_part: int, num_parts: int, rows: BlockRows, T: int, buffers: Buffers,
    out_at: int, ahead: Ahead, counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    """The products of modules that read the same rows, their outputs side by side: (T, sum of outputs) at `out_at`."""
    width, num_tiles = 0, 0
    for part in range(first_part, first_part + num_parts):
        width += products[part, OUTPUTS]
        num_tiles += (products[part, OUTPUTS] + WIDTH - 1) // WIDTH
    at_once = max(1, min(_TILES_AT_ONCE, num_tiles // (own.num_threads * _SHARES)))
    num_chunks = (num_tiles + at_once - 1) // at_once
    num_items = num_chunks * ((T + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE)
    out, sums = floats_at(out_at, T * width), floats_at(own.out, ROWS_AT_ONCE * WIDTH)
    asked, share = 0, _share(ahead, num_tiles, own)
    item = claim(counters, phase, num_items, own)
    while item >= 0:
        first = item // num_chunks * ROWS_AT_ONCE
        count = min(ROWS_AT_ONCE, T - first)
        chunk = item % num_chunks * at_once
        for number in range(chunk, min(chunk + at_once, num_tiles)):
            part, tile, column = first_part, number, 0
            while tile * WIDTH >= products[part, OUTPUTS]:
                tile -= (products[part, OUTPUTS] + WIDTH - 1) // WIDTH
                column += products[part, OUTPUTS]
                part += 1
            asked = _ask_for_share(ahead, asked, share)
            ranks = _ranks_of(buffers, products, part, first_part, T)
            _finished_tile(_address_of(products, part), tile, rows, ranks, first, count, own.out, own)
            left, start = products[part, OUTPUTS] - tile * WIDTH, first * width + column + tile * WIDTH
            for row in range(count):
                store_upto(out, start + row * width, load(sums, row * WIDTH), left)
        finish(counters, phase, own)
        item = claim(counters, phase, num_items, own)
    wait_for_all(counters, phase, num_items, own)


@compiled
def gate_phase(
    products: NDArray[np.int64], rows: BlockRows, T: int, buffers: Buffers, is_gelu: bool, ahead: Ahead,
    counters: NDArray[np.int64], phase: int, own: Own,
) -> None:  # fmt: skip
    """act(gate) · up, quantised: two tiles of each are one block of what `down` reads."""
    gated = buffers.gated
    num_items = gated.num_blocks * ((T + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE)
    part = int(np.int64(GATE))
    gate, up = _address_of(products, GATE), _address_of(products, UP)
    gate_ranks = _ranks_of(buffers, products, part, part, T)
    up_ranks = _ranks_of(buffers, products, part + 1, part, T)
    asked, share = 0, _share(ahead, gated.num_blocks, own)
    item = claim(counters, phase, num_items, own)
    while item >= 0:
        first = item // gated.num_blocks * ROWS_AT_ONCE
        block, count = item % gated.num_blocks, min(ROWS_AT_ONCE, T - first)
        asked = _ask_for_share(ahead, asked, share)
        for half in range(2):
            target = own.out + half * ROWS_AT_ONCE * LINE
            _finished_tile(gate, 2 * block + half, rows, gate_ranks, first, count, target, own)
        for half in range(2):
            target = own.out + (2 + half) * ROWS_AT_ONCE * LINE
            _finished_tile(up, 2 * block + half, rows, up_ranks, first, count, target, own)
        _gate_rows(gated, first, count, block, is_gelu, own)
        finish(counters, phase, own)
        item = claim(counters, phase, num_items, own)
    wait_for_all(counters, phase, num_items, own)


@inlined
def _gate_rows(gated: BlockRows, first: int, count: int, block: int, is_gelu: bool, own: Own) -> None:
    size = ROWS_AT_ONCE * WIDTH
    sums, values = floats_at(own.out, 4 * size), floats_at(own.row, BLOCK)
    for row in range(count):
        for half in range(2):
            at = half * size + row * WIDTH
            store(values, half * WIDTH, multiply(activated(load(sums, at), is_gelu), load(sums, 2 * size + at)))
        at = (first + row) * gated.num_blocks + block
        quantise_block(own.row, gated.codes + at * LINE, gated.scales + at * 4, gated.sums + at * 4)
