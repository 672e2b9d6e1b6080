"""Sixteen float32 lanes as a numba type: the arithmetic that the CPU kernels are written in.

Compilers vectorise a sum only when they may reorder it, and then each loop they make of it may add in another order. Kernels
whose rows must not depend on their neighbours, bit for bit, therefore spell their vectors out: every operation here is one
LLVM instruction per lane, never reassociated, and becomes one AVX-512, two AVX or four NEON instructions.

Arrays are C-contiguous; an index counts elements from the array's beginning, whatever its shape, and is not checked. An array
of uint16 holds bfloat16 bits: it widens exactly when loaded and rounds to nearest, ties to even, when stored.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

WIDTH = 16
"""Lanes in a vector."""

F32x16: TypeAlias = Any
"""What a vector is to the type checker; numba knows it as `LANES`."""
Array: TypeAlias = Any
"""A numpy array of float32, or of uint16 that holds bfloat16 bits."""

Function = TypeVar("Function", bound=Callable[..., Any])


class _Lanes(types.Type):  # type: ignore[misc]  # numba has no type hints
    def __init__(self) -> None:
        super().__init__(name="F32x16")


LANES = _Lanes()

_I16 = ir.VectorType(ir.IntType(16), WIDTH)
_I32 = ir.VectorType(ir.IntType(32), WIDTH)
_F32 = ir.VectorType(ir.FloatType(), WIDTH)


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _F32)


_LOWEST, _HIGHEST = np.float32(-87.33), np.float32(88.0)
_LOG2_E = np.float32(1.44269504)
_ROUNDING = np.float32(1.5 * 2**23)
"""Added and subtracted again, it rounds a float32 of moderate size to an integer."""
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
"""ln 2 = high + low; the first has so few bits that n * high is exact."""
_C2, _C3, _C4, _C5, _C6 = np.array([0.49999994, 0.166665211, 0.041668389, 0.00836874545, 0.00138145417], np.float32)


def inlined(function: Function) -> Function:
    """Compile a piece of a kernel, into its caller."""
    return cast(Function, njit(forceinline=True, nogil=True, error_model="numpy")(function))


def kernel(function: Function) -> Function:
    """Compile an entry point, which may use `prange`, and keep the machine code on disk beside its module (or, where that is
    read-only, in the user's numba cache). numba looks at the change of that module alone: after a change of this one,
    remove `__pycache__/*.nbi`.
    """
    return cast(Function, njit(parallel=True, nogil=True, cache=True, error_model="numpy")(function))


def _operation(signature: Any, emit: Callable[..., Any]) -> Any:
    """A function of kernels whose instructions `emit(builder, *arguments)` gives. Typed as Any: mypy sees only its generator."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit(builder, *arguments)

    declarations = {
        1: lambda typing, a: (signature, generate),
        2: lambda typing, a, b: (signature, generate),
        3: lambda typing, a, b, c: (signature, generate),
        4: lambda typing, a, b, c, d: (signature, generate),
    }
    return intrinsic(declarations[len(signature.args)])


def _same(value: int) -> ir.Constant:
    return ir.Constant(_I32, [value] * WIDTH)


def _broadcast(builder: Any, scalar: Any) -> Any:
    nothing = ir.Constant(ir.VectorType(scalar.type, WIDTH), ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, _same(0))


def _widen(builder: Any, bits: Any) -> Any:
    """float32 lanes from bfloat16 bits."""
    return builder.bitcast(builder.shl(builder.zext(bits, _I32), _same(16)), _F32)


def _narrow(builder: Any, lanes: Any) -> Any:
    """bfloat16 bits of float32 lanes. Adding just under half a unit, and one more where the last kept bit is odd, rounds to even;
    a NaN keeps its upper half, made quiet, since the carry could turn it into infinity."""
    bits = builder.bitcast(lanes, _I32)
    odd = builder.and_(builder.lshr(bits, _same(16)), _same(1))
    rounded = builder.add(bits, builder.add(odd, _same(0x7FFF)))
    nan = builder.or_(bits, _same(0x400000))
    kept = builder.select(builder.fcmp_unordered("uno", lanes, lanes), nan, rounded)
    return builder.trunc(builder.lshr(kept, _same(16)), _I16)


def _element(context: Any, builder: Any, array_type: Any, array: Any, index: Any, as_type: Any) -> Any:
    """The address of an element, as that of a vector."""
    start = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(start, [index]), as_type.as_pointer())


def _load(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    if array_type.dtype == types.uint16:
        return _widen(builder, builder.load(_element(context, builder, array_type, array, index, _I16), align=2))
    return builder.load(_element(context, builder, array_type, array, index, _F32), align=4)


@intrinsic  # type: ignore[misc]
def load(typing: Any, array: Any, index: Any) -> Any:
    """(array, index) -> the sixteen elements from `index` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(context, builder, array, *arguments)

    return LANES(array, types.intp), generate


@intrinsic  # type: ignore[misc]
def store(typing: Any, array: Any, index: Any, lanes: Any) -> Any:
    """(array, index, lanes): write sixteen elements from `index` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, index, lanes = arguments
        if array.dtype == types.uint16:
            bits = _narrow(builder, lanes)
            builder.store(bits, _element(context, builder, array, values, index, _I16), align=2)
        else:
            builder.store(lanes, _element(context, builder, array, values, index, _F32), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, LANES), generate


@intrinsic  # type: ignore[misc]
def load_one(typing: Any, array: Any, index: Any) -> Any:
    """(array, index) -> one element, as a float32 scalar."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if array.dtype != types.uint16:
            return builder.load(_element(context, builder, array, *arguments, ir.FloatType()))
        i32 = ir.IntType(32)
        bits = builder.zext(builder.load(_element(context, builder, array, *arguments, ir.IntType(16))), i32)
        return builder.bitcast(builder.shl(bits, ir.Constant(i32, 16)), ir.FloatType())

    return types.float32(array, types.intp), generate


@intrinsic  # type: ignore[misc]
def store_one(typing: Any, array: Any, index: Any, scalar: Any) -> Any:
    """(array, index, float32): write one element."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, index, scalar = arguments
        if array.dtype == types.uint16:
            bits = _narrow(builder, _broadcast(builder, scalar))
            scalar = builder.extract_element(bits, ir.Constant(ir.IntType(32), 0))
        builder.store(scalar, _element(context, builder, array, values, index, scalar.type))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), generate


@intrinsic  # type: ignore[misc]
def fetch_add(typing: Any, counter: Any, amount: Any) -> Any:
    """(int64 array, amount) -> its first element before the amount is added, atomically among the threads of a kernel."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = context.make_array(counter)(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", start, arguments[1], "monotonic")

    return types.int64(counter, types.int64), generate


@intrinsic  # type: ignore[misc]
def transpose(typing: Any, source: Any, start: Any, stride: Any, target: Any, index: Any, pitch: Any) -> Any:
    """(source, start, stride, target, index, pitch): turn sixteen rows of 64 bytes, `stride` elements apart, into columns.

    Element i of row j (32 bfloat16 or 16 float32 elements) goes to the float32 target[index + i * pitch + j].
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, start, stride, target_values, index, pitch = arguments
        rows = []
        for row in range(WIDTH):
            offset = builder.add(start, builder.mul(stride, ir.Constant(stride.type, row)))
            rows.append(builder.load(_element(context, builder, source, values, offset, _I32), align=2))
        columns = _transposed(builder, rows)
        if (
            source.dtype == types.uint16
        ):  # a column of pairs: the even element in the lower half, the odd one in the upper
            halves = [(builder.shl(pair, _same(16)), builder.and_(pair, _same(0xFFFF0000))) for pair in columns]
            columns = [half for pair in halves for half in pair]
        for number, column in enumerate(columns):
            offset = builder.add(index, builder.mul(pitch, ir.Constant(pitch.type, number)))
            builder.store(column, _element(context, builder, target, target_values, offset, _I32), align=4)
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp, types.intp), generate


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Columns of a 16 x 16 matrix: swap the off-diagonal halves of ever smaller squares (Eklundh's method)."""
    for side in (8, 4, 2, 1):
        upper = [lane if not lane & side else lane - side + WIDTH for lane in range(WIDTH)]
        lower = [lane + side if not lane & side else lane + WIDTH for lane in range(WIDTH)]
        for row in (row for row in range(WIDTH) if not row & side):
            pair = rows[row], rows[row + side]
            rows[row], rows[row + side] = (
                builder.shuffle_vector(*pair, ir.Constant(_I32, lanes)) for lanes in (upper, lower)
            )
    return rows


def _fmuladd(builder: Any, a: Any, b: Any, c: Any) -> Any:
    signature = ir.FunctionType(_F32, [_F32] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, "llvm.fmuladd.v16f32"), [a, b, c])


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _where_less(builder: Any, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), then, otherwise)


def _keep_between(builder: Any, lanes: Any, begin: Any, end: Any, otherwise: Any) -> Any:
    number = ir.Constant(_I32, list(range(WIDTH)))
    inside = builder.and_(
        builder.icmp_signed(">=", number, _broadcast(builder, begin)),
        builder.icmp_signed("<", number, _broadcast(builder, end)),
    )
    return builder.select(inside, lanes, _broadcast(builder, otherwise))


def _shifted_exponent(builder: Any, rounded: Any) -> Any:
    exponent = builder.add(builder.bitcast(rounded, _I32), _same(127))
    return builder.bitcast(builder.shl(exponent, _same(23)), _F32)


def _fold(builder: Any, lanes: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    """One scalar from the lanes: halves on halves, always in this order."""
    for distance in (8, 4, 2, 1):
        partners = ir.Constant(_I32, [lane ^ distance for lane in range(WIDTH)])
        lanes = combine(builder, lanes, builder.shuffle_vector(lanes, lanes, partners))
    return builder.extract_element(lanes, ir.Constant(ir.IntType(32), 0))


splat = _operation(LANES(types.float32), _broadcast)
add = _operation(LANES(LANES, LANES), lambda builder, a, b: builder.fadd(a, b))
subtract = _operation(LANES(LANES, LANES), lambda builder, a, b: builder.fsub(a, b))
multiply = _operation(LANES(LANES, LANES), lambda builder, a, b: builder.fmul(a, b))
divide = _operation(LANES(LANES, LANES), lambda builder, a, b: builder.fdiv(a, b))
fma = _operation(LANES(LANES, LANES, LANES), _fmuladd)  # a * b + c, rounded once where the processor can
maximum = _operation(LANES(LANES, LANES), _larger)  # b where a or b is NaN
where_less = _operation(LANES(LANES, LANES, LANES, LANES), _where_less)  # (a, b, then, otherwise); NaN is not less
keep_between = _operation(LANES(LANES, types.int32, types.int32, types.float32), _keep_between)
sum_lanes = _operation(
    types.float32(LANES), lambda builder, a: _fold(builder, a, lambda builder, a, b: builder.fadd(a, b))
)
max_lanes = _operation(types.float32(LANES), lambda builder, a: _fold(builder, a, _larger))
lane = _operation(types.float32(LANES, types.intp), lambda builder, a, i: builder.extract_element(a, i))
with_lane = _operation(
    LANES(LANES, types.intp, types.float32), lambda builder, a, i, scalar: builder.insert_element(a, scalar, i)
)
_power_of_two = _operation(LANES(LANES), _shifted_exponent)


@inlined
def load_upto(array: Array, index: int, count: int) -> F32x16:
    """Load min(count, 16) elements; the other lanes are 0."""
    if count >= WIDTH:
        return load(array, index)
    lanes = splat(np.float32(0))
    for i in range(count):
        lanes = with_lane(lanes, i, load_one(array, index + i))
    return lanes


@inlined
def store_upto(array: Array, index: int, lanes: F32x16, count: int) -> None:
    """Store the first min(count, 16) lanes."""
    if count >= WIDTH:
        store(array, index, lanes)
    else:
        for i in range(count):
            store_one(array, index + i, lane(lanes, i))


@inlined
def exp(x: F32x16) -> F32x16:
    """Return e to the power of each lane, to 2 units in the last place: 0 below -87.33, e^88 above 88, exactly 1 at 0.

    x = n ln 2 + r with |r| <= ln 2 / 2, so e^x = 2^n e^r (Cody and Waite); e^r is a polynomial of degree 6, minimax in relative error.
    """
    bounded = where_less(splat(_HIGHEST), x, splat(_HIGHEST), x)
    shifted = fma(bounded, splat(_LOG2_E), splat(_ROUNDING))  # its lowest mantissa bits are the integer n
    n = subtract(shifted, splat(_ROUNDING))
    r = fma(n, splat(-_LN2_LOW), fma(n, splat(-_LN2_HIGH), bounded))
    tail = fma(fma(fma(fma(splat(_C6), r, splat(_C5)), r, splat(_C4)), r, splat(_C3)), r, splat(_C2))
    power = fma(multiply(r, r), tail, add(r, splat(np.float32(1))))
    return where_less(x, splat(_LOWEST), splat(np.float32(0)), multiply(power, _power_of_two(shifted)))
