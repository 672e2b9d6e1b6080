"""Int8 products against integer arithmetic in numpy's sense: every sum exact, every row alike in every batch."""

import pytest
import torch
from torch import Tensor

from model.backend import choose_backend
from model.int8_linear import Int8Linear, quantise_weight
from model.linear import PackedLinear, pack_linear
from model.scaled_rows import ScaledRows
from tests.model.int8 import integers, meant, needs_int8, random_codes

pytestmark = needs_int8

# A model's shapes, one whose sums need most bits, odd ones.
SHAPES = [(960, 576), (576, 1536), (64, 4096), (7, 33), (1, 1)]
DTYPES = [torch.float32, torch.bfloat16]


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_weight_is_rounded_to_255_levels_of_each_output(shape: tuple[int, int]) -> None:
    weight = rand(*shape) * torch.logspace(-6, 6, shape[0]).unsqueeze(1)
    weight[0] = 0
    codes, scales = quantise_weight(weight)
    assert codes.abs().max() <= 127
    assert (codes[1:].abs().amax(dim=1) == 127).all()
    assert ((codes * scales.unsqueeze(1) - weight).abs() <= 0.5001 * scales.unsqueeze(1)).all()
    assert not codes[0].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 2, 5, 40])
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_sums_are_those_of_integers(out_features: int, in_features: int, num_rows: int, dtype: torch.dtype) -> None:
    weight, x = rand(out_features, in_features), random_codes(num_rows, in_features)
    codes, scales = quantise_weight(weight)
    y = Int8Linear(weight, None, dtype)(x)
    expected = (integers(x) @ codes.long().t()).float() * scales
    assert torch.equal(y.values, expected.to(dtype))
    assert y.scales is x.scales


@pytest.mark.parametrize("extreme", [1, 255])
def test_the_largest_sums_do_not_overflow(extreme: int) -> None:
    x = ScaledRows(torch.full((3, 16384), extreme, dtype=torch.uint8), torch.ones(3))
    y = Int8Linear(torch.ones(8, 16384), None, torch.float32)(x)
    torch.testing.assert_close(y.values, torch.full((3, 8), 16384.0 * (extreme - 128)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_rows_are_alike_in_every_batch(
    out_features: int, in_features: int, dtype: torch.dtype, with_bias: bool
) -> None:
    linear = Int8Linear(rand(out_features, in_features), rand(out_features, seed=1) if with_bias else None, dtype)
    x = random_codes(130, in_features)
    together = linear(x).values
    for count in (*range(1, 65), 100):
        rows = torch.arange(3, 3 + count)
        assert torch.equal(linear(x[rows]).values, together[rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bias_is_not_multiplied_by_the_rows_factor(dtype: torch.dtype) -> None:
    weight, bias, x = rand(24, 32), rand(24, seed=1) * 50, random_codes(5, 32)
    without, got = Int8Linear(weight, None, torch.float32)(x), Int8Linear(weight, bias, dtype)(x)
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(meant(got), meant(without) + bias.double(), atol=tolerance * 500, rtol=tolerance)


def test_the_backend_chooses_int8_for_layers_and_not_for_the_head() -> None:
    backend = choose_backend("cpu", "int8")
    assert isinstance(pack_linear(rand(4, 8), None, backend), Int8Linear)
    assert isinstance(pack_linear(rand(4, 8), None, backend.in_head_dtype()), PackedLinear)
