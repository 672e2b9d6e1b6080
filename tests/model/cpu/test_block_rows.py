"""Rows become integers of 12 bits as plain numpy makes them, and what is no number stays none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.cpu.block_rows import LIMIT, quantise_block
from model.cpu.jit import compiled

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

SEEDS = st.integers(0, 2**32 - 1)


@compiled
def _quantise(source: int, codes: int, scales: int, sums: int, num_blocks: int) -> None:
    for b in range(num_blocks):
        quantise_block(source + 128 * b, codes + 64 * b, scales + 4 * b, sums + 4 * b)


def quantise(x: Floats) -> tuple[Integers, Integers, Floats, Floats]:
    """High and low parts (blocks, 32), scales and sums (blocks,) of x (blocks, 32)."""
    codes, scales, sums = np.full((len(x), 64), 99, np.int8), *np.full((2, len(x)), -1, np.float32)
    _quantise(x.ctypes.data, codes.ctypes.data, scales.ctypes.data, sums.ctypes.data, len(x))
    high, low = codes[:, :32].astype(np.int64), codes[:, 32:].astype(np.int64)
    return high, low, scales, sums


def random_blocks(num_blocks: int, seed: int) -> Floats:
    """Blocks of sizes from 1e-30 to 1e30, some with a few large values, some with zeros."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((num_blocks, 32)) * 10.0 ** random.uniform(-30, 30, (num_blocks, 1))
    values *= np.where(random.random(values.shape) < 0.05, 100, 1)
    values[random.random(values.shape) < 0.1] = 0
    return values.astype(np.float32)


def assert_is_the_reference(x: Floats) -> None:
    largest = np.abs(x).max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest > 0, np.float32(LIMIT) / largest, np.float32(0))
    integers = np.rint(x * inverse).astype(np.int64)
    high, low, scales, sums = quantise(x)
    assert np.array_equal(16 * high + low, integers)
    assert np.abs(high).max() <= 127
    assert low.min() >= -8
    assert low.max() <= 7
    # The reciprocal of 2032 is rounded, and the product with it.
    np.testing.assert_allclose(scales, largest[:, 0].astype(np.float64) / LIMIT, rtol=2.0**-22, atol=0)
    with np.errstate(over="ignore"):
        assert np.array_equal(sums, scales * integers.sum(axis=1).astype(np.float32))


@settings(deadline=None)
@given(num_blocks=st.integers(1, 40), seed=SEEDS)
def test_a_block_is_its_largest_value_over_2032_times_the_nearest_integers(num_blocks: int, seed: int) -> None:
    assert_is_the_reference(random_blocks(num_blocks, seed))


@settings(deadline=None)
@given(seed=SEEDS)
def test_no_value_is_off_by_more_than_half_a_step(seed: int) -> None:
    x = random_blocks(40, seed)
    high, low, scales, _ = quantise(x)
    steps = scales[:, None].astype(np.float64)
    error = np.abs((16 * high + low) * steps - x)
    float32_rounding = LIMIT * 2.0**-22
    assert (error <= steps * (0.5 + float32_rounding)).all()


def test_ties_go_to_the_even_integer() -> None:
    x = np.arange(-16, 16, dtype=np.float32)[None] + np.float32(0.5)
    x[0, 0] = LIMIT  # a step of 1
    high, low, *_ = quantise(x)
    assert (16 * high + low)[0, 1:].tolist() == [2 * round((value - 0.5) / 2 + 0.25) for value in x[0, 1:].tolist()]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("place", [0, 15, 16, 31])
def test_the_largest_value_may_stand_anywhere_and_be_negative(place: int, sign: int) -> None:
    x = np.random.default_rng(place).uniform(-1, 1, (1, 32)).astype(np.float32)
    x[0, place] = sign * 3
    high, low, *_ = quantise(x)
    assert (high[0, place], low[0, place]) == (127 * sign, 0)
    assert_is_the_reference(x)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_are_zeros(zero: float) -> None:
    high, low, scales, sums = quantise(np.full((3, 32), zero, np.float32))
    assert not high.any()
    assert not low.any()
    assert scales.tolist() == sums.tolist() == [0, 0, 0]


@pytest.mark.parametrize("size", [1e-35, float(np.finfo(np.float32).max)])
def test_the_ends_of_what_float32_holds_are_like_the_rest(size: float) -> None:
    x = (np.random.default_rng(0).uniform(-1, 1, (20, 32)) * size).astype(np.float32)
    x[:, 3] = size
    assert_is_the_reference(x)


@settings(deadline=None)
@given(exponent=st.integers(-149, -118), seed=SEEDS)
def test_what_is_too_small_for_a_step_adds_nothing_that_can_be_seen(exponent: int, seed: int) -> None:
    """Below 2^-117 the reciprocal of the largest value is no float32."""
    x = (np.random.default_rng(seed).uniform(-1, 1, (20, 32)) * 2.0**exponent).astype(np.float32)
    high, low, scales, sums = quantise(x)
    wanted = x.sum(axis=1, dtype=np.float64)
    assert (np.abs((16 * high + low) * scales[:, None].astype(np.float64) - x) <= np.abs(x)).all()
    assert (np.abs(sums - wanted) <= 32 * 2.0**exponent).all()


@pytest.mark.parametrize("odd", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("others", [0.0, 1.0, 3e38])
@pytest.mark.parametrize("place", [0, 15, 16, 31])
def test_a_block_that_holds_no_number_has_the_scale_nan_and_its_neighbours_their_own(
    place: int, others: float, odd: float
) -> None:
    x = np.random.default_rng(place).standard_normal((3, 32)).astype(np.float32)
    wanted = np.column_stack(quantise(x))
    x[1] = others
    x[1, place] = odd
    got = np.column_stack(quantise(x))
    assert np.isnan(got[1, 64:]).all()
    assert np.array_equal(got[[0, 2]], wanted[[0, 2]])


def test_two_infinities_of_different_signs_are_no_number_either() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, 4], x[0, 20] = np.inf, -np.inf
    _, _, scales, sums = quantise(x)
    assert np.isnan(scales[0])
    assert np.isnan(sums[0])
