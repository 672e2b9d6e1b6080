"""The rotary embedding of one token, as a piece of the kernels on CPUs.

H query heads, K KV heads, h head size.
"""

import numpy as np

from model.cpu.jit import inlined
from model.cpu.rows import rms_scale
from model.cpu.simd import WIDTH, Array, add, load_upto, multiply, splat, store_upto, subtract


@inlined
def rope_store_row(
    qkv: Array, cos: Array, sin: Array, t: int, q_norm: Array, k_norm: Array, eps: np.float32,
    keys: Array, values: Array, slot: int, q: Array, H: int, K: int, h: int,
) -> None:  # fmt: skip
    """Rotate token t's queries from qkv (T, (H + 2K) · h) to q (T, H, h), its keys to the cache, with its values."""
    row, page = t * (H + 2 * K) * h, slot * K * h
    for i in range(H):
        _rotate_head(qkv, row + i * h, cos, sin, t, q_norm, eps, q, (t * H + i) * h, h)
    for i in range(K):
        _rotate_head(qkv, row + (H + i) * h, cos, sin, t, k_norm, eps, keys, page + i * h, h)
    for d in range(0, K * h, WIDTH):
        store_upto(values, page + d, load_upto(qkv, row + (H + K) * h + d, K * h - d), K * h - d)


@inlined
def _rotate_head(
    source: Array, start: int, cos: Array, sin: Array, t: int, norm: Array, eps: np.float32,
    target: Array, index: int, h: int,
) -> None:  # fmt: skip
    """Norm one head where `norm` has weights, rotate each pair (i, i + h/2) by token t's angle, and store the head."""
    half = h // 2
    scale = splat(rms_scale(source, start, h, eps) if norm.size else np.float32(1))
    for d in range(0, half, WIDTH):
        count = half - d
        first, second = load_upto(source, start + d, count), load_upto(source, start + half + d, count)
        if norm.size:
            first = multiply(multiply(first, scale), load_upto(norm, d, count))
            second = multiply(multiply(second, scale), load_upto(norm, half + d, count))
        c, s = load_upto(cos, t * half + d, count), load_upto(sin, t * half + d, count)
        store_upto(target, index + d, subtract(multiply(first, c), multiply(second, s)), count)
        store_upto(target, index + half + d, add(multiply(second, c), multiply(first, s)), count)
