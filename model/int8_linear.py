"""Matrix products in int8: y = W x + b with W in int8, a scale for each output; x in uint8, a scale for each row.

The sums are integers, so a row has the same bits alone and in any batch. oneDNN, through torch, multiplies them by the
weights' scales; rows' scales stay with the result, for whoever reads it (model/scaled_rows.py). It wants codes with a
zero point of 128: for signed ones it has a slow reference kernel only.

T tokens in the step.
"""

import torch
from torch import Tensor

from model.lora_cpu import CpuLowRank
from model.scaled_rows import ZERO_POINT, ScaledRows

_LEVELS = 127
_TYPICAL_ROWS = 16
"""For which oneDNN chooses the layout; it is used for all."""


class Int8Linear:
    """oneDNN's int8 product on a reordered copy of the weight (CPUs with int8 dot products)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        """Quantise a weight (out, in) of any dtype; the bias (out,) stays in float32. Results are in `dtype`."""
        self.out_features, self.in_features = weight.shape
        self._dtype = dtype
        codes, self._scales = quantise_weight(weight)
        self._zero_points = torch.zeros(self.out_features, dtype=torch.int64)
        self._weight = torch.ops.onednn.qlinear_prepack(codes, [_TYPICAL_ROWS, self.in_features])
        self._bias = None
        if bias is not None:
            a, b = torch.empty(0, self.in_features), torch.empty(self.out_features, 0)
            self._bias = CpuLowRank(a, b, offset=bias.float())

    def __call__(self, x: ScaledRows) -> ScaledRows:
        values = torch.ops.onednn.qlinear_pointwise(
            x.values, 1.0, ZERO_POINT, self._weight, self._scales, self._zero_points, None,
            1.0, 0, self._dtype, "none", [], "",
        )  # fmt: skip
        y = ScaledRows(values, x.scales)
        if self._bias is not None:
            self._bias.add_to(y, x)
        return y


def quantise_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 codes (out, in) from -127 to 127 and the scales (out,) float32 that turn them into the weight's."""
    weight = weight.float()
    scales = torch.linalg.vector_norm(weight, torch.inf, dim=1) / _LEVELS  # (out,)
    scales[scales == 0] = 1
    return (weight / scales.unsqueeze(1)).round_().to(torch.int8), scales
