"""The kernel of what a list changes in a product against float64, and its bits alone and in any batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.cpu.lora import CpuLowRank
from model.layers import TorchLowRank

DTYPES = [torch.float32, torch.bfloat16]


def factors(rank: int, in_features: int, out_features: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rank, in_features, generator=generator), torch.randn(out_features, rank, generator=generator)


def rows(count: int, width: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=200, deadline=None)  # the first example compiles the kernel
@given(
    count=st.integers(1, 70),
    rank=st.integers(0, 70),
    in_features=st.integers(1, 80),
    out_features=st.integers(1, 80),
    has_gain=st.booleans(),
    has_offset=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
)
def test_computes_gain_times_y_plus_offset_plus_the_product_of_the_factors(
    count: int,
    rank: int,
    in_features: int,
    out_features: int,
    has_gain: bool,
    has_offset: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    a, b = factors(rank, in_features, out_features, seed)
    x, y = rows(count, in_features, dtype, seed + 1), rows(count, out_features, dtype, seed + 2)
    gain, offset = rows(2, out_features, torch.float32, seed + 3)
    exact = x.double() @ a.double().t() @ b.double().t()
    exact += y.double() * (gain.double() if has_gain else 1) + (offset.double() if has_offset else 0)
    size = 1 + float(exact.abs().max())
    arguments = a, b, gain if has_gain else None, offset if has_offset else None
    for low_rank in (CpuLowRank(*arguments), TorchLowRank(*arguments, dtype)):
        got = y.clone()
        low_rank.add_to(got, x)
        if isinstance(low_rank, TorchLowRank) and not (has_gain or has_offset) and dtype != torch.float32:
            continue  # it rounds factors and A x too
        tolerance = 1e-5 if dtype == torch.float32 else 2.0**-8
        assert float((got.double() - exact).abs().max()) <= tolerance * size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_features", [1100, 3000, 4096, 5001, 9000])
@pytest.mark.parametrize("count", [1, 18, 70])
def test_columns_are_right_however_they_are_shared_out(count: int, out_features: int, dtype: torch.dtype) -> None:
    a, b = factors(3, 20, out_features)
    x, y = rows(count, 20, dtype, 1), rows(count, out_features, dtype, 2)
    gain, offset = rows(2, out_features, torch.float32, 3)
    exact = y.double() * gain.double() + offset.double() + x.double() @ a.double().t() @ b.double().t()
    got = y.clone()
    CpuLowRank(a, b, gain, offset).add_to(got, x)
    tolerance = 1e-5 if dtype == torch.float32 else 2.0**-8
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gain_and_offset_of_one_and_zero_change_no_bit(dtype: torch.dtype) -> None:
    a, b = factors(8, 40, 50)
    x, y = rows(5, 40, dtype, 1), rows(5, 50, dtype, 2)
    plain, with_both = y.clone(), y.clone()
    CpuLowRank(a, b).add_to(plain, x)
    CpuLowRank(a, b, torch.ones(50), torch.zeros(50)).add_to(with_both, x)
    assert torch.equal(plain, with_both)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_gain_and_offset", [False, True])
@pytest.mark.parametrize(
    ("in_features", "out_features", "rank"), [(576, 960, 24), (1536, 576, 8), (40, 24, 3), (40, 24, 0), (64, 9000, 4)]
)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    dtype: torch.dtype, in_features: int, out_features: int, rank: int, has_gain_and_offset: bool
) -> None:
    gain, offset = rows(2, out_features, torch.float32, 5) if has_gain_and_offset else (None, None)
    low_rank = CpuLowRank(*factors(rank, in_features, out_features), gain, offset)
    x, y = rows(130, in_features, dtype, 1), rows(130, out_features, dtype, 2)
    together = y.clone()
    low_rank.add_to(together, x)
    for count in (1, 2, 3, 5, 16, 17, 40, 100):
        part = y[7 : 7 + count].clone()
        low_rank.add_to(part, x[7 : 7 + count])
        assert torch.equal(part, together[7 : 7 + count])


def test_no_rows_are_no_work() -> None:
    CpuLowRank(*factors(3, 20, 2000)).add_to(torch.empty(0, 2000), torch.empty(0, 20))


def test_what_lies_beside_the_rows_is_left_alone() -> None:
    low_rank = CpuLowRank(*factors(3, 20, 9))
    y = torch.full((6, 9), 5.0)
    low_rank.add_to(y[2:4], torch.ones(2, 20))
    assert torch.equal(y[:2], torch.full((2, 9), 5.0))
    assert torch.equal(y[4:], torch.full((2, 9), 5.0))
