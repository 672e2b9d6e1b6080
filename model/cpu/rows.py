"""Pieces of the kernels between matrix products, on one row each: residual sums, RMS norms, gates. Inlined there."""

import math

import numpy as np

from model.cpu.jit import inlined
from model.cpu.simd import (
    WIDTH,
    Array,
    F32x16,
    add,
    divide,
    exp,
    fma,
    load_upto,
    multiply,
    splat,
    store_upto,
    subtract,
    sum_lanes,
)

_GELU_LINEAR = np.float32(2 * math.sqrt(2 / math.pi))
_GELU_CUBIC = np.float32(2 * math.sqrt(2 / math.pi) * 0.044715)
"""1 + tanh(u) = 2 / (1 + exp(-2u)), and gelu's u is √(2/π) · (x + 0.044715 x³)."""

NONE = np.empty(0, np.float32)
"""No weights, no gain, or no offset."""


@inlined
def add_to_residual(residual: Array, y: Array, y_norm: Array, start: int, D: int, eps: np.float32) -> None:
    """residual += y, or its RMS norm scaled by y_norm where that has weights; D elements from `start` on."""
    scale = splat(rms_scale(y, start, D, eps) if y_norm.size else np.float32(1))
    for d in range(0, D, WIDTH):
        change = load_upto(y, start + d, D - d)
        if y_norm.size:
            change = multiply(multiply(change, scale), load_upto(y_norm, d, D - d))
        store_upto(residual, start + d, add(load_upto(residual, start + d, D - d), change), D - d)


@inlined
def rms_scale(x: Array, start: int, count: int, eps: np.float32) -> np.float32:
    """1 / sqrt(mean of squares + eps) of `count` elements."""
    squares = splat(np.float32(0))
    for i in range(0, count, WIDTH):
        part = load_upto(x, start + i, count - i)
        squares = fma(part, part, squares)
    mean = sum_lanes(squares) / np.float32(count)
    return np.float32(np.float32(1) / np.sqrt(mean + eps))


@inlined
def activated(gate: F32x16, is_gelu: bool) -> F32x16:
    """silu(gate) or gelu(gate): both are gate / (1 + exp(-slope · gate))."""
    slope = splat(np.float32(1))
    if is_gelu:
        slope = fma(multiply(gate, gate), splat(_GELU_CUBIC), splat(_GELU_LINEAR))
    negated = subtract(splat(np.float32(0)), multiply(slope, gate))
    return divide(gate, add(splat(np.float32(1)), exp(negated)))
