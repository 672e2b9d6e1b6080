"""Rows in blocks of 32 integers, as instructions: what the products of model/cpu/block_products.py read.

A block of x becomes d · X with d = max |x| / 2032 and X rounded to nearest, ties to even: 12 bits, of which a signed
byte holds the upper eight and another the rest. A block is computed by itself, so it has the same bits in any company.
A block that holds a NaN or an infinity gets the scale NaN: that row's results are NaN, as they would have been.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LIMIT = 2032
"""The largest integer: 127 · 16, so that its upper part rounds to a signed byte."""
_LEAST = 2.0**-117
"""Of what is smaller the reciprocal overflows: a block of it counts as zeros."""
_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_F32X16, _I32X16, _I8X16 = (ir.VectorType(kind, 16) for kind in (_F32, _I32, _I8))
_MAGIC, _MAGIC_BITS = 1.5 * 2**23, 0x4B400000
"""A float32 to which a moderate number is added, and whose lowest bits then hold it, rounded."""


def _same(value: int) -> ir.Constant:
    return ir.Constant(_I32X16, [value] * 16)


def _fold(builder: Any, lanes: Any, combine: Callable[[Any, Any], Any]) -> Any:
    for distance in (8, 4, 2, 1):
        partners = ir.Constant(_I32X16, [lane ^ distance for lane in range(16)])
        lanes = combine(lanes, builder.shuffle_vector(lanes, lanes, partners))
    return builder.extract_element(lanes, ir.Constant(_I32, 0))


def _everywhere(builder: Any, scalar: Any) -> Any:
    nothing = ir.Constant(ir.VectorType(scalar.type, 16), ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, scalar, ir.Constant(_I32, 0)), nothing, _same(0))


def _emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    source, codes, scale_at, sum_at = arguments

    def pointer(address: Any, offset: int, kind: Any) -> Any:
        return builder.inttoptr(builder.add(address, ir.Constant(_I64, offset)), kind.as_pointer())

    def larger(a: Any, b: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    halves = [builder.load(pointer(source, 64 * half, _F32X16), align=4) for half in (0, 1)]
    magnitudes = [
        builder.bitcast(builder.and_(builder.bitcast(half, _I32X16), _same(0x7FFFFFFF)), _F32X16) for half in halves
    ]
    largest = _fold(builder, larger(*magnitudes), larger)
    zero = ir.Constant(_F32X16, [0.0] * 16)
    nothing = builder.fadd(*(builder.fmul(half, zero) for half in halves))  # ±0, or NaN
    poison = _fold(builder, nothing, builder.fadd)
    scale = builder.fadd(builder.fmul(largest, ir.Constant(_F32, 1 / LIMIT)), poison)
    is_nothing = builder.fcmp_ordered("<", largest, ir.Constant(_F32, _LEAST))
    inverse = builder.select(is_nothing, ir.Constant(_F32, 0.0), builder.fdiv(ir.Constant(_F32, float(LIMIT)), largest))
    total = _same(0)
    for number, half in enumerate(halves):
        shifted = builder.fadd(builder.fmul(half, _everywhere(builder, inverse)), ir.Constant(_F32X16, [_MAGIC] * 16))
        integers = builder.sub(builder.bitcast(shifted, _I32X16), _same(_MAGIC_BITS))
        high = builder.ashr(builder.add(integers, _same(8)), _same(4))
        low = builder.sub(integers, builder.shl(high, _same(4)))
        for part, offset in ((high, 0), (low, 32)):
            place = pointer(codes, offset + 16 * number, _I8X16)
            builder.store(builder.trunc(part, _I8X16), place, align=1)
        total = builder.add(total, integers)
    row_sum = builder.sitofp(_fold(builder, total, builder.add), _F32)
    builder.store(scale, pointer(scale_at, 0, _F32), align=4)
    builder.store(builder.fmul(scale, row_sum), pointer(sum_at, 0, _F32), align=4)
    return context.get_dummy_value()


def _quantise_block(typing: Any, source: Any, codes: Any, scale: Any, row_sum: Any) -> Any:
    return types.void(*[types.int64] * 4), _emit


quantise_block: Callable[..., None] = intrinsic(_quantise_block)
"""(source, codes, scale, sum): addresses of 32 float32, of 64 bytes for the codes, and of a float32 each for d and
d Σ X, which are written."""
