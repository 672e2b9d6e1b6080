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

from model.arrays import as_array
from model.jit import compiled, inlined, kernel
from model.kernels_cpu import ROWS_AT_ONCE, CpuOps, as_arrays, threads_for
from model.matrices_cpu import aligned, round_up
from model.rows_cpu import NONE, activated, add_to_residual, factor_of
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

_NOTHING = np.empty((0, 0), np.uint16)
"""No addend."""


class Int8Ops(CpuOps):
    """`Ops` whose rows are `ScaledRows`: values in its dtype come in, codes go out."""

    def add_rms_norm(
        self, residual: Tensor, y: Rows | None, weight: Tensor, eps: float, y_norm: Tensor | None = None
    ) -> ScaledRows:
        assert residual.dtype == weight.dtype == torch.float32
        out = _empty_codes(*residual.shape)
        addend, scales = (_NOTHING, NONE) if y is None else as_arrays(y)  # (T, D), (T,)
        _add_rms_norm(
            as_array(residual), addend, scales, NONE if y_norm is None else as_array(y_norm), as_array(weight), eps,
            as_array(out.values), as_array(out.scales), threads_for(residual),
        )  # fmt: skip
        return out

    def silu_mul(self, gate_up: ScaledRows) -> ScaledRows:
        return _multiply_by_gate(gate_up, is_gelu=False)

    def gelu_mul(self, gate_up: ScaledRows) -> ScaledRows:
        return _multiply_by_gate(gate_up, is_gelu=True)


def quantise(x: Tensor) -> ScaledRows:
    """Return codes for x (T, n), float32 or bfloat16."""
    out = _empty_codes(*x.shape)
    _quantise(as_array(x), as_array(out.values), as_array(out.scales), threads_for(x))
    return out


def _empty_codes(num_rows: int, num_columns: int) -> ScaledRows:
    return ScaledRows(torch.empty(num_rows, num_columns, dtype=torch.uint8), torch.empty(num_rows))


def _multiply_by_gate(gate_up: ScaledRows, is_gelu: bool) -> ScaledRows:
    out = _empty_codes(gate_up.values.shape[0], gate_up.values.shape[1] // 2)
    values, scales = as_arrays(gate_up)
    _gate_mul(values, scales, is_gelu, as_array(out.values), as_array(out.scales), threads_for(gate_up.values))
    return out


@kernel
def _add_rms_norm(
    residual: Array, y: Array, y_scales: Array, y_norm: Array, weight: Array, eps: float,
    codes: Array, scales: Array, num_threads: int,
) -> None:  # fmt: skip
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
    gate_up: Array, factors: Array, is_gelu: bool, codes: Array, scales: Array, num_threads: int
) -> None:  # fmt: skip
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
def _quantise(x: Array, codes: Array, scales: Array, num_threads: int) -> None:
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
