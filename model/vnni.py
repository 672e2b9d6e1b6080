"""Int8 matrix products for CPUs with AVX-512 VNNI, whose instruction adds four products of bytes to each of 16 sums.

oneDNN gives the same bits, but prepares each call for 15 us, and reads the weights for few rows at half the speed.
Codes of the input are unsigned with zero point 128, as the instruction wants them; what that adds to each sum is taken
off its beginning. Sums are integers, so neither tiles nor threads change a bit.

T tokens in the step; `in` and `out` are the product's features. A block is 16 outputs, a quad four inputs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from model.addresses import address_of, array_at, elements_of
from model.jit import compiled, inlined, kernel
from model.scaled_rows import ZERO_POINT
from model.simd import WIDTH, Array, load, multiply, store
from model.team import Counter, fetch_add, run_in_team

_QUAD, _LINE = 4, 64
_BLOCKS = 2
"""Blocks whose sums are held in registers together."""
_MOST_ROWS = 8
"""With so many rows the sums, the weights and an input fill 19 of 32 registers, and most loads serve two products."""
_ALONE = 65536
"""Below so many products one thread is done before a second one would have begun."""

_CODES = elements_of(torch.uint8)
_I32 = ir.IntType(32)
_I32X16 = ir.VectorType(_I32, WIDTH)
_F32X16 = ir.VectorType(ir.FloatType(), WIDTH)
_DOT = ir.FunctionType(_I32X16, [_I32X16] * 3)


class VnniWeight:
    """A weight (out, in) of int8 codes, laid out in the order in which it is read."""

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        """codes (out, in) int8 of a shape that `can_multiply` allows; scales (out,) float32."""
        self._out_features, self._in_features = codes.shape
        quads = codes.numpy().view(np.int32).reshape(-1, WIDTH, self._in_features // _QUAD)
        self._codes = _on_a_line(np.ascontiguousarray(quads.transpose(0, 2, 1)).view(np.int8).reshape(-1))
        self._beginnings = (-ZERO_POINT * codes.sum(dim=1, dtype=torch.int32)).numpy()  # (out,)
        self._scales = scales.numpy()

    def multiply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return scales ⊙ (W (x - 128)), (T, out) in `dtype`, for x (T, in) uint8."""
        assert x.shape[1] == self._in_features
        out = torch.empty(x.shape[0], self._out_features, dtype=dtype)
        num_products = x.shape[0] * self._codes.size
        num_threads = 1 if num_products < _ALONE else torch.get_num_threads()
        _multiply(
            elements_of(dtype), x.shape[0], address_of(x, torch.uint8), address_of(out, dtype),
            self._codes, self._beginnings, self._scales, num_threads,
        )  # fmt: skip
        return out


def can_multiply(out_features: int, in_features: int) -> bool:
    """Whether this machine has the instruction, and the shape is made of whole pairs of blocks and of quads."""
    has_vnni: bool = binding.get_host_cpu_features().get("avx512vnni", False)
    return has_vnni and out_features % (_BLOCKS * WIDTH) == 0 and in_features % (2 * _QUAD) == 0


def _on_a_line(codes: NDArray[np.int8]) -> NDArray[np.int8]:
    """Copy codes to the beginning of a cache line: each load reads one whole."""
    memory = np.empty(codes.size + _LINE, np.int8)
    start = -memory.ctypes.data % _LINE
    aligned = memory[start : start + codes.size]
    aligned[:] = codes
    return aligned


@kernel
def _multiply(
    elements: Array, T: int, x_at: int, out_at: int,
    weight: NDArray[np.int8], beginnings: NDArray[np.int32], scales: NDArray[np.float32], num_threads: int,
) -> None:  # fmt: skip
    x = array_at(x_at, (T, weight.size // scales.size), _CODES)
    out = array_at(out_at, (T, scales.size), elements)
    arguments = x, weight, beginnings, scales, out, np.zeros(1, np.int64)
    run_in_team(_multiply_blocks, arguments, np.int32(num_threads))


@compiled
def _multiply_blocks(
    x: NDArray[np.uint8], weight: NDArray[np.int8], beginnings: NDArray[np.int32], scales: NDArray[np.float32],
    out: Array, next_blocks: Counter,
) -> None:  # fmt: skip
    """Take two blocks at a time, for all rows."""
    T, in_features = x.shape
    out_features = len(scales)
    sums = np.empty(_MOST_ROWS * _BLOCKS * WIDTH, np.float32)
    column = fetch_add(next_blocks, _BLOCKS * WIDTH)
    while column < out_features:
        start = column * in_features
        t = 0
        while t < T:
            first = t * in_features
            if T - t >= 8:
                _sums_of_8(x, first, in_features, weight, start, beginnings, column, sums)
                t = _write(sums, scales, out, t, 8, column)
            elif T - t >= 4:
                _sums_of_4(x, first, in_features, weight, start, beginnings, column, sums)
                t = _write(sums, scales, out, t, 4, column)
            elif T - t >= 2:
                _sums_of_2(x, first, in_features, weight, start, beginnings, column, sums)
                t = _write(sums, scales, out, t, 2, column)
            else:
                _sums_of_1(x, first, in_features, weight, start, beginnings, column, sums)
                t = _write(sums, scales, out, t, 1, column)
        column = fetch_add(next_blocks, _BLOCKS * WIDTH)


@inlined
def _write(
    sums: NDArray[np.float32], scales: NDArray[np.float32], out: Array, t: int, num_rows: int, column: int
) -> int:
    """Multiply the sums of rows from t on by their outputs' scales, store them, and return the row after them."""
    first, second = load(scales, column), load(scales, column + WIDTH)
    for row in range(num_rows):
        at = (t + row) * scales.size + column
        store(out, at, multiply(load(sums, row * 2 * WIDTH), first))
        store(out, at + WIDTH, multiply(load(sums, row * 2 * WIDTH + WIDTH), second))
    return t + num_rows


def _sums_of(num_rows: int) -> Callable[..., None]:
    """(x, first, in, weight, start, beginnings, column, sums): write the sums (rows, 32), rounded to
    float32, of consecutive rows of x from index `first` on, with the two blocks of the weight from `start` on, which
    are the outputs from `column` on."""

    def declare(
        typing: Any, x: Any, first: Any, in_features: Any, weight: Any, start: Any, beginnings: Any, column: Any,
        sums: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _emit_sums(context, builder, signature.args, arguments, num_rows)
            return context.get_dummy_value()

        intp = types.intp
        return types.void(x, intp, intp, weight, intp, beginnings, intp, sums), generate

    sums_of: Callable[..., None] = intrinsic(declare)
    return sums_of


_sums_of_1, _sums_of_2, _sums_of_4, _sums_of_8 = map(_sums_of, (1, 2, 4, 8))


def _emit_sums(context: Any, builder: Any, kinds: Any, arguments: Any, num_rows: int) -> None:
    _, first, in_features, _, start, _, column, _ = arguments
    x, weight, beginnings, sums = (_start_of(context, builder, kinds[i], arguments[i]) for i in (0, 3, 5, 7))
    dot = cgutils.get_or_insert_function(builder.module, _DOT, "llvm.x86.avx512.vpdpbusd.512")

    def constant(value: int) -> ir.Constant:
        return ir.Constant(in_features.type, value)

    def vector_at(bytes_at: Any, index: Any, align: int) -> Any:
        return builder.load(builder.bitcast(builder.gep(bytes_at, [index]), _I32X16.as_pointer()), align=align)

    blocks = range(_BLOCKS)
    totals = []
    for block in blocks:
        index = builder.mul(builder.add(column, constant(block * WIDTH)), constant(4))
        totals.append(vector_at(beginnings, index, 4))
    # Each quad of a pass has sums of its own: one instruction would wait for the other.
    num_quads = 2 if num_rows <= 2 else 1
    beginning = [totals] + [[ir.Constant(_I32X16, [0] * WIDTH) for _ in blocks]] * (num_quads - 1)
    held = [
        [[cgutils.alloca_once_value(builder, beginning[quad][block]) for block in blocks] for quad in range(num_quads)]
        for _ in range(num_rows)
    ]
    block_bytes = builder.mul(in_features, constant(WIDTH))
    with cgutils.for_range(builder, builder.udiv(in_features, constant(_QUAD * num_quads))) as loop:
        for quad in range(num_quads):
            number = builder.add(builder.mul(loop.index, constant(num_quads)), constant(quad))
            line = builder.add(start, builder.mul(number, constant(_LINE)))
            lines = [builder.add(line, builder.mul(block_bytes, constant(block))) for block in blocks]
            weights = [vector_at(weight, index, _LINE) for index in lines]
            for row in range(num_rows):
                index = builder.add(first, builder.mul(in_features, constant(row)))
                index = builder.add(index, builder.mul(number, constant(_QUAD)))
                scalar = builder.load(builder.bitcast(builder.gep(x, [index]), _I32.as_pointer()), align=1)
                inputs = _repeated(builder, scalar)
                for block in blocks:
                    place = held[row][quad][block]
                    builder.store(builder.call(dot, [builder.load(place), inputs, weights[block]]), place)
    for row in range(num_rows):
        for block in blocks:
            total = builder.load(held[row][0][block])
            for quad in range(1, num_quads):
                total = builder.add(total, builder.load(held[row][quad][block]))
            index = constant((row * _BLOCKS + block) * _LINE)
            target = builder.bitcast(builder.gep(sums, [index]), _F32X16.as_pointer())
            builder.store(builder.sitofp(total, _F32X16), target, align=4)


def _start_of(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """The address of an array's first byte."""
    start = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(start, ir.IntType(8).as_pointer())


def _repeated(builder: Any, scalar: Any) -> Any:
    nothing = ir.Constant(_I32X16, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_I32X16, [0] * WIDTH))
