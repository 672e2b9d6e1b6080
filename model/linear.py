"""Matrix products with fixed weights: y = W x + b. Decides how weights are laid out in memory; knows no model.

On CPUs the weights are reordered once into oneDNN's blocked layout. Those products give a row the same bits whatever
its neighbours (compared up to 2048 rows), which plain `linear` does not; serial equivalence rests on it.

T tokens in the step.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from model.backend import Backend


class Linear(Protocol):
    """A fixed linear map. Inputs are contiguous (T, in_features) in the compute dtype."""

    in_features: int
    out_features: int

    def __call__(self, x: Tensor) -> Tensor:
        """Return W x + b, (T, out_features)."""
        ...


def pack_linear(weight: Tensor, bias: Tensor | None, backend: Backend) -> Linear:
    """Lay out a weight (out, in) and an optional bias (out,) of any dtype for `backend`. The originals can be freed."""
    weight = weight.to(backend.device, backend.dtype).contiguous()
    bias = None if bias is None else bias.to(backend.device, backend.dtype).contiguous()
    return PackedLinear(weight, bias) if backend.packed else PlainLinear(weight, bias)


class PlainLinear:
    """`torch.nn.functional.linear` on a weight stored as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class PackedLinear:
    """oneDNN's product on a reordered copy of the weight (CPU; float32 and bfloat16)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(_two_rows(x), self._weight, self._bias, "none", [], "")
        return y[: x.shape[0]]


def _two_rows(x: Tensor) -> Tensor:
    """Give a single row a companion: alone it would take another kernel, which sums a deep product in another order."""
    return F.pad(x, (0, 0, 0, 1)) if x.shape[0] == 1 else x
