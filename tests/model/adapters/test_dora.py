"""What DoRA measures of the base model, against the weights themselves."""

import pytest
import torch

from model.adapters import dora as adapter_dora
from model.adapters.dora import measure_dora
from model.adapters.tensors import AdapterError, NamedTensor


def named(*shape: int, seed: int) -> NamedTensor:
    return NamedTensor(f"tensor {seed}", torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))


def test_the_gain_at_any_strength_is_that_of_the_adapted_weight() -> None:
    W, a, b, m = named(10, 6, seed=1), named(3, 6, seed=2), named(10, 3, seed=3), named(10, seed=4)
    dora = measure_dora(W.tensor, None, a, b, m, 0.5)
    for strength in (0.0, 0.5, 2.0, -0.7):
        adapted = W.tensor + strength * b.tensor @ a.tensor
        torch.testing.assert_close(dora.gain(strength), m.tensor / adapted.norm(dim=1), rtol=1e-5, atol=1e-6)


def test_large_weights_are_measured_piece_by_piece() -> None:
    rows = adapter_dora._ROWS_AT_ONCE * 2 + 3
    W, a, b, m = named(rows, 4, seed=1), named(2, 4, seed=2), named(rows, 2, seed=3), named(rows, seed=4)
    dora = measure_dora(W.tensor.bfloat16(), m.tensor.half(), a, b, m, 1.0)
    adapted = W.tensor.bfloat16().double() + b.tensor.double() @ a.tensor.double()
    torch.testing.assert_close(dora.gain(1.0), (m.tensor / adapted.norm(dim=1)).float(), rtol=1e-5, atol=1e-6)
    assert dora.base_bias is not None
    assert dora.base_bias.dtype == torch.float32


def test_a_row_of_zeros_is_refused() -> None:
    W, a, b, m = named(5, 6, seed=1), named(3, 6, seed=2), named(5, 3, seed=3), named(5, seed=4)
    W.tensor[2], b.tensor[2] = 0, 0
    with pytest.raises(AdapterError, match=r"tensor 4.* a row of the adapted weight that is zero"):
        measure_dora(W.tensor, None, a, b, m, 1.0)
