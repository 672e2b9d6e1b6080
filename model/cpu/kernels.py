"""The arithmetic between the matrix products, fused for CPUs: `Ops` in numba, on views of torch's tensors.

One pass over memory for each of norm, gate and rotary embedding, in float32, rounded once. A row is computed by one
thread in one order of operations, so it has the same bits whatever its neighbours. Knows no weights, no requests.

T tokens in the step, D hidden, F MLP, H query heads, K KV heads, h head size, N blocks, P tokens per block.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.cpu.addresses import address_of, array_at, elements_of, place_of
from model.cpu.arrays import as_array
from model.cpu.jit import compiled, kernel
from model.cpu.lora import CpuLowRank
from model.cpu.rotary import rope_store_row
from model.cpu.rows import NONE, activated, add_to_residual, rms_scale
from model.cpu.simd import WIDTH, Array, load_upto, multiply, splat, store_upto
from model.cpu.team import Counter, fetch_add, run_in_team
from model.layers import LowRank

_ALONE = 32768
"""Below so many elements one thread is done before a second one would have begun."""
ROWS_AT_ONCE = 4
"""Rows that a thread takes from the counter which the threads of a kernel share."""

_FLOATS, _SLOTS = elements_of(torch.float32), elements_of(torch.int64)


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
            as_array(residual), addend, y is not None, NONE if y_norm is None else as_array(y_norm),
            as_array(weight), eps, as_array(out), threads_for(out),
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
        N, P, K, h = k_cache.shape
        T, H = qkv.shape[0], qkv.shape[1] // h - 2 * K
        assert v_cache.shape == k_cache.shape
        dtype = self.dtype
        q = torch.empty(T, H, h, dtype=dtype)
        _rope_store(
            elements_of(dtype), T, H, h, N, P, K, address_of(qkv, dtype),
            address_of(cos, torch.float32), address_of(sin, torch.float32),
            *place_of(q_norm, torch.float32), *place_of(k_norm, torch.float32), eps,
            address_of(k_cache, dtype), address_of(v_cache, dtype), address_of(slots, torch.int64),
            address_of(q, dtype), threads_for(q),
        )  # fmt: skip
        return q

    def low_rank(self, a: Tensor, b: Tensor, gain: Tensor | None = None, offset: Tensor | None = None) -> LowRank:
        return CpuLowRank(a, b, gain, offset)


def threads_for(tensor: Tensor) -> int:
    """Return how many threads are worth while for a pass over `tensor`."""
    return 1 if tensor.numel() < _ALONE else torch.get_num_threads()


def _multiply_by_gate(gate_up: Tensor, is_gelu: bool) -> Tensor:
    out = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2, dtype=gate_up.dtype)
    _gate_mul(as_array(gate_up), is_gelu, as_array(out), threads_for(gate_up))
    return out


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
    first = fetch_add(next_row, ROWS_AT_ONCE)
    while first < T:
        for t in range(first, min(first + ROWS_AT_ONCE, T)):
            if has_y:
                add_to_residual(residual, y, y_norm, t * D, D, eps)
            scale = splat(rms_scale(residual, t * D, D, eps))
            for d in range(0, D, WIDTH):
                x = multiply(load_upto(residual, t * D + d, D - d), scale)
                store_upto(out, t * D + d, multiply(x, load_upto(weight, d, D - d)), D - d)
        first = fetch_add(next_row, ROWS_AT_ONCE)


@kernel
def _gate_mul(gate_up: Array, is_gelu: bool, out: Array, num_threads: int) -> None:
    run_in_team(_gate_mul_rows, (gate_up, is_gelu, out, np.zeros(1, np.int64)), np.int32(num_threads))


@compiled
def _gate_mul_rows(gate_up: Array, is_gelu: bool, out: Array, next_row: Counter) -> None:
    T, F = out.shape
    first = fetch_add(next_row, ROWS_AT_ONCE)
    while first < T:
        for t in range(first, min(first + ROWS_AT_ONCE, T)):
            for f in range(0, F, WIDTH):
                gate = load_upto(gate_up, 2 * t * F + f, F - f)
                up = load_upto(gate_up, (2 * t + 1) * F + f, F - f)
                store_upto(out, t * F + f, multiply(activated(gate, is_gelu), up), F - f)
        first = fetch_add(next_row, ROWS_AT_ONCE)


@kernel
def _rope_store(
    elements: Array, T: int, H: int, h: int, N: int, P: int, K: int, qkv_at: int,
    cos_at: int, sin_at: int, q_norm_at: int, q_norm_size: int, k_norm_at: int, k_norm_size: int, eps: float,
    k_cache_at: int, v_cache_at: int, slots_at: int, q_at: int, num_threads: int,
) -> None:  # fmt: skip
    qkv, q = array_at(qkv_at, (T, (H + 2 * K) * h), elements), array_at(q_at, (T, H, h), elements)
    cos, sin = array_at(cos_at, (T, h // 2), _FLOATS), array_at(sin_at, (T, h // 2), _FLOATS)
    q_norm, k_norm = array_at(q_norm_at, (q_norm_size,), _FLOATS), array_at(k_norm_at, (k_norm_size,), _FLOATS)
    k_cache, v_cache = array_at(k_cache_at, (N, P, K, h), elements), array_at(v_cache_at, (N, P, K, h), elements)
    slots = array_at(slots_at, (T,), _SLOTS)
    arguments = qkv, cos, sin, q_norm, k_norm, np.float32(eps), k_cache, v_cache, slots, q, np.zeros(1, np.int64)
    run_in_team(_rope_store_rows, arguments, np.int32(num_threads))


@compiled
def _rope_store_rows(
    qkv: Array, cos: Array, sin: Array, q_norm: Array, k_norm: Array, eps: np.float32,
    k_cache: Array, v_cache: Array, slots: NDArray[np.int64], q: Array, next_row: Counter,
) -> None:  # fmt: skip
    T, H, h = q.shape
    K = k_cache.shape[2]
    first = fetch_add(next_row, ROWS_AT_ONCE)
    while first < T:
        for t in range(first, min(first + ROWS_AT_ONCE, T)):
            rope_store_row(qkv, cos, sin, t, q_norm, k_norm, eps, k_cache, v_cache, slots[t], q, H, K, h)
        first = fetch_add(next_row, ROWS_AT_ONCE)
