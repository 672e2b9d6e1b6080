"""Rows that wait for a factor of their own: what int8 matrix products read and what they give. Knows no kernels.

The factor of a product's row is that of its input, so nobody multiplies before the next kernel reads the row anyway.

T tokens in the step.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

Rows: TypeAlias = Any
"""What passes between matrix products and the operations around them: a Tensor (T, n) in the compute dtype, or
`ScaledRows` on a backend that multiplies in int8. Each backend's parts agree on it, and nobody else looks inside."""

ZERO_POINT = 128
"""Stands for 0 among the codes."""


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """Row t stands for scales[t] · values[t]."""

    values: Tensor
    """(T, n): uint8 codes 1 … 255 with zero point 128, which products read; or the compute dtype, which they give."""
    scales: Tensor
    """(T,) float32."""

    def __getitem__(self, rows: Tensor) -> "ScaledRows":
        """Return the rows with these indices (S,) int64."""
        return ScaledRows(self.values[rows], self.scales[rows])
