"""The arithmetic between the matrix products, fused for CPUs: `Ops` in numba, on views of torch's tensors.

One pass over memory for each of norm, gate and rotary embedding, in float32, rounded once. A row is computed by one thread with
one order of operations, so it has the same bits whatever its neighbours. Knows no weights, no requests.

T tokens in the step, D hidden, F MLP, H query heads, K KV heads, h head size, N blocks, P tokens per block.
"""

import numba
import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor

from model.simd import (
    WIDTH,
    Array,
    add,
    divide,
    exp,
    fma,
    inlined,
    kernel,
    load_upto,
    multiply,
    splat,
    store_upto,
    subtract,
    sum_lanes,
)

_SERIAL_ELEMENTS = 32768
"""Below so many elements one thread is done before a second one would have started."""

_NO_WEIGHT = np.empty(0, np.float32)


class CpuOps:
    """`Ops` for bfloat16 and float32 on CPUs."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._num_threads = num_kernel_threads()

    def add_rms_norm(self, residual: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        assert residual.dtype == weight.dtype == torch.float32
        out = torch.empty(residual.shape, dtype=self.dtype)
        addend = as_array(out if y is None else y)  # (T, D)
        numba.set_num_threads(self._num_threads)
        _add_rms_norm(as_array(residual), addend, y is not None, as_array(weight), eps, as_array(out))
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        out = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2, dtype=gate_up.dtype)
        numba.set_num_threads(self._num_threads)
        _silu_mul(as_array(gate_up), as_array(out))
        return out

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
        norms = [_NO_WEIGHT if weight is None else as_array(weight) for weight in (q_norm, k_norm)]
        numba.set_num_threads(self._num_threads)
        _rope_store(
            as_array(qkv), as_array(cos), as_array(sin), *norms, eps,
            as_array(k_cache), as_array(v_cache), slots.numpy(), as_array(q),
        )  # fmt: skip
        return q


def as_array(tensor: Tensor) -> Array:
    """View a contiguous CPU tensor as a numpy array, bfloat16 as the uint16 of its bits. Raises TypeError for other dtypes."""
    assert tensor.is_contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    if tensor.dtype == torch.float32:
        return tensor.numpy()
    raise TypeError(f"the CPU kernels compute in float32 and bfloat16, not in {tensor.dtype}")


def num_kernel_threads() -> int:
    """As many threads as torch uses, within what numba was started with. numba keeps the number per calling thread, so it is
    set at every call."""
    return min(torch.get_num_threads(), int(numba.config.NUMBA_NUM_THREADS))


@kernel
def _add_rms_norm(residual: Array, y: Array, has_y: bool, weight: Array, eps: float, out: Array) -> None:
    T, D = residual.shape
    if T * D < _SERIAL_ELEMENTS:
        for t in range(T):
            _add_rms_norm_row(residual, y, has_y, weight, np.float32(eps), out, t * D, D)
    else:
        for t in prange(T):
            _add_rms_norm_row(residual, y, has_y, weight, np.float32(eps), out, t * D, D)


@inlined
def _add_rms_norm_row(
    residual: Array, y: Array, has_y: bool, weight: Array, eps: np.float32, out: Array, start: int, D: int
) -> None:
    squares = splat(np.float32(0))
    for d in range(0, D, WIDTH):
        x = load_upto(residual, start + d, D - d)
        if has_y:
            x = add(x, load_upto(y, start + d, D - d))
            store_upto(residual, start + d, x, D - d)
        squares = fma(x, x, squares)
    scale = splat(_rms_scale(sum_lanes(squares), D, eps))
    for d in range(0, D, WIDTH):
        x = multiply(load_upto(residual, start + d, D - d), scale)
        store_upto(out, start + d, multiply(x, load_upto(weight, d, D - d)), D - d)


@inlined
def _rms_scale(square_sum: np.float32, count: int, eps: np.float32) -> np.float32:
    return np.float32(1) / np.sqrt(square_sum / np.float32(count) + eps)


@kernel
def _silu_mul(gate_up: Array, out: Array) -> None:
    T, F = out.shape
    if T * F < _SERIAL_ELEMENTS:
        for t in range(T):
            _silu_mul_row(gate_up, out, t, F)
    else:
        for t in prange(T):
            _silu_mul_row(gate_up, out, t, F)


@inlined
def _silu_mul_row(gate_up: Array, out: Array, t: int, F: int) -> None:
    for f in range(0, F, WIDTH):
        gate = load_upto(gate_up, 2 * t * F + f, F - f)
        up = load_upto(gate_up, (2 * t + 1) * F + f, F - f)
        negated = subtract(splat(np.float32(0)), gate)
        silu = divide(gate, add(splat(np.float32(1)), exp(negated)))
        store_upto(out, t * F + f, multiply(silu, up), F - f)


@kernel
def _rope_store(
    qkv: Array, cos: Array, sin: Array, q_norm: Array, k_norm: Array, eps: float,
    k_cache: Array, v_cache: Array, slots: NDArray[np.int64], q: Array,
) -> None:  # fmt: skip
    T, width = qkv.shape
    if T * width < _SERIAL_ELEMENTS:
        for t in range(T):
            _rope_store_token(qkv, cos, sin, q_norm, k_norm, np.float32(eps), k_cache, v_cache, slots[t], q, t)
    else:
        for t in prange(T):
            _rope_store_token(qkv, cos, sin, q_norm, k_norm, np.float32(eps), k_cache, v_cache, slots[t], q, t)


@inlined
def _rope_store_token(
    qkv: Array, cos: Array, sin: Array, q_norm: Array, k_norm: Array, eps: np.float32,
    k_cache: Array, v_cache: Array, slot: int, q: Array, t: int,
) -> None:  # fmt: skip
    H, h = q.shape[1:]
    K = k_cache.shape[2]
    row, page = t * qkv.shape[1], slot * K * h
    for head in range(H):
        _rotate_head(qkv, row + head * h, cos, sin, t * (h // 2), q_norm, eps, q, (t * H + head) * h, h)
    for head in range(K):
        _rotate_head(qkv, row + (H + head) * h, cos, sin, t * (h // 2), k_norm, eps, k_cache, page + head * h, h)
    for d in range(0, K * h, WIDTH):
        store_upto(v_cache, page + d, load_upto(qkv, row + (H + K) * h + d, K * h - d), K * h - d)


@inlined
def _rotate_head(
    source: Array, start: int, cos: Array, sin: Array, angle: int, norm: Array, eps: np.float32,
    target: Array, index: int, h: int,
) -> None:  # fmt: skip
    """Norm one head where `norm` has weights, rotate each pair (i, i + h/2) by its angle, and store the head."""
    half = h // 2
    scale = splat(np.float32(1))
    if norm.size:
        squares = splat(np.float32(0))
        for d in range(0, h, WIDTH):
            x = load_upto(source, start + d, h - d)
            squares = fma(x, x, squares)
        scale = splat(_rms_scale(sum_lanes(squares), h, eps))
    for d in range(0, half, WIDTH):
        first = load_upto(source, start + d, half - d)
        second = load_upto(source, start + half + d, half - d)
        if norm.size:
            first = multiply(multiply(first, scale), load_upto(norm, d, half - d))
            second = multiply(multiply(second, scale), load_upto(norm, half + d, half - d))
        c, s = load_upto(cos, angle + d, half - d), load_upto(sin, angle + d, half - d)
        rotated = subtract(multiply(first, c), multiply(second, s))
        store_upto(target, index + d, rotated, half - d)
        store_upto(target, index + half + d, add(multiply(second, c), multiply(first, s)), half - d)
