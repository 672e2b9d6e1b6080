"""Codes of block-quantised tensors stand for what the gguf package's dequantisation gives."""

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

from model.checkpoint.gguf_blocks import BlockCodes, block_codes, has_blocks

Bytes = npt.NDArray[np.uint8]

EXACT = {Type.Q4_0: 4, Type.Q4_1: 4, Type.Q5_0: 8, Type.Q5_1: 8, Type.Q8_0: 8}
ROUNDED = {Type.Q4_K: 4, Type.Q5_K: 8}
BITS = EXACT | ROUNDED
"""Of a code."""
NUM_FACTORS = {kind: 1 if kind in (Type.Q4_0, Type.Q5_0, Type.Q8_0) else 2 for kind in BITS}
"""float16 numbers that a block begins with."""


def random_tensor(kind: Type, out_features: int, num_blocks: int, seed: int, largest: float = 1.0) -> Bytes:
    """Random bytes (out, bytes of a row), read-only like a mapped file, with factors of at most `largest`."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (out_features * num_blocks, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    factors = random.uniform(-largest, largest, (len(blocks), NUM_FACTORS[kind])).astype(np.float16)
    factors[random.random(factors.shape) < 0.1] *= np.float16(1e-5)  # subnormal
    blocks[:, : 2 * NUM_FACTORS[kind]] = factors.view(np.uint8)
    rows = blocks.reshape(out_features, -1)
    rows.setflags(write=False)
    return rows


def shape_of(kind: Type, stored: Bytes) -> tuple[int, int]:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return len(stored), stored.shape[1] // block_bytes * block_size


def codes_of(kind: Type, stored: Bytes) -> BlockCodes:
    shape = shape_of(kind, stored)
    found = block_codes(kind, stored, shape)
    assert found is not None
    assert found.codes.shape == shape
    assert found.scales.shape == found.minima.shape == (shape[0], shape[1] // 32)
    assert found.scales.dtype == found.minima.dtype == np.float16
    assert found.bits == BITS[kind]
    assert found.codes.max() < 2**found.bits
    return found


def spread(blocks: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    return np.repeat(blocks.astype(np.float32), 32, axis=1)


@pytest.mark.parametrize("kind", EXACT)
@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_codes_lose_nothing(kind: Type, out_features: int, num_blocks: int, seed: int) -> None:
    stored = random_tensor(kind, out_features, num_blocks, seed)
    found = codes_of(kind, stored)
    values = spread(found.scales) * found.codes.astype(np.float32) + spread(found.minima)
    assert np.array_equal(values, gguf.dequantize(stored, kind))


@pytest.mark.parametrize("kind", ROUNDED)
@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_codes_of_k_types_lose_what_float16_rounds_away(
    kind: Type, out_features: int, num_super_blocks: int, seed: int
) -> None:
    stored = random_tensor(kind, out_features, num_super_blocks, seed)
    found = codes_of(kind, stored)
    steps, minima = spread(found.scales).astype(np.float64), spread(found.minima).astype(np.float64)
    error = np.abs(steps * found.codes + minima - gguf.dequantize(stored, kind))
    largest_code = {Type.Q4_K: 15, Type.Q5_K: 31}[kind]
    # Each product is rounded to 11 bits; the oracle rounds too, in float32.
    assert (error <= (np.abs(steps) * largest_code + np.abs(minima)) * (2.0**-11 + 2.0**-22)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", BITS)
def test_a_damaged_factor_leaves_no_codes(kind: Type, bad: float) -> None:
    stored = random_tensor(kind, 3, 2, 0).copy()
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    for factor in range(NUM_FACTORS[kind]):
        damaged = stored.copy()
        damaged[1, block_bytes + 2 * factor : block_bytes + 2 * factor + 2] = np.array([bad], np.float16).view(np.uint8)
        assert block_codes(kind, damaged, shape_of(kind, damaged)) is None


@pytest.mark.parametrize("kind", [kind for kind in BITS if NUM_FACTORS[kind] == 1 or kind in ROUNDED])
def test_a_product_beyond_float16_leaves_no_codes(kind: Type) -> None:
    stored = random_tensor(kind, 16, 4, 0, largest=60000.0)
    assert block_codes(kind, stored, shape_of(kind, stored)) is None


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q6_K, Type.Q2_K, Type.IQ4_NL, Type.TQ1_0])
def test_other_types_have_no_codes(kind: Type) -> None:
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    stored = np.zeros((1, block_bytes * 8), np.uint8)
    assert not has_blocks(kind)
    assert block_codes(kind, stored, shape_of(kind, stored)) is None
