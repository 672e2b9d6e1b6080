"""Sixteen float32 lanes as a numba type: the arithmetic that the CPU kernels are written in.

Compilers vectorise a sum only when they may reorder it, and then two loops over the same numbers may differ in their
last bits. Kernels whose rows must not depend on their neighbours therefore spell their vectors out: each operation here
is one LLVM instruction a lane, never reassociated, and becomes one AVX-512, two AVX or four NEON instructions.

Arrays are C-contiguous; an index counts elements from the array's beginning, whatever its shape, and is not checked. An
array of uint16 holds bfloat16 bits: exact when loaded, rounded to nearest, ties to even, when stored.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from model.cpu.jit import inlined

WIDTH = 16
"""Lanes in a vector."""

F32x16: TypeAlias = Any
"""What a vector is to the type checker; numba knows it as `_LANES`."""
Array: TypeAlias = Any
"""A numpy array of float32, or of uint16 that holds bfloat16 bits."""


class _Lanes(types.Type):  # type: ignore[misc]  # numba has no type hints
    def __init__(self) -> None:
        super().__init__(name="F32x16")


_LANES = _Lanes()
_F32 = ir.VectorType(ir.FloatType(), WIDTH)
_I32 = ir.VectorType(ir.IntType(32), WIDTH)
_I16 = ir.VectorType(ir.IntType(16), WIDTH)
_FIRST = ir.Constant(ir.IntType(32), 0)


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _F32)


# Instructions: each function appends to what `builder` has, and returns the result.


def _same(value: int) -> ir.Constant:
    return ir.Constant(_I32, [value] * WIDTH)


def _broadcast(builder: Any, scalar: Any) -> Any:
    nothing = ir.Constant(ir.VectorType(scalar.type, WIDTH), ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, scalar, _FIRST), nothing, _same(0))


def _widen(builder: Any, bits: Any) -> Any:
    """float32 from bfloat16 bits."""
    return builder.bitcast(builder.shl(builder.zext(bits, _I32), _same(16)), _F32)


def _narrow(builder: Any, lanes: Any) -> Any:
    """bfloat16 bits of float32: just under half a unit is added, and one more where the last kept bit is odd.

    A NaN only loses its lower half and becomes quiet, for the carry could make it an infinity.
    """
    bits = builder.bitcast(lanes, _I32)
    odd = builder.and_(builder.lshr(bits, _same(16)), _same(1))
    rounded = builder.add(bits, builder.add(odd, _same(0x7FFF)))
    nan = builder.or_(bits, _same(0x400000))
    kept = builder.select(builder.fcmp_unordered("uno", lanes, lanes), nan, rounded)
    return builder.trunc(builder.lshr(kept, _same(16)), _I16)


def _fmuladd(builder: Any, a: Any, b: Any, c: Any) -> Any:
    signature = ir.FunctionType(_F32, [_F32] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, "llvm.fmuladd.v16f32"), [a, b, c])


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _where_less(builder: Any, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), then, otherwise)


def _keep_between(builder: Any, lanes: Any, begin: Any, end: Any, otherwise: Any) -> Any:
    number = ir.Constant(_I32, list(range(WIDTH)))
    after = builder.icmp_signed(">=", number, _broadcast(builder, begin))
    before = builder.icmp_signed("<", number, _broadcast(builder, end))
    return builder.select(builder.and_(after, before), lanes, _broadcast(builder, otherwise))


def _shifted_exponent(builder: Any, rounded: Any) -> Any:
    exponent = builder.add(builder.bitcast(rounded, _I32), _same(127))
    return builder.bitcast(builder.shl(exponent, _same(23)), _F32)


def _fold(builder: Any, lanes: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    """One scalar from the lanes: halves on halves, always in this order."""
    for distance in (8, 4, 2, 1):
        partners = ir.Constant(_I32, [lane ^ distance for lane in range(WIDTH)])
        lanes = combine(builder, lanes, builder.shuffle_vector(lanes, lanes, partners))
    return builder.extract_element(lanes, _FIRST)


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Columns of a 16 x 16 matrix: swap the off-diagonal halves of ever smaller squares (Eklundh's method)."""
    for side in (8, 4, 2, 1):
        upper = [lane if not lane & side else lane - side + WIDTH for lane in range(WIDTH)]
        lower = [lane + side if not lane & side else lane + WIDTH for lane in range(WIDTH)]
        for row in (row for row in range(WIDTH) if not row & side):
            pair = rows[row], rows[row + side]
            rows[row] = builder.shuffle_vector(*pair, ir.Constant(_I32, upper))
            rows[row + side] = builder.shuffle_vector(*pair, ir.Constant(_I32, lower))
    return rows


# Operations on vectors.


def _operation(signature: Any, emit: Callable[..., Any]) -> Callable[..., Any]:
    """The function of kernels whose instructions `emit(builder, *arguments)` appends."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit(builder, *arguments)

    declarations: dict[int, Callable[..., Any]] = {
        1: lambda typing, a: (signature, generate),
        2: lambda typing, a, b: (signature, generate),
        3: lambda typing, a, b, c: (signature, generate),
        4: lambda typing, a, b, c, d: (signature, generate),
    }
    operation: Callable[..., Any] = intrinsic(declarations[len(signature.args)])
    return operation


_ONE, _TWO, _THREE = (_LANES(*[_LANES] * count) for count in (1, 2, 3))

splat = _operation(_LANES(types.float32), _broadcast)
add = _operation(_TWO, lambda builder, a, b: builder.fadd(a, b))
subtract = _operation(_TWO, lambda builder, a, b: builder.fsub(a, b))
multiply = _operation(_TWO, lambda builder, a, b: builder.fmul(a, b))
divide = _operation(_TWO, lambda builder, a, b: builder.fdiv(a, b))
fma = _operation(_THREE, _fmuladd)
"""(a, b, c) -> a * b + c, rounded once where the processor can."""
maximum = _operation(_TWO, _larger)
"""(a, b) -> the larger of each pair of lanes; b where either is NaN."""
where_less = _operation(_LANES(_LANES, _LANES, _LANES, _LANES), _where_less)
"""(a, b, then, otherwise) -> `then` in the lanes where a < b, else `otherwise`."""
keep_between = _operation(_LANES(_LANES, types.int32, types.int32, types.float32), _keep_between)
"""(lanes, begin, end, scalar) -> the lanes begin … end - 1, and the scalar in the others."""
sum_lanes = _operation(
    types.float32(_LANES), lambda builder, lanes: _fold(builder, lanes, lambda builder, a, b: builder.fadd(a, b))
)
max_lanes = _operation(types.float32(_LANES), lambda builder, lanes: _fold(builder, lanes, _larger))
_lane = _operation(types.float32(_LANES, types.intp), lambda builder, lanes, i: builder.extract_element(lanes, i))
_with_lane = _operation(
    _LANES(_LANES, types.intp, types.float32),
    lambda builder, lanes, i, scalar: builder.insert_element(lanes, scalar, i),
)
_power_of_two = _operation(_ONE, _shifted_exponent)


# Operations on arrays, of either element type.


class _Format(NamedTuple):
    """How numbers lie in an array."""

    vector: ir.VectorType
    num_bytes: int
    to_float: Callable[[Any, Any], Any]
    from_float: Callable[[Any, Any], Any]

    def first_to_float(self, builder: Any, element: Any) -> Any:
        return builder.extract_element(self.to_float(builder, _broadcast(builder, element)), _FIRST)

    def first_from_float(self, builder: Any, scalar: Any) -> Any:
        return builder.extract_element(self.from_float(builder, _broadcast(builder, scalar)), _FIRST)


def _as_it_is(builder: Any, lanes: Any) -> Any:
    return lanes


_FORMATS = {
    types.float32: _Format(_F32, 4, _as_it_is, _as_it_is),
    types.uint16: _Format(_I16, 2, _widen, _narrow),
}


def _element(context: Any, builder: Any, array_type: Any, as_type: Any, array: Any, index: Any) -> Any:
    """The address of an element, as that of an `as_type`."""
    start = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(start, [index]), as_type.as_pointer())


def _load(typing: Any, array: Any, index: Any) -> Any:
    form = _FORMATS[array.dtype]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element(context, builder, array, form.vector, *arguments)
        return form.to_float(builder, builder.load(pointer, align=form.num_bytes))

    return _LANES(array, types.intp), generate


def _store(typing: Any, array: Any, index: Any, lanes: Any) -> Any:
    form = _FORMATS[array.dtype]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element(context, builder, array, form.vector, *arguments[:2])
        builder.store(form.from_float(builder, arguments[2]), pointer, align=form.num_bytes)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES), generate


def _load_one(typing: Any, array: Any, index: Any) -> Any:
    form = _FORMATS[array.dtype]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element(context, builder, array, form.vector.element, *arguments)
        return form.first_to_float(builder, builder.load(pointer))

    return types.float32(array, types.intp), generate


def _store_one(typing: Any, array: Any, index: Any, scalar: Any) -> Any:
    form = _FORMATS[array.dtype]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element(context, builder, array, form.vector.element, *arguments[:2])
        builder.store(form.first_from_float(builder, arguments[2]), pointer)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), generate


def _transpose(typing: Any, source: Any, start: Any, stride: Any, target: Any, index: Any, pitch: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_values, start, stride, target_values, index, pitch = arguments
        rows = []
        for row in range(WIDTH):
            at = builder.add(start, builder.mul(stride, ir.Constant(stride.type, row)))
            rows.append(builder.load(_element(context, builder, source, _I32, source_values, at), align=2))
        columns = _transposed(builder, rows)
        if source.dtype == types.uint16:  # a column of pairs: the even element in the lower half, the odd one above it
            even = [builder.shl(pair, _same(16)) for pair in columns]
            odd = [builder.and_(pair, _same(0xFFFF0000)) for pair in columns]
            columns = [column for pair in zip(even, odd, strict=True) for column in pair]
        for number, column in enumerate(columns):
            at = builder.add(index, builder.mul(pitch, ir.Constant(pitch.type, number)))
            builder.store(column, _element(context, builder, target, _I32, target_values, at), align=4)
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp, types.intp), generate


def _prefetch(typing: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element(context, builder, array, ir.IntType(8), *arguments)
        i32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        prefetch = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        to_read, keep_close, as_data = (ir.Constant(i32, value) for value in (0, 3, 1))
        builder.call(prefetch, [pointer, to_read, keep_close, as_data])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


load: Callable[..., F32x16] = intrinsic(_load)
"""(array, index) -> the sixteen elements from `index` on."""
store: Callable[..., None] = intrinsic(_store)
"""(array, index, lanes): write the sixteen elements from `index` on."""
load_one: Callable[..., np.float32] = intrinsic(_load_one)
"""(array, index) -> one element as a scalar."""
store_one: Callable[..., None] = intrinsic(_store_one)
"""(array, index, scalar): write one element."""
prefetch: Callable[..., None] = intrinsic(_prefetch)
"""(array, index): have the cache line of an element brought in while the kernel goes on."""
transpose: Callable[..., None] = intrinsic(_transpose)
"""(source, start, stride, target, index, pitch): turn sixteen rows of 64 bytes, `stride` elements apart, into columns.

Element i of row j, of 32 bfloat16 or 16 float32 elements, goes to target[index + i * pitch + j], float32.
"""


@inlined
def load_upto(array: Array, index: int, count: int) -> F32x16:
    """Load min(count, 16) elements; the other lanes are 0."""
    if count >= WIDTH:
        return load(array, index)
    lanes = splat(np.float32(0))
    for i in range(count):
        lanes = _with_lane(lanes, i, load_one(array, index + i))
    return lanes


@inlined
def store_upto(array: Array, index: int, lanes: F32x16, count: int) -> None:
    """Store the first min(count, 16) lanes."""
    if count >= WIDTH:
        store(array, index, lanes)
    else:
        for i in range(count):
            store_one(array, index + i, _lane(lanes, i))


_LOWEST, _HIGHEST = np.float32(-87.33), np.float32(88)
_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
"""ln 2 in two parts, the first with so few bits that its product with an integer is exact."""
_ROUNDING = np.float32(1.5 * 2**23)
"""Added to a moderate number it leaves the nearest integer in the lowest bits."""
_C2, _C3, _C4, _C5, _C6 = np.array([0.49999994, 0.166665211, 0.041668389, 0.00836874545, 0.00138145417], np.float32)
"""(e^r - 1 - r) / r² for |r| <= ln 2 / 2: minimax in the relative error of e^r, 4e-9."""


@inlined
def exp(x: F32x16) -> F32x16:
    """Return e to the power of each lane, within 2e-7 of it: exactly 1 at 0, 0 below -87.33, and e^88 above 88.

    x = n ln 2 + r, so e^x = 2^n e^r (Cody and Waite, Software Manual for the Elementary Functions, 1980).
    """
    bounded = where_less(splat(_HIGHEST), x, splat(_HIGHEST), x)
    shifted = fma(bounded, splat(_LOG2_E), splat(_ROUNDING))
    n = subtract(shifted, splat(_ROUNDING))
    r = fma(n, splat(-_LN2_LOW), fma(n, splat(-_LN2_HIGH), bounded))
    tail = fma(fma(fma(fma(splat(_C6), r, splat(_C5)), r, splat(_C4)), r, splat(_C3)), r, splat(_C2))
    power = multiply(fma(multiply(r, r), tail, add(r, splat(np.float32(1)))), _power_of_two(shifted))
    return where_less(x, splat(_LOWEST), splat(np.float32(0)), power)
