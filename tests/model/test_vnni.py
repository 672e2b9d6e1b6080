"""The VNNI product against integer arithmetic, and against oneDNN's bits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.int8_linear import Int8Linear, OneDnnWeight
from model.vnni import VnniWeight, can_multiply

needs_vnni = pytest.mark.skipif(not can_multiply(32, 8), reason="this CPU has no AVX-512 VNNI")
DTYPES = [torch.float32, torch.bfloat16]


def random_operands(T: int, out_features: int, in_features: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (T, in_features), generator=g, dtype=torch.uint8)
    codes = torch.randint(-127, 128, (out_features, in_features), generator=g, dtype=torch.int8)
    return x, codes, torch.rand(out_features, generator=g)


def reference(x: Tensor, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return (((x.long() - 128) @ codes.long().t()).float() * scales).to(dtype)


@needs_vnni
@settings(max_examples=100, deadline=None)
@given(
    T=st.integers(1, 40),
    num_columns=st.integers(1, 12).map(lambda n: 32 * n),
    num_inputs=st.integers(1, 60).map(lambda n: 8 * n),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_of_any_shape_are_those_of_integers(
    T: int, num_columns: int, num_inputs: int, dtype: torch.dtype, seed: int
) -> None:
    x, codes, scales = random_operands(T, num_columns, num_inputs, seed)
    assert torch.equal(VnniWeight(codes, scales).multiply(x, dtype), reference(x, codes, scales, dtype))


@needs_vnni
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T", [1, 16, 100])
@pytest.mark.parametrize(("out_features", "in_features"), [(960, 576), (576, 1536), (3072, 576)])
def test_a_models_products_have_the_bits_of_onednn(
    out_features: int, in_features: int, T: int, dtype: torch.dtype
) -> None:
    x, codes, scales = random_operands(T, out_features, in_features)
    ours, theirs = VnniWeight(codes, scales), OneDnnWeight(codes, scales)
    assert torch.equal(ours.multiply(x, dtype), theirs.multiply(x, dtype))


@needs_vnni
@pytest.mark.parametrize(("code", "weight"), [(0, -127), (0, 127), (255, -127), (255, 127)])
def test_the_largest_sums_are_exact(code: int, weight: int) -> None:
    x = torch.full((5, 65536), code, dtype=torch.uint8)
    codes = torch.full((32, 65536), weight, dtype=torch.int8)
    assert torch.equal(
        VnniWeight(codes, torch.ones(32)).multiply(x, torch.float32), reference(x, codes, torch.ones(32), torch.float32)
    )


@pytest.mark.parametrize(("out_features", "in_features"), [(31, 8), (16, 8), (48, 8), (32, 4), (32, 12), (1, 1)])
def test_shapes_that_are_not_made_of_whole_blocks_are_left_to_onednn(out_features: int, in_features: int) -> None:
    assert not can_multiply(out_features, in_features)


@needs_vnni
def test_a_linear_takes_the_instruction_where_the_shape_allows() -> None:
    _, codes, scales = random_operands(3, 64, 64)
    weight = codes.float() * scales.unsqueeze(1)
    assert isinstance(Int8Linear(weight, None, torch.float32)._weight, VnniWeight)
    assert isinstance(Int8Linear(weight[:60], None, torch.float32)._weight, OneDnnWeight)
