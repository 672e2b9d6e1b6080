"""The arithmetic between int8 matrix products on CPUs: norm and gate leave codes with a scale for each row.

A row's highest magnitude is found in the pass that computes it, and stands for 127. Products give values that wait for
the row's factor (model/scaled_rows.py); it is applied where they are read. A row is computed by one thread in one order
of operations, so it has the same bits whatever its neighbours; a row with a NaN or an infinity gets the scale NaN.
Source: dynamic quantisation by token, as in arXiv 2206.01861.

T tokens in the step, D hidden, F MLP.
"""

import numpy as np
import torch
from torch import Tensor

from model.addresses import address_of, array_at, elements_of, place_of
from model.jit import compiled, inlined, kernel
from model.kernels_cpu import ROWS_AT_ONCE, CpuOps, parts_of, threads_for
from model.matrices_cpu import aligned, round_up
from model.rows_cpu import activated, add_to_residual, factor_of
from model.scaled_rows import Rows, ScaledRows
from model.simd import (
    WIDTH,
    Array,
    absolute,
    fma,
    load_upto,
    max_lanes,
    maximum,
    multiply,
    splat,
    store,
    store_upto,
    sum_lanes,
)
from model.team import Counter, fetch_add, run_in_team

_LEVELS = np.float32(127)
_LEAST = np.float32(1e-20)
"""A row that is nowhere higher counts as zeros: its scale has an inverse all the same."""

_CODES, _FLOATS = elements_of(torch.uint8), elements_of(torch.float32)


class Int8Ops(CpuOps):
    """`Ops` whose rows are `ScaledRows`: values in its dtype come in, codes go out."""

    def add_rms_norm(
        self, residual: Tensor, y: Rows | None, weight: Tensor, eps: float, y_norm: Tensor | None = None
    ) -> ScaledRows:
        T, D = residual.shape
        out = _empty_codes(T, D)
        addend, scales = (None, None) if y is None else parts_of(y)  # (T, D), (T,)
        _add_rms_norm(
            elements_of(self.dtype), T, D, address_of(residual, torch.float32),
            *place_of(addend, self.dtype), *place_of(scales, torch.float32), *place_of(y_norm, torch.float32),
            address_of(weight, torch.float32), eps,
            address_of(out.values, torch.uint8), address_of(out.scales, torch.float32), threads_for(residual),
        )  # fmt: skip
        return out

    def silu_mul(self, gate_up: ScaledRows) -> ScaledRows:
        return _multiply_by_gate(gate_up, is_gelu=False)

    def gelu_mul(self, gate_up: ScaledRows) -> ScaledRows:
        return _multiply_by_gate(gate_up, is_gelu=True)


def quantise(x: Tensor) -> ScaledRows:
    """Return codes for x (T, n), float32 or bfloat16."""
    T, n = x.shape
    out = _empty_codes(T, n)
    _quantise(
        elements_of(x.dtype), T, n, address_of(x, x.dtype),
        address_of(out.values, torch.uint8), address_of(out.scales, torch.float32), threads_for(x),
    )  # fmt: skip
    return out


def _empty_codes(num_rows: int, num_columns: int) -> ScaledRows:
    return ScaledRows(torch.empty(num_rows, num_columns, dtype=torch.uint8), torch.empty(num_rows))


def _multiply_by_gate(gate_up: ScaledRows, is_gelu: bool) -> ScaledRows:
    values, scales = parts_of(gate_up)  # (T, 2F), (T,)
    T, F = values.shape[0], values.shape[1] // 2
    out = _empty_codes(T, F)
    _gate_mul(
        elements_of(values.dtype), T, F, address_of(values, values.dtype), *place_of(scales, torch.float32), is_gelu,
        address_of(out.values, torch.uint8), address_of(out.scales, torch.float32), threads_for(values),
    )  # fmt: skip
    return out


@kernel
def _add_rms_norm(
    elements: Array, T: int, D: int, residual_at: int, y_at: int, y_size: int, y_scales_at: int, y_scales_size: int,
    y_norm_at: int, y_norm_size: int, weight_at: int, eps: float, codes_at: int, scales_at: int, num_threads: int,
) -> None:  # fmt: skip
    residual, weight = array_at(residual_at, (T, D), _FLOATS), array_at(weight_at, (D,), _FLOATS)
    y, y_scales = array_at(y_at, (y_size,), elements), array_at(y_scales_at, (y_scales_size,), _FLOATS)
    y_norm = array_at(y_norm_at, (y_norm_size,), _FLOATS)
    codes, scales = array_at(codes_at, (T, D), _CODES), array_at(scales_at, (T,), _FLOATS)
    arguments = residual, y, y_scales, y_norm, weight, np.float32(eps), codes, scales, np.zeros(1, np.int64)
    run_in_team(_add_rms_norm_rows, arguments, np.int32(num_threads))


@compiled
def _add_rms_norm_rows(
    residual: Array, y: Array, y_scales: Array, y_norm: Array, weight: Array, eps: np.float32,
    codes: Array, scales: Array, next_row: Counter,
) -> None:  # fmt: skip
    T, D = residual.shape
    first = fetch_add(next_row, ROWS_AT_ONCE)
    while first < T:
        for t in range(first, min(first + ROWS_AT_ONCE, T)):
            if y.size:
                add_to_residual(residual, y, factor_of(y_scales, t), y_norm, t * D, D, eps)
            squares = highest = splat(np.float32(0))
            for d in range(0, D, WIDTH):
                x = load_upto(residual, t * D + d, D - d)
                squares = fma(x, x, squares)
                highest = maximum(absolute(multiply(x, load_upto(weight, d, D - d))), highest)
            peak = max(max_lanes(highest), _LEAST)
            # The norm's own factor is the same for all elements, so that no code depends on it.
            for d in range(0, D, WIDTH):
                x = multiply(load_upto(residual, t * D + d, D - d), load_upto(weight, d, D - d))
                store_upto(codes, t * D + d, multiply(x, splat(_LEVELS / peak)), D - d)
            scales[t] = peak / _LEVELS / np.sqrt(sum_lanes(squares) / np.float32(D) + eps)
        first = fetch_add(next_row, ROWS_AT_ONCE)


@kernel
def _gate_mul(
    elements: Array, T: int, F: int, gate_up_at: int, factors_at: int, factors_size: int, is_gelu: bool,
    codes_at: int, scales_at: int, num_threads: int,
) -> None:  # fmt: skip
    gate_up, factors = array_at(gate_up_at, (T, 2 * F), elements), array_at(factors_at, (factors_size,), _FLOATS)
    codes, scales = array_at(codes_at, (T, F), _CODES), array_at(scales_at, (T,), _FLOATS)
    arguments = gate_up, factors, is_gelu, codes, scales, np.zeros(1, np.int64)
    run_in_team(_gate_mul_rows, arguments, np.int32(num_threads))


@compiled
def _gate_mul_rows(
    gate_up: Array, factors: Array, is_gelu: bool, codes: Array, scales: Array, next_row: Counter
) -> None:  # fmt: skip
    T, F = codes.shape
    row = aligned(round_up(F, WIDTH))
    first = fetch_add(next_row, ROWS_AT_ONCE)
    while first < T:
        for t in range(first, min(first + ROWS_AT_ONCE, T)):
            factor = factor_of(factors, t)
            for f in range(0, F, WIDTH):
                gate = multiply(load_upto(gate_up, 2 * t * F + f, F - f), splat(factor))
                up = load_upto(gate_up, (2 * t + 1) * F + f, F - f)
                store(row, f, multiply(activated(gate, is_gelu), up))
            scales[t] = factor * _store_codes(row, 0, F, codes, t * F)
        first = fetch_add(next_row, ROWS_AT_ONCE)


@kernel
def _quantise(
    elements: Array, T: int, n: int, x_at: int, codes_at: int, scales_at: int, num_threads: int
) -> None:  # fmt: skip
    x, codes, scales = (
        array_at(x_at, (T, n), elements),
        array_at(codes_at, (T, n), _CODES),
        array_at(scales_at, (T,), _FLOATS),
    )
    run_in_team(_quantise_rows, (x, codes, scales, np.zeros(1, np.int64)), np.int32(num_threads))


@compiled
def _quantise_rows(x: Array, codes: Array, scales: Array, next_row: Counter) -> None:
    T, n = x.shape
    first = fetch_add(next_row, ROWS_AT_ONCE)
    while first < T:
        for t in range(first, min(first + ROWS_AT_ONCE, T)):
            scales[t] = _store_codes(x, t * n, n, codes, t * n)
        first = fetch_add(next_row, ROWS_AT_ONCE)


@inlined
def _store_codes(x: Array, start: int, count: int, codes: Array, index: int) -> np.float32:
    """Store the codes of `count` elements and return their scale."""
    highest = nothing = splat(np.float32(0))
    for i in range(0, count, WIDTH):
        part = load_upto(x, start + i, count - i)
        highest = maximum(absolute(part), highest)
        nothing = fma(part, splat(np.float32(0)), nothing)  # NaN where an element is not finite
    peak = max(max_lanes(highest), _LEAST)
    for i in range(0, count, WIDTH):
        part = multiply(load_upto(x, start + i, count - i), splat(_LEVELS / peak))
        store_upto(codes, index + i, part, count - i)
    return np.float32(peak / _LEVELS + sum_lanes(nothing))
