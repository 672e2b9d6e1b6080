"""The arithmetic between the matrix products: norms, gate, rotary embedding, KV write. Knows no weights, no requests.

`Ops` is the contract and `TorchOps` its reference in plain torch, for any device; `model/cpu/kernels.py` fuses the same
for CPUs. The residual stream is float32; all else is in the compute dtype, computed in float32 and rounded once.
Sources: RMSNorm arXiv 1910.07467, SwiGLU and GEGLU arXiv 2002.05202, GELU arXiv 1606.08415 in its tanh form, rotary
embedding arXiv 2104.09864 in the rotate-half layout.

T tokens in the step, D hidden, F MLP, H query heads, K KV heads, h head size, N blocks, P tokens per block.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class LowRank(Protocol):
    """A change of low rank, ready to be made to what a matrix product gives."""

    num_bytes: int

    def add_to(self, y: Tensor, x: Tensor) -> None:
        """Turn `y` into gain ⊙ y + offset + B (A x), in place, in float32 with one rounding.

        x (T, in), what a matrix product read, and y (T, out), what it gave, are contiguous and in the compute dtype.
        """
        ...


class Ops(Protocol):
    """What the decoder does between matrix products. Built for one compute dtype; treats every row by itself."""

    dtype: torch.dtype
    """The compute dtype."""

    def add_rms_norm(
        self, residual: Tensor, y: Tensor | None, weight: Tensor, eps: float, y_norm: Tensor | None = None
    ) -> Tensor:
        """Add `y` to the residual stream in place and return the RMS norm of the sum, scaled by `weight`.

        residual (T, D) float32, contiguous, modified; y (T, D) compute dtype, None where there is nothing to add;
        weight (D,) float32; with y_norm (D,) float32 it is y's own RMS norm, scaled by that, which is added. Returns
        (T, D) in the compute dtype.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) · up, for gate_up (T, 2F) with the gate in the first F columns, as (T, F) of its dtype."""
        ...

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """Return gelu(gate) · up in the same way, gelu in its tanh form."""
        ...

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
        """Rotate queries and keys, write keys and values of every token into the cache, return the queries.

        qkv (T, (H + 2K) · h) compute dtype; cos, sin (T, h/2) float32, pairing component i with i + h/2; q_norm, k_norm
        (h,) float32 weights of a per-head RMS norm before the rotation, or both None; k_cache, v_cache (N, P, K, h),
        modified at the flat slots (T,) int64, slot = block · P + offset. Returns (T, H, h) in the compute dtype.
        """
        ...

    def low_rank(self, a: Tensor, b: Tensor, gain: Tensor | None = None, offset: Tensor | None = None) -> LowRank:
        """Lay out the factors a (R, in) and b (out, R), gain and offset (out,), float32. R may be 0; a gain that is
        None is 1, an offset 0."""
        ...


class TorchOps:
    """`Ops` in plain torch: the reference on any device, and the path on CUDA."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def add_rms_norm(
        self, residual: Tensor, y: Tensor | None, weight: Tensor, eps: float, y_norm: Tensor | None = None
    ) -> Tensor:
        if y is not None:
            residual += y if y_norm is None else rms_norm(y.float(), y_norm, eps)
        return rms_norm(residual, weight, eps).to(self.dtype)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)  # (T, F) each
        return (F.silu(gate) * up).to(gate_up.dtype)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)  # (T, F) each
        return (F.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)

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
        K, h = k_cache.shape[2:]
        heads = qkv.view(qkv.shape[0], -1, h)  # (T, H + 2K, h)
        H = heads.shape[1] - 2 * K
        q, k, v = heads[:, :H].float(), heads[:, H : H + K].float(), heads[:, H + K :]
        if q_norm is not None and k_norm is not None:
            q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k_cache.view(-1, K, h).index_copy_(0, slots, k.to(k_cache.dtype))
        v_cache.view(-1, K, h).index_copy_(0, slots, v.to(v_cache.dtype))
        return q.to(self.dtype)

    def low_rank(self, a: Tensor, b: Tensor, gain: Tensor | None = None, offset: Tensor | None = None) -> LowRank:
        return TorchLowRank(a, b, gain, offset, self.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x²) + eps) · weight over the last dimension, in float32."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (i, i + h/2) of x (T, heads, h) by the angle whose cosine and sine (T, h/2) are given."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # (T, 1, h/2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RotaryTable:
    """Cosine and sine of each position's rotary angles, computed once and looked up by the step.

    They are computed in pieces of one size, in float32 on the CPU, so that a position's values have the same bits
    whatever step first asked for them.
    """

    _PIECE = 2048

    def __init__(self, frequencies: Tensor, magnitude: float, device: torch.device) -> None:
        """`frequencies` (h/2,) float32; cosine and sine are multiplied by `magnitude`."""
        self._frequencies = frequencies.to("cpu", torch.float32)
        self._magnitude = magnitude
        self._cos = torch.empty(0, len(frequencies), device=device)  # (positions so far, h/2)
        self._sin = torch.empty_like(self._cos)

    def at(self, positions: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Return cosine and sine at positions (T,), all below `end`, as (T, h/2) float32 each."""
        while len(self._cos) < end:
            self._extend()
        return self._cos[positions], self._sin[positions]

    def _extend(self) -> None:
        start = len(self._cos)
        angles = torch.arange(start, start + self._PIECE, dtype=torch.float32)[:, None] * self._frequencies
        cos, sin = angles.cos() * self._magnitude, angles.sin() * self._magnitude
        self._cos = torch.cat((self._cos, cos.to(self._cos.device)))
        self._sin = torch.cat((self._sin, sin.to(self._sin.device)))


class TorchLowRank:
    """`LowRank` in plain torch, on the device of what it is added to.

    In the compute dtype where there are but the two factors; those round A x too.
    """

    def __init__(self, a: Tensor, b: Tensor, gain: Tensor | None, offset: Tensor | None, dtype: torch.dtype) -> None:
        self._plain = gain is None and offset is None
        if not self._plain:
            dtype = torch.float32
        self._a, self._b = a.t().to(dtype), b.t().to(dtype)  # (in, R), (R, out)
        self._gain = b.new_ones(()) if gain is None else gain  # (out,)
        self._offset = b.new_zeros(()) if offset is None else offset  # (out,)
        self.num_bytes = sum(tensor.nbytes for tensor in (self._a, self._b, self._gain, self._offset))

    def add_to(self, y: Tensor, x: Tensor) -> None:
        if self._a.device != x.device:
            self._a, self._b = self._a.to(x.device), self._b.to(x.device)
            self._gain, self._offset = self._gain.to(x.device), self._offset.to(x.device)
        if self._plain:
            y.addmm_(x @ self._a, self._b)
        else:
            y.copy_(torch.addcmul(self._offset, y.float(), self._gain) + x.float() @ self._a @ self._b)
