"""What DoRA needs to know of the base model's weight, measured once when an adapter is loaded (see `Dora`).

R rank; `in` and `out` are the module's features.
"""

import torch
from torch import Tensor

from model.adapters.adapter import Dora
from model.adapters.tensors import AdapterError, NamedTensor

_ROWS_AT_ONCE = 4096
"""Of W in float32: the head has as many rows as the vocabulary has tokens."""


def measure_dora(
    weight: Tensor, bias: Tensor | None, a: NamedTensor, b: NamedTensor, magnitude: NamedTensor, factor: float
) -> Dora:
    """Return the DoRA of the delta B A on the module of `weight` (out, in) and `bias` (out,).

    Raises AdapterError where a row of W + factor · BA is zero: it has no direction that a magnitude could stretch.
    """
    A = a.tensor.float()  # (R, in)
    gram = A.double() @ A.double().T  # (R, R)
    base_sq, cross, delta_sq = [], [], []
    for first in range(0, weight.shape[0], _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        # W A in float32 is as exact as PEFT's own norm, and W in float64 would take most of the time of loading.
        W, B = weight[rows].float(), b.tensor[rows].double()
        base_sq.append(torch.linalg.vector_norm(W, dim=1, dtype=torch.float64).square())
        cross.append(2 * (B * (W @ A.T).double()).sum(dim=1))
        delta_sq.append(((B @ gram) * B).sum(dim=1))
    dora = Dora(
        magnitude=magnitude.tensor.float(),
        base_sq=torch.cat(base_sq),
        cross=torch.cat(cross),
        delta_sq=torch.cat(delta_sq),
        base_bias=None if bias is None else bias.float(),
    )
    if not bool(torch.isfinite(dora.gain(factor)).all()):
        raise AdapterError(f"tensor '{magnitude.name}' scales a row of the adapted weight that is zero")
    return dora
