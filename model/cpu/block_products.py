"""Products of rows and weights in blocks, as instructions: one tile of 16 outputs with some rows.

In a block of 32 inputs a row is x = d · X with integers |X| ≤ 2032, a weight w = d' · C + m with unsigned codes C, and
so Σ w x = d' d Σ C X + m d Σ X. Σ C X is exact in 32 bits, whoever sums it in whatever order; only the chain over the
blocks is in float32, two fused multiply-adds each, always in the order of the inputs. So a row's result has the same
bits alone or among others, from AVX-512 VNNI or from AMX.

X is stored as 16 · high + low, a signed byte each, for what the instructions multiply are an unsigned and a signed byte
(Intel 64 and IA-32 Architectures Software Developer's Manual: VPDPBUSD, TDPBSUD). AMX takes 16 rows and a tile at once.

Everything is at addresses; nothing is checked. A row of x has 64 bytes a block, 32 of high and 32 of low parts;
`scales` has d, and `sums` d Σ X, one float32 a block. Weights lie as block_weight.py says. Sums of R rows are
added to out, R times 16 float32, in the order of blocks.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from model.cpu.amx import emit_tile_load, emit_tile_multiply, emit_tile_store, emit_tile_zero

LINE = 64
"""Bytes of a row's block, of a cache line, and of a line of weights."""
TILE_ROWS = 16
"""Rows that AMX takes at once."""
FEW_ROWS = 8
"""Up to so many are faster without it."""
_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_I32X16, _F32X16, _F16X16 = (ir.VectorType(kind, 16) for kind in (_I32, _F32, ir.HalfType()))
_DOT = ir.FunctionType(_I32X16, [_I32X16] * 3)
_FMA = ir.FunctionType(_F32X16, [_F32X16] * 3)
_AHEAD = 8192
"""Bytes that weights are asked for ahead of their use."""
_LOW_NIBBLES, _HIGH_NIBBLES = 0x0F0F0F0F, 0xF0F0F0F0

SUMS, HIGHS, LOWS, CODES = 0, 2, 3, 4
"""Tile registers of 8 bits: 16 rows of sums (two of them, 0 and 1), of 32 bytes, and 8 lines of codes."""
WIDE_ROWS, WIDE_CODES = 5, 6
"""Tile registers of 4 bits: 16 rows of 64 bytes, and 16 lines of codes."""
TILE_SHAPES = {
    SUMS: (16, 64),
    1: (16, 64),
    HIGHS: (16, 32),
    LOWS: (16, 32),
    CODES: (8, 64),
    WIDE_ROWS: (16, 64),
    WIDE_CODES: (16, 64),
}
"""(rows, bytes a row) by register: what AMX is to be configured for."""


def block_bytes(bits: int) -> int:
    """Return the bytes of a block of a tile: scales, minima, codes."""
    return LINE + bits * LINE


class Emitter:
    """Appends instructions at addresses."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def constant(self, value: int) -> ir.Constant:
        return ir.Constant(_I64, value)

    def pointer(self, address: Any, offset: int, kind: Any) -> Any:
        builder = self.builder
        moved = builder.add(address, self.constant(offset)) if offset else address
        return builder.inttoptr(moved, kind.as_pointer())

    def load(self, address: Any, offset: int, kind: Any, align: int = 4) -> Any:
        return self.builder.load(self.pointer(address, offset, kind), align=align)

    def everywhere(self, scalar: Any) -> Any:
        nothing = ir.Constant(ir.VectorType(scalar.type, 16), ir.Undefined)
        first = self.builder.insert_element(nothing, scalar, ir.Constant(_I32, 0))
        return self.builder.shuffle_vector(first, nothing, ir.Constant(_I32X16, [0] * 16))

    def same(self, value: int) -> ir.Constant:
        return ir.Constant(_I32X16, [value] * 16)

    def call(self, name: str, kind: Any, arguments: Sequence[Any]) -> Any:
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)

    def scale_and_minimum(self, block: Any) -> tuple[Any, Any]:
        d, m = (self.load(block, offset, _F16X16, 32) for offset in (0, 32))
        return self.builder.fpext(d, _F32X16), self.builder.fpext(m, _F32X16)

    def add_block(self, place: Any, total: Any, weight: tuple[Any, Any], scale: Any, row_sum: Any) -> None:
        """acc ← acc + d' total · d + m · sum, for one row."""
        builder = self.builder
        d, m = weight
        scaled = builder.fmul(builder.sitofp(total, _F32X16), d)
        first = self.call("llvm.fma.v16f32", _FMA, [scaled, self.everywhere(scale), builder.load(place)])
        builder.store(self.call("llvm.fma.v16f32", _FMA, [m, self.everywhere(row_sum), first]), place)

    def prefetch(self, address: Any) -> None:
        """Have a line brought into the second-level cache while the kernel goes on."""
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        to_read, keep_near, as_data = (ir.Constant(_I32, value) for value in (0, 1, 1))
        self.builder.call(function, [self.pointer(address, 0, _I8), to_read, keep_near, as_data])

    def prefetch_block(self, block: Any, distance: Any, bits: int) -> None:
        """Ask for the block so many bytes further on: the processor itself looks ahead too little, by half."""
        ahead = self.builder.add(block, distance)
        for offset in range(0, block_bytes(bits), LINE):
            self.prefetch(self.builder.add(ahead, self.constant(offset)))

    def read(self, count: int, out: Any) -> list[Any]:
        rows = [self.load(out, row * LINE, _F32X16, LINE) for row in range(count)]
        return [cgutils.alloca_once_value(self.builder, row) for row in rows]

    def write(self, places: Sequence[Any], out: Any) -> None:
        for row, place in enumerate(places):
            self.builder.store(self.builder.load(place), self.pointer(out, row * LINE, _F32X16), align=LINE)


def _quads(emit: Emitter, block: Any, bits: int) -> list[Any]:
    """The codes of a block as 8 vectors: of 16 outputs, four inputs each."""
    lines = [emit.load(block, LINE + i * LINE, _I32X16, LINE) for i in range(bits)]
    if bits == 8:
        return lines
    low, four = emit.same(_LOW_NIBBLES), emit.same(4)
    lows = [emit.builder.and_(line, low) for line in lines]
    return lows + [emit.builder.and_(emit.builder.lshr(line, four), low) for line in lines]


class TileProduct(NamedTuple):
    """What a product reads and where it adds: addresses, strides in bytes from row to row, blocks of a row."""

    x: int
    scales: int
    sums: int
    x_stride: int
    scalar_stride: int
    weight: int
    num_blocks: int
    out: int
    """Cache lines, one for each row."""
    panel: int
    """For AMX and 4 bits, the tile as `unpack_4` leaves it."""
    scratch: int
    """For AMX, room for two times 2 KiB."""


def _product(emit_product: Callable[[Emitter, int, TileProduct], None]) -> Callable[[int, TileProduct], None]:
    """(bits, product): add to `out`; `bits` is 4 or 8."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emitter(builder)
        product = TileProduct(*cgutils.unpack_tuple(builder, arguments[1]))
        with builder.if_else(builder.icmp_signed("==", arguments[0], emit.constant(4))) as (of_4, of_8):
            with of_4:
                emit_product(emit, 4, product)
            with of_8:
                emit_product(emit, 8, product)
        return context.get_dummy_value()

    def declare(typing: Any, bits: Any, product: Any) -> Any:
        return types.void(types.int64, product), generate

    multiply: Callable[[int, TileProduct], None] = intrinsic(declare)
    return multiply


def _vnni(emit: Emitter, bits: int, product: TileProduct, num_rows: int) -> None:
    builder = emit.builder
    places = emit.read(num_rows, product.out)
    with cgutils.for_range(builder, product.num_blocks) as loop:
        block = builder.add(product.weight, builder.mul(loop.index, emit.constant(block_bytes(bits))))
        emit.prefetch_block(block, emit.constant(_AHEAD), bits)
        quads, scale = _quads(emit, block, bits), emit.scale_and_minimum(block)
        for row in range(num_rows):
            line = builder.add(product.x, builder.mul(loop.index, emit.constant(LINE)))
            line = builder.add(line, builder.mul(product.x_stride, emit.constant(row)))
            parts = []
            for part in (0, 32):
                total = emit.same(0)
                for i, quad in enumerate(quads):
                    inputs = emit.everywhere(emit.load(line, part + 4 * i, _I32))
                    total = emit.call("llvm.x86.avx512.vpdpbusd.512", _DOT, [total, quad, inputs])
                parts.append(total)
            total = builder.add(builder.shl(parts[0], emit.same(4)), parts[1])
            emit.add_block(places[row], total, scale, *_scalars(emit, product, loop.index, row))
    emit.write(places, product.out)


def _amx(emit: Emitter, bits: int, product: TileProduct) -> None:
    builder, line = emit.builder, emit.constant(LINE)
    places = emit.read(TILE_ROWS, product.out)
    tile_bytes = builder.mul(product.num_blocks, emit.constant(block_bytes(bits)))
    with cgutils.for_range(builder, product.num_blocks) as loop:
        block = builder.add(product.weight, builder.mul(loop.index, emit.constant(block_bytes(bits))))
        rows = builder.add(product.x, builder.mul(loop.index, line))
        emit.prefetch_block(block, tile_bytes, bits)
        # Sums of alternating blocks go to alternating places, lest a block waits for the last one to be read.
        turn = builder.and_(loop.index, emit.constant(1))
        place = builder.add(product.scratch, builder.mul(turn, emit.constant(2048)))
        if bits == 4:
            codes = builder.add(product.panel, builder.mul(loop.index, emit.constant(16 * LINE)))
            _emit_wide_tile(emit, rows, product.x_stride, codes, place)
        else:
            _emit_narrow_tiles(emit, rows, product.x_stride, builder.add(block, line), place)
        scale = emit.scale_and_minimum(block)
        for row in range(TILE_ROWS):
            total = emit.load(place, row * LINE, _I32X16, LINE)
            if bits == 8:
                low = emit.load(place, 1024 + row * LINE, _I32X16, LINE)
                total = builder.add(builder.shl(total, emit.same(4)), low)
            emit.add_block(places[row], total, scale, *_scalars(emit, product, loop.index, row))
    emit.write(places, product.out)


def _scalars(emit: Emitter, product: TileProduct, block: Any, row: int) -> tuple[Any, Any]:
    """d and d Σ X of a row's block."""
    builder = emit.builder
    at = builder.mul(product.scalar_stride, emit.constant(row))
    at = builder.add(builder.mul(block, emit.constant(4)), at)
    scale, row_sum = (emit.load(builder.add(where, at), 0, _F32) for where in (product.scales, product.sums))
    return scale, row_sum


def _emit_wide_tile(emit: Emitter, rows: Any, stride: Any, codes: Any, place: Any) -> None:
    """Store the sums of 16 rows: high parts with 16 · codes and low parts with codes at once."""
    builder, line = emit.builder, emit.constant(LINE)
    emit_tile_zero(builder, SUMS)
    emit_tile_load(builder, WIDE_ROWS, rows, stride)
    emit_tile_load(builder, WIDE_CODES, codes, line)
    emit_tile_multiply(builder, SUMS, WIDE_ROWS, WIDE_CODES)
    emit_tile_store(builder, SUMS, place, line)


def _emit_narrow_tiles(emit: Emitter, rows: Any, stride: Any, codes: Any, place: Any) -> None:
    """Store the sums of 16 rows' high parts, and 1 KiB further on those of their low parts."""
    builder, line = emit.builder, emit.constant(LINE)
    emit_tile_load(builder, CODES, codes, line)
    for register, part in ((HIGHS, 0), (LOWS, 32)):
        total = register - HIGHS
        emit_tile_zero(builder, total)
        emit_tile_load(builder, register, builder.add(rows, emit.constant(part)), stride)
        emit_tile_multiply(builder, total, register, CODES)
        emit_tile_store(builder, total, builder.add(place, emit.constant(1024 * total)), line)


def _unpack_4(typing: Any, weight: Any, num_blocks: Any, panel: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weight, num_blocks, panel = arguments
        emit = Emitter(builder)
        high, four = emit.same(_HIGH_NIBBLES), emit.same(4)
        with cgutils.for_range(builder, num_blocks) as loop:
            block = builder.add(weight, builder.mul(loop.index, emit.constant(block_bytes(4))))
            target = builder.add(panel, builder.mul(loop.index, emit.constant(16 * LINE)))
            lines = [emit.load(block, LINE + i * LINE, _I32X16, LINE) for i in range(4)]
            quads = _quads(emit, block, 4)
            sixteenfold = [builder.and_(builder.shl(line, four), high) for line in lines]
            sixteenfold += [builder.and_(line, high) for line in lines]
            for i, vector in enumerate(sixteenfold + quads):
                builder.store(vector, emit.pointer(target, i * LINE, _I32X16), align=LINE)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


def _ask_for(typing: Any, address: Any, num_bytes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emitter(builder)
        with cgutils.for_range(builder, builder.udiv(arguments[1], emit.constant(LINE))) as loop:
            emit.prefetch(builder.add(arguments[0], builder.mul(loop.index, emit.constant(LINE))))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


ask_for: Callable[..., None] = intrinsic(_ask_for)
"""(address, num_bytes): have memory brought into the second-level cache while the kernel goes on."""
unpack_4: Callable[..., None] = intrinsic(_unpack_4)
"""(weight, num_blocks, panel): lay a tile of 4 bits out for AMX, 1 KiB a block: 16 · codes for the high parts,
codes for the low ones."""
rows_1, rows_2, rows_4 = (_product(functools.partial(_vnni, num_rows=count)) for count in (1, 2, 4))
rows_16 = _product(_amx)
"""(bits, product): the same for 16 rows, through AMX."""
