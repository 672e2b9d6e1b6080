"""The rotary embedding of one head, as a piece of the kernels on CPUs."""

import numpy as np

from model.jit import inlined
from model.rows_cpu import rms_scale
from model.simd import WIDTH, Array, add, load_upto, multiply, splat, store_upto, subtract


@inlined
def rotate_head(
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
