"""The second factor of an adapter list's changes, B (A x), on CPUs: one tile of 16 outputs with some rows.

Both are bfloat16, sums float32. Many rows go through AMX by sixteens where the machine has it; few go through fused
multiply-adds, a chain for even ranks and one for odd ones of each sixteen, as AMX does it: a row has the same bits
whatever its neighbours. AMX takes subnormal numbers for zeros, so what could lead to one is made zero before.

Rows of A x lie side by side, 128 bytes for 16 ranks: the 16 bfloat16 and nothing, then the same as float32. B lies in
tiles of 16 outputs after each other, in a tile 16 ranks after the others, eight lines of 64 bytes each: the bfloat16
2n + j of line i is that of output n and rank 2i + j. Everything is at addresses; nothing is checked.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from model.cpu.addresses import array_at
from model.cpu.amx import emit_pair_multiply, emit_tile_load, emit_tile_store, emit_tile_zero
from model.cpu.block_products import CODES, FEW_ROWS, HIGHS, LINE, SUMS, TILE_ROWS, Emitter, ask_for
from model.cpu.jit import compiled, inlined, kernel
from model.cpu.simd import WIDTH, Array, F32x16, load, maximum, splat, store, subtract, where_less

RANKS = 16
"""Ranks that are multiplied at once; what there is less is zeros."""
_PITCH = RANKS // 2 * LINE
"""Bytes of 16 ranks of a tile of B."""
RANK_ROW_BYTES = 2 * LINE
"""Bytes of 16 ranks of a row."""
_AHEAD = 8
"""Tiles that B is asked for ahead of its use."""
_LEAST_RANK, _LEAST_B = np.float32(2.0**-70), np.float32(2.0**-40)
"""What is smaller is zero: products of others, and their sums, are multiples of 2^-124."""
_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_F32X16, _I32X16 = ir.VectorType(_F32, 16), ir.VectorType(_I32, 16)
_FMA = ir.FunctionType(_F32X16, [_F32X16] * 3)
_FLOATS, _BFLOATS = np.empty(0, np.float32), np.empty(0, np.uint16)


class RankRows(NamedTuple):
    """Rows of A x; whole sixteens of rows can be read."""

    address: int
    num_tiles: int
    """Of 16 ranks each, of a row."""


def pack_ranks(b: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return B (out, R) as the kernels read it, bfloat16 (tiles, sixteens of ranks, 8, 16, 2), filled up with zeros."""
    out, rank = b.shape
    shape = -(-out // WIDTH), -(-rank // RANKS), RANKS // 2, WIDTH, 2
    wide = np.zeros(shape, np.float32)
    packed: NDArray[np.uint16] = torch.empty(shape, dtype=torch.uint16).numpy()  # torch's memory begins on a cache line
    _pack(b, wide.reshape(-1), packed.reshape(-1))
    return packed


@kernel
def _pack(b: Array, wide: Array, packed: Array) -> None:
    out, rank = b.shape
    num_tiles = (rank + RANKS - 1) // RANKS
    for n in range(out):
        for r in range(rank):
            line = (n // WIDTH * num_tiles + r // RANKS) * (RANKS // 2) + r % RANKS // 2
            value = b[n, r]
            wide[(line * WIDTH + n % WIDTH) * 2 + r % 2] = np.float32(0) if abs(value) < _LEAST_B else value
    for i in range(0, wide.size, WIDTH):
        store(packed, i, load(wide, i))


@inlined
def rank_tile_bytes(num_tiles: int) -> int:
    """Return the bytes of 16 outputs of B, of so many sixteens of ranks."""
    return num_tiles * _PITCH


@inlined
def store_ranks(rows: RankRows, row: int, tile: int, lanes: F32x16) -> None:
    """Write 16 ranks of a row."""
    address = rows.address + (row * rows.num_tiles + tile) * RANK_ROW_BYTES
    zero = splat(np.float32(0))
    size = maximum(lanes, subtract(zero, lanes))
    halves = array_at(address, (WIDTH,), _BFLOATS)
    store(halves, 0, where_less(size, splat(_LEAST_RANK), zero, lanes))
    store(array_at(address + LINE, (WIDTH,), _FLOATS), 0, load(halves, 0))


@compiled
def multiply_ranks(rows: RankRows, first: int, count: int, weight: int, out: int, has_amx: bool) -> None:
    """Write what a tile of B at `weight` gives for rows first … first + count - 1: 16 float32 each, from `out` on.

    There must be room for whole sixteens of rows in `out`.
    """
    stride, size = rows.num_tiles * RANK_ROW_BYTES, rank_tile_bytes(rows.num_tiles)
    ask_for(weight + _AHEAD * size, size)
    row = 0
    while row < count:
        x, target, left = rows.address + (first + row) * stride, out + row * LINE, count - row
        if has_amx and left > FEW_ROWS:
            _sixteen_rows(x, stride, weight, rows.num_tiles, target)
            row += TILE_ROWS
        elif left >= 4:
            _four_rows(x, stride, weight, rows.num_tiles, target)
            row += 4
        else:
            _one_row(x, stride, weight, rows.num_tiles, target)
            row += 1


def _amx(typing: Any, x: Any, stride: Any, weight: Any, num_tiles: Any, out: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, stride, weight, num_tiles, out = arguments
        emit = Emitter(builder)
        line, pitch, row_bytes = (emit.constant(size) for size in (LINE, _PITCH, RANK_ROW_BYTES))
        emit_tile_zero(builder, SUMS)
        with cgutils.for_range(builder, num_tiles) as loop:
            at = builder.mul(loop.index, pitch)
            emit_tile_load(builder, HIGHS, builder.add(x, builder.mul(loop.index, row_bytes)), stride)
            emit_tile_load(builder, CODES, builder.add(weight, at), line)
            emit_pair_multiply(builder, SUMS, HIGHS, CODES)
        emit_tile_store(builder, SUMS, out, line)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _chains(num_rows: int) -> Callable[..., None]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, stride, weight, num_tiles, out = arguments
        emit = Emitter(builder)
        nothing = ir.Constant(_F32X16, [0.0] * 16)
        sums = [cgutils.alloca_once_value(builder, nothing) for _ in range(num_rows)]
        with cgutils.for_range(builder, num_tiles) as loop:
            lines = builder.add(weight, builder.mul(loop.index, emit.constant(_PITCH)))
            evens, odds = _columns(emit, lines)
            for row, total in enumerate(sums):
                ranks = builder.add(x, builder.mul(stride, emit.constant(row)))
                ranks = builder.add(ranks, builder.mul(loop.index, emit.constant(RANK_ROW_BYTES)))
                even, odd = (_chain(emit, ranks, LINE + 4 * j, columns) for j, columns in enumerate((evens, odds)))
                builder.store(builder.fadd(builder.load(total), builder.fadd(even, odd)), total)
        emit.write(sums, out)
        return context.get_dummy_value()

    def declare(typing: Any, x: Any, stride: Any, weight: Any, num_tiles: Any, out: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    product: Callable[..., None] = intrinsic(declare)
    return product


def _columns(emit: Emitter, lines: Any) -> tuple[list[Any], list[Any]]:
    """The even ranks and the odd ones of 16 outputs, float32."""
    builder = emit.builder
    pairs = [emit.load(lines, i * LINE, _I32X16) for i in range(RANKS // 2)]
    evens = [builder.bitcast(builder.shl(pair, emit.same(16)), _F32X16) for pair in pairs]
    return evens, [builder.bitcast(builder.and_(pair, emit.same(0xFFFF0000)), _F32X16) for pair in pairs]


def _chain(emit: Emitter, ranks: Any, offset: int, columns: Sequence[Any]) -> Any:
    """Return the sum of columns times every other rank from an offset on."""
    total = ir.Constant(_F32X16, [0.0] * 16)
    for i, column in enumerate(columns):
        rank = emit.everywhere(emit.load(ranks, offset + 8 * i, _F32))
        total = emit.call("llvm.fma.v16f32", _FMA, [column, rank, total])
    return total


_sixteen_rows: Callable[..., None] = intrinsic(_amx)
"""(x, stride, weight, num_tiles, out): write the products of 16 rows, `stride` bytes apart."""
_one_row, _four_rows = _chains(1), _chains(4)
