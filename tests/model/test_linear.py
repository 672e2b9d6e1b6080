"""Both layouts of a fixed linear map against torch; packed rows have the same bits in every batch."""

import pytest
import torch
from torch import Tensor

from model.backend import Backend, choose_backend, reference_backend
from model.linear import PackedLinear, PlainLinear, pack_linear

# A model's shapes, the deep ones where a single row would be summed in another order; adapters' skinny ones; odd ones.
SHAPES = [(576, 960), (1536, 576), (4096, 64), (576, 16), (16, 960), (7, 33)]
DTYPES = [torch.float32, torch.bfloat16]


def cpu(dtype: torch.dtype) -> Backend:
    return choose_backend("cpu", str(dtype).removeprefix("torch."))


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    y = x.double() @ weight.double().t()
    return y if bias is None else y + bias.double()


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["packed", "plain"])
def test_multiplies(layout: str, dtype: torch.dtype, num_rows: int, with_bias: bool) -> None:
    weight, bias = rand(48, 32, dtype=dtype), rand(48, dtype=dtype, seed=1) if with_bias else None
    x = rand(num_rows, 32, dtype=dtype, seed=2)
    linear = (PackedLinear if layout == "packed" else PlainLinear)(weight, bias)
    tolerance = 30 * torch.finfo(dtype).eps
    assert (linear.in_features, linear.out_features) == (32, 48)
    got = linear(x)
    assert got.shape == (num_rows, 48)
    assert got.is_contiguous()
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact(weight, bias, x), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_rows_are_alike_in_every_batch(dtype: torch.dtype, in_features: int, out_features: int) -> None:
    linear = PackedLinear(rand(out_features, in_features, dtype=dtype), rand(out_features, dtype=dtype, seed=1))
    x = rand(130, in_features, dtype=dtype, seed=2)
    together = linear(x)
    for count in (*range(1, 33), 64, 100):
        rows = slice(3, 3 + count)
        assert torch.equal(linear(x[rows]), together[rows])


def test_packing_converts_to_the_compute_dtype() -> None:
    weight, x = rand(8, 16, dtype=torch.float16), rand(3, 16, dtype=torch.bfloat16, seed=1)
    for backend in (cpu(torch.bfloat16), reference_backend(torch.bfloat16)):
        got = pack_linear(weight, rand(8), backend)(x)
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.double(), exact(weight.bfloat16(), rand(8).bfloat16(), x), atol=0.05, rtol=0.02)


def test_the_backend_chooses_the_layout() -> None:
    assert isinstance(pack_linear(rand(4, 4), None, reference_backend()), PlainLinear)
    expected = PackedLinear if cpu(torch.float32).packed else PlainLinear
    assert isinstance(pack_linear(rand(4, 4), None, cpu(torch.float32)), expected)


def test_an_unpacked_weight_keeps_its_storage() -> None:
    weight = rand(8, 16)
    linear = pack_linear(weight, None, reference_backend())
    x = rand(2, 16, seed=1)
    before = linear(x)
    weight.mul_(2.0)
    assert torch.equal(linear(x), 2.0 * before)
