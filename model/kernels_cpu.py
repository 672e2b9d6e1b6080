"""The arithmetic between the matrix products, fused for CPUs: `Ops` in numba, on views of torch's tensors.

One pass over memory for each of norm, gate and rotary embedding, in float32, rounded once. A row is computed by one
thread in one order of operations, so it has the same bits whatever its neighbours. Knows no weights, no requests.

T tokens in the step, D hidden, F MLP, H query heads, K KV heads, h head size, N blocks, P tokens per block.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.arrays import as_array
from model.jit import compiled, inlined, kernel
from model.layers import LowRank
from model.lora_cpu import CpuLowRank
from model.simd import (
    WIDTH,
    Array,
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
from model.team import Counter, fetch_add, run_in_team

_ALONE = 32768
"""Below so many elements one thread is done before a second one would have begun."""
_ROWS_AT_ONCE = 4
"""Rows that a thread takes from the counter which the threads of a kernel share."""
_GELU_LINEAR = np.float32(2 * math.sqrt(2 / math.pi))
_GELU_CUBIC = np.float32(2 * math.sqrt(2 / math.pi) * 0.044715)
"""1 + tanh(u) = 2 / (1 + exp(-2u)), and gelu's u is √(2/π) · (x + 0.044715 x³)."""

_NO_WEIGHT = np.empty(0, np.float32)


class CpuOps:
    """`Ops` for bfloat16 and float32 on CPUs."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def add_rms_norm(
        self, residual: Tensor, y: Tensor | None, weight: Tensor, eps: float, y_norm: Tensor | None = None
    ) -> Tensor:
        assert residual.dtype == weight.dtype == torch.float32
        out = torch.empty(residual.shape, dtype=self.dtype)
        addend = as_array(out if y is None else y)  # (T, D)
        _add_rms_norm(
            as_array(residual), addend, y is not None, _NO_WEIGHT if y_norm is None else as_array(y_norm),
            as_array(weight), eps, as_array(out), _threads_for(out),
        )  # fmt: skip
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return _multiply_by_gate(gate_up, is_gelu=False)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        return _multiply_by_gate(gate_up, is_gelu=True)

    def rope_store(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        k_cache: Tensor,
        v_cache: Tensor,
        slots: Tensor,
    ) -> Tensor:
        T, h, K = qkv.shape[0], k_cache.shape[3], k_cache.shape[2]
        assert k_cache.dtype == v_cache.dtype == qkv.dtype == self.dtype
        q = torch.empty(T, qkv.shape[1] // h - 2 * K, h, dtype=self.dtype)
        _rope_store(
            as_array(qkv), as_array(cos), as_array(sin),
            _NO_WEIGHT if q_norm is None else as_array(q_norm), _NO_WEIGHT if k_norm is None else as_array(k_norm), eps,
            as_array(k_cache), as_array(v_cache), slots.numpy(), as_array(q), _threads_for(qkv),
        )  # fmt: skip
        return q

    def low_rank(self, a: Tensor, b: Tensor, gain: Tensor | None = None, offset: Tensor | None = None) -> LowRank:
        return CpuLowRank(a, b, gain, offset)


def _multiply_by_gate(gate_up: Tensor, is_gelu: bool) -> Tensor:
    out = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2, dtype=gate_up.dtype)
    _gate_mul(as_array(gate_up), is_gelu, as_array(out), _threads_for(gate_up))
    return out


def _threads_for(tensor: Tensor) -> int:
    return 1 if tensor.numel() < _ALONE else torch.get_num_threads()


@kernel
def _add_rms_norm(
    residual: Array, y: Array, has_y: bool, y_norm: Array, weight: Array, eps: float, out: Array, num_threads: int
) -> None:
    arguments = residual, y, has_y, y_norm, weight, np.float32(eps), out, np.zeros(1, np.int64)
    run_in_team(_add_rms_norm_rows, arguments, np.int32(num_threads))


@compiled
def _add_rms_norm_rows(
    residual: Array, y: Array, has_y: bool, y_norm: Array, weight: Array, eps: np.float32, out: Array, next_row: Counter
) -> None:
    T, D = residual.shape
    first = fetch_add(next_row, _ROWS_AT_ONCE)
    while first < T:
        for t in range(first, min(first + _ROWS_AT_ONCE, T)):
            if has_y and y_norm.size:
                _add_normed_row(residual, y, y_norm, t * D, D, eps)
            elif has_y:
                _add_row(residual, y, t * D, D)
            scale = splat(_rms_scale(residual, t * D, D, eps))
            for d in range(0, D, WIDTH):
                x = multiply(load_upto(residual, t * D + d, D - d), scale)
                store_upto(out, t * D + d, multiply(x, load_upto(weight, d, D - d)), D - d)
        first = fetch_add(next_row, _ROWS_AT_ONCE)


@inlined
def _add_row(residual: Array, y: Array, start: int, D: int) -> None:
    for d in range(0, D, WIDTH):
        x = add(load_upto(residual, start + d, D - d), load_upto(y, start + d, D - d))
        store_upto(residual, start + d, x, D - d)


@inlined
def _add_normed_row(residual: Array, y: Array, y_norm: Array, start: int, D: int, eps: np.float32) -> None:
    scale = splat(_rms_scale(y, start, D, eps))
    for d in range(0, D, WIDTH):
        normed = multiply(multiply(load_upto(y, start + d, D - d), scale), load_upto(y_norm, d, D - d))
        store_upto(residual, start + d, add(load_upto(residual, start + d, D - d), normed), D - d)


@inlined
def _rms_scale(x: Array, start: int, count: int, eps: np.float32) -> np.float32:
    """1 / sqrt(mean of squares + eps) of `count` elements."""
    squares = splat(np.float32(0))
    for i in range(0, count, WIDTH):
        part = load_upto(x, start + i, count - i)
        squares = fma(part, part, squares)
    mean = sum_lanes(squares) / np.float32(count)
    return np.float32(np.float32(1) / np.sqrt(mean + eps))


@kernel
def _gate_mul(gate_up: Array, is_gelu: bool, out: Array, num_threads: int) -> None:
    run_in_team(_gate_mul_rows, (gate_up, is_gelu, out, np.zeros(1, np.int64)), np.int32(num_threads))


@compiled
def _gate_mul_rows(gate_up: Array, is_gelu: bool, out: Array, next_row: Counter) -> None:
    T, F = out.shape
    first = fetch_add(next_row, _ROWS_AT_ONCE)
    while first < T:
        for t in range(first, min(first + _ROWS_AT_ONCE, T)):
            for f in range(0, F, WIDTH):
                gate = load_upto(gate_up, 2 * t * F + f, F - f)
                up = load_upto(gate_up, (2 * t + 1) * F + f, F - f)
                # Both are gate / (1 + exp(-slope · gate)).
                slope = splat(np.float32(1))
                if is_gelu:
                    slope = fma(multiply(gate, gate), splat(_GELU_CUBIC), splat(_GELU_LINEAR))
                negated = subtract(splat(np.float32(0)), multiply(slope, gate))
                activated = divide(gate, add(splat(np.float32(1)), exp(negated)))
                store_upto(out, t * F + f, multiply(activated, up), F - f)
        first = fetch_add(next_row, _ROWS_AT_ONCE)


@kernel
def _rope_store(
    qkv: Array, cos: Array, sin: Array, q_norm: Array, k_norm: Array, eps: float,
    k_cache: Array, v_cache: Array, slots: NDArray[np.int64], q: Array, num_threads: int,
) -> None:  # fmt: skip
    arguments = (
        qkv, cos, sin, q_norm, k_norm, np.float32(eps), k_cache, v_cache, slots, q, np.zeros(1, np.int64)
    )  # fmt: skip
    run_in_team(_rope_store_rows, arguments, np.int32(num_threads))


@compiled
def _rope_store_rows(
    qkv: Array, cos: Array, sin: Array, q_norm: Array, k_norm: Array, eps: np.float32,
    k_cache: Array, v_cache: Array, slots: NDArray[np.int64], q: Array, next_row: Counter,
) -> None:  # fmt: skip
    T, H, h = q.shape
    K = k_cache.shape[2]
    first = fetch_add(next_row, _ROWS_AT_ONCE)
    while first < T:
        for t in range(first, min(first + _ROWS_AT_ONCE, T)):
            row, page = t * (H + 2 * K) * h, slots[t] * K * h
            for i in range(H):
                _rotate_head(qkv, row + i * h, cos, sin, t, q_norm, eps, q, (t * H + i) * h, h)
            for i in range(K):
                _rotate_head(qkv, row + (H + i) * h, cos, sin, t, k_norm, eps, k_cache, page + i * h, h)
            for d in range(0, K * h, WIDTH):
                store_upto(v_cache, page + d, load_upto(qkv, row + (H + K) * h + d, K * h - d), K * h - d)
        first = fetch_add(next_row, _ROWS_AT_ONCE)


@inlined
def _rotate_head(
    source: Array, start: int, cos: Array, sin: Array, t: int, norm: Array, eps: np.float32,
    target: Array, index: int, h: int,
) -> None:  # fmt: skip
    """Norm one head where `norm` has weights, rotate each pair (i, i + h/2) by token t's angle, and store the head."""
    half = h // 2
    scale = splat(_rms_scale(source, start, h, eps) if norm.size else np.float32(1))
    for d in range(0, half, WIDTH):
        count = half - d
        first, second = load_upto(source, start + d, count), load_upto(source, start + half + d, count)
        if norm.size:
            first = multiply(multiply(first, scale), load_upto(norm, d, count))
            second = multiply(multiply(second, scale), load_upto(norm, half + d, count))
        c, s = load_upto(cos, t * half + d, count), load_upto(sin, t * half + d, count)
        store_upto(target, index + d, subtract(multiply(first, c), multiply(second, s)), count)
        store_upto(target, index + half + d, add(multiply(second, c), multiply(first, s)), count)
