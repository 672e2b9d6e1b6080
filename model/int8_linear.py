"""Matrix products in int8: y = W x + b with W in int8, a scale for each output; x in uint8, a scale for each row.

The sums are integers, so a row has the same bits alone and in any batch, and whoever computes them: model/vnni.py where
it can, else oneDNN through torch. They are multiplied by the weights' scales; rows' scales stay with the result, for
whoever reads it (model/scaled_rows.py). Codes have a zero point of 128, for the instructions want unsigned ones.

T tokens in the step.
"""

from typing import Protocol

import torch
from torch import Tensor

from model.lora_cpu import CpuLowRank
from model.scaled_rows import ZERO_POINT, ScaledRows
from model.vnni import VnniWeight, can_multiply

_LEVELS = 127
_TYPICAL_ROWS = 16
"""For which oneDNN chooses the layout; it is used for all."""


class Int8Weight(Protocol):
    """The codes of a weight (out, in), packed for the products of one library."""

    def multiply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return scales ⊙ (W (x - 128)), (T, out) in `dtype`, for x (T, in) uint8."""
        ...


class Int8Linear:
    """An int8 product (CPUs with int8 dot products)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        """Quantise a weight (out, in) of any dtype; the bias (out,) stays in float32. Results are in `dtype`."""
        self.out_features, self.in_features = weight.shape
        self._dtype = dtype
        codes, scales = quantise_weight(weight)
        packed = VnniWeight if can_multiply(*codes.shape) else OneDnnWeight
        self._weight: Int8Weight = packed(codes, scales)
        self._bias = None
        if bias is not None:
            a, b = torch.empty(0, self.in_features), torch.empty(self.out_features, 0)
            self._bias = CpuLowRank(a, b, offset=bias.float())

    def __call__(self, x: ScaledRows) -> ScaledRows:
        y = ScaledRows(self._weight.multiply(x.values, self._dtype), x.scales)
        if self._bias is not None:
            self._bias.add_to(y, x)
        return y


class OneDnnWeight:
    """oneDNN's int8 product on a reordered copy of the weight, for every shape."""

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        """codes (out, in) int8, scales (out,) float32."""
        self._scales = scales
        self._zero_points = torch.zeros(codes.shape[0], dtype=torch.int64)
        self._weight = torch.ops.onednn.qlinear_prepack(codes, [_TYPICAL_ROWS, codes.shape[1]])

    def multiply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, 1.0, ZERO_POINT, self._weight, self._scales, self._zero_points, None, 1.0, 0, dtype, "none", [], "",
        )  # fmt: skip
        return y


def quantise_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 codes (out, in) from -127 to 127 and the scales (out,) float32 that turn them into the weight's."""
    weight = weight.float()
    scales = torch.maximum(weight.amax(dim=1), -weight.amin(dim=1)) / _LEVELS  # (out,)
    scales[scales == 0] = 1
    return (weight / scales.unsqueeze(1)).round_().to(torch.int8), scales
