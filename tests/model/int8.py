"""What tests of int8 share: where it can be computed, and what rows stand for."""

import pytest
import torch
from torch import Tensor

from model.backend import BackendError, choose_backend
from model.scaled_rows import ZERO_POINT, ScaledRows


def _is_computed_here() -> bool:
    try:
        choose_backend("cpu", "int8")
    except BackendError:
        return False
    return True


IS_INT8_COMPUTED = _is_computed_here()
needs_int8 = pytest.mark.skipif(not IS_INT8_COMPUTED, reason="this CPU has no int8 dot products")


def integers(rows: ScaledRows) -> Tensor:
    """The integers (T, n) int64 of codes."""
    return rows.values.long() - ZERO_POINT


def meant(rows: ScaledRows) -> Tensor:
    """What rows stand for, (T, n) float64."""
    is_code = rows.values.dtype == torch.uint8
    values = integers(rows).double() if is_code else rows.values.double()
    return values * rows.scales.double().unsqueeze(1)


def random_codes(num_rows: int, num_columns: int, seed: int = 0) -> ScaledRows:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 256, (num_rows, num_columns), generator=generator, dtype=torch.uint8)
    return ScaledRows(values, torch.rand(num_rows, generator=generator) + 0.01)


def random_values(num_rows: int, num_columns: int, dtype: torch.dtype, seed: int = 0) -> ScaledRows:
    """Rows as products give them: large numbers, each row with its small factor."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_rows, num_columns, generator=generator) * 1000
    return ScaledRows(values.to(dtype), (torch.rand(num_rows, generator=generator) + 0.1) / 1000)
