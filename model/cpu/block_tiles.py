"""One tile of 16 outputs with any rows: which instructions take them. For the kernels on CPUs; knows no model.

Few rows go through VNNI one to four at a time, many through AMX by sixteens where the machine has it; that changes no
bit (model/cpu/block_products.py).
"""

from typing import NamedTuple

import numpy as np

from model.cpu.addresses import array_at
from model.cpu.block_products import (
    FEW_ROWS,
    LINE,
    TILE_ROWS,
    TileProduct,
    block_bytes,
    rows_1,
    rows_2,
    rows_4,
    rows_16,
    unpack_4,
)
from model.cpu.jit import compiled, inlined
from model.cpu.simd import WIDTH, splat, store

_FLOATS = np.empty(0, np.float32)
_BYTES_OF_4, _BYTES_OF_8 = block_bytes(4), block_bytes(8)
_PANEL_BYTES = 16 * LINE
"""Of a block of 4 bits, unpacked for AMX."""
_SUM_BYTES = 4 * TILE_ROWS * LINE


class BlockRows(NamedTuple):
    """Addresses of rows in blocks, as `quantise_block` leaves them; whole sixteens of rows can be read."""

    codes: int
    scales: int
    sums: int
    num_blocks: int
    """Of a row."""


class TileScratch(NamedTuple):
    """What one thread needs beside its results."""

    panel: int
    sums: int
    has_amx: bool


@inlined
def scratch_bytes(num_blocks: int) -> int:
    """Return the bytes that `tile_scratch` divides up, for rows of so many blocks."""
    return _SUM_BYTES + num_blocks * _PANEL_BYTES


@inlined
def tile_scratch(address: int, has_amx: bool) -> TileScratch:
    """Divide up memory that begins on a cache line."""
    return TileScratch(address + _SUM_BYTES, address, has_amx)


@inlined
def tile_bytes(bits: int, num_blocks: int) -> int:
    """Return the bytes of a tile of weights."""
    return (_BYTES_OF_4 if bits == 4 else _BYTES_OF_8) * num_blocks


@inlined
def multiply_tile(
    rows: BlockRows, first: int, count: int, weight: int, bits: int, out: int, scratch: TileScratch
) -> None:
    """Write what a tile at `weight` gives for rows first … first + count - 1: 16 float32 each, from `out` on.

    There must be room for whole sixteens of rows in `out`.
    """
    sums = array_at(out, (count * WIDTH,), _FLOATS)
    for row in range(count):
        store(sums, row * WIDTH, splat(np.float32(0)))
    add_tile(rows, first, count, weight, bits, out, scratch)


@compiled
def add_tile(rows: BlockRows, first: int, count: int, weight: int, bits: int, out: int, scratch: TileScratch) -> None:
    """Add the same to what is there already."""
    stride, scalar_stride = rows.num_blocks * LINE, rows.num_blocks * 4
    by_sixteens = scratch.has_amx and count > FEW_ROWS
    if by_sixteens and bits == 4:
        unpack_4(weight, rows.num_blocks, scratch.panel)
    row = 0
    while row < count:
        left, scalars = count - row, (first + row) * scalar_stride
        product = TileProduct(
            rows.codes + (first + row) * stride, rows.scales + scalars, rows.sums + scalars, stride, scalar_stride,
            weight, rows.num_blocks, out + row * LINE, scratch.panel, scratch.sums,
        )  # fmt: skip
        if by_sixteens and left > FEW_ROWS:
            rows_16(bits, product)
            row += TILE_ROWS
        elif left >= 4:
            rows_4(bits, product)
            row += 4
        elif left >= 2:
            rows_2(bits, product)
            row += 2
        else:
            rows_1(bits, product)
            row += 1
