"""Packed weights lie where the products expect them, give back what went in, and quantising is off by half a step."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.cpu.block_weight import BlockWeight, pack_blocks, quantise_blocks

Codes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]
Floats = npt.NDArray[np.float32]

SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 5).map(lambda blocks: 32 * blocks))
BITS = st.sampled_from([4, 8])
SEEDS = st.integers(0, 2**32 - 1)


def random_parts(shape: tuple[int, int], bits: int, seed: int) -> tuple[Codes, Halves, Halves]:
    """Codes, and scales and minima of any sign and size, subnormal ones too."""
    random = np.random.default_rng(seed)
    blocks = shape[0], shape[1] // 32
    sizes = 2.0 ** random.integers(-24, 8, (2, *blocks))
    scales, minima = (random.standard_normal((2, *blocks)) * sizes).astype(np.float16)
    return random.integers(0, 2**bits, shape, dtype=np.uint8), scales, minima


def values_of(codes: Codes, scales: Halves, minima: Halves) -> Floats:
    """What the parts stand for, each step in float32."""
    steps, offsets = (np.repeat(part.astype(np.float32), 32, axis=1) for part in (scales, minima))
    return steps * codes.astype(np.float32) + offsets


def layout(codes: Codes, scales: Halves, minima: Halves, bits: int) -> bytes:
    """The format by whole-array reshapes: tiles of 16 outputs, then blocks, then a header and lines of 64 bytes."""
    rows = -(-len(codes) // 16) * 16
    padding = (0, rows - len(codes)), (0, 0)
    num_blocks = scales.shape[1]
    by_block = np.pad(codes, padding).reshape(-1, 16, num_blocks, 8, 4)
    by_block = by_block.transpose(0, 2, 3, 1, 4)  # tile, block, line, output, byte
    if bits == 4:
        by_block = by_block[:, :, :4] + 16 * by_block[:, :, 4:]
    headers = np.pad(np.stack([scales, minima]), ((0, 0), *padding))
    headers = headers.reshape(2, -1, 16, num_blocks).transpose(1, 3, 0, 2)  # tile, block, part, output
    tiles, blocks = by_block.shape[:2]
    parts = [np.ascontiguousarray(part).reshape(tiles * blocks, -1).view(np.uint8) for part in (headers, by_block)]
    return np.concatenate(parts, axis=1).tobytes()


@settings(deadline=None)
@given(SHAPES, BITS, SEEDS)
def test_tiles_lie_as_the_format_says(shape: tuple[int, int], bits: int, seed: int) -> None:
    parts = random_parts(shape, bits, seed)
    weight = pack_blocks(*parts, bits)
    assert weight.memory.tobytes() == layout(*parts, bits)
    assert (weight.out_features, weight.in_features, weight.bits) == (*shape, bits)
    assert weight.num_bytes == -(-shape[0] // 16) * shape[1] // 32 * {4: 320, 8: 576}[bits]
    assert weight.address == weight.memory.ctypes.data
    assert weight.address % 64 == 0


def test_a_block_of_four_bits_byte_by_byte() -> None:
    codes = np.zeros((2, 32), np.uint8)
    codes[1, 6], codes[1, 22] = 3, 9  # input 6 is byte 2 of line 1, input 22 = 16 + 6 stands above it
    weight = pack_blocks(codes, np.array([[0], [1]], np.float16), np.array([[0], [-2]], np.float16), 4)
    set_bytes = {int(at): int(weight.memory[at]) for at in np.flatnonzero(weight.memory)}
    assert set_bytes == {3: 0x3C, 35: 0xC0, 64 + 64 + 4 + 2: 0x93}  # 1.0 and -2.0 in float16, and two codes


@settings(deadline=None)
@given(SHAPES, BITS, SEEDS)
def test_rows_come_back_in_any_order(shape: tuple[int, int], bits: int, seed: int) -> None:
    parts = random_parts(shape, bits, seed)
    ids = np.random.default_rng(seed).integers(0, shape[0], 2 * shape[0])
    assert np.array_equal(pack_blocks(*parts, bits).rows(ids), values_of(*parts)[ids])


def test_no_rows_are_asked_for() -> None:
    weight = pack_blocks(*random_parts((5, 64), 8, 0), 8)
    assert weight.rows(np.empty(0, np.int64)).shape == (0, 64)


def test_parts_may_be_read_only_strided_or_float32() -> None:
    codes, scales, minima = random_parts((20, 64), 4, 1)
    wanted = layout(codes, scales, minima, 4)
    codes.setflags(write=False)
    assert pack_blocks(codes, scales.astype(np.float32), minima.astype(np.float32), 4).memory.tobytes() == wanted
    strided = np.asfortranarray(codes), np.asfortranarray(scales), np.asfortranarray(minima)
    assert pack_blocks(*strided, 4).memory.tobytes() == wanted


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 65520.0, -1e30])
@pytest.mark.parametrize("part", ["scale", "minimum"])
def test_what_is_not_finite_in_float16_is_refused(part: str, bad: float) -> None:
    codes = np.zeros((3, 64), np.uint8)
    parts = {name: np.ones((3, 2), np.float32) for name in ("scale", "minimum")}
    parts[part][2, 1] = bad
    with pytest.raises(ValueError, match=f"row 2, block 1: the {part} {np.float32(bad)}".replace("+", r"\+")):
        pack_blocks(codes, parts["scale"], parts["minimum"], 8)


@pytest.mark.parametrize("in_features", [1, 31, 40])
def test_a_part_of_a_block_is_refused(in_features: int) -> None:
    message = f"in_features {in_features} is not a multiple of 32"
    with pytest.raises(ValueError, match=message):
        pack_blocks(np.zeros((2, in_features), np.uint8), np.zeros((2, 1), np.float16), np.zeros((2, 1), np.float16), 8)
    with pytest.raises(ValueError, match=message):
        quantise_blocks(torch.zeros(2, in_features))


def steps_of(weight: BlockWeight) -> Floats:
    """The scales (out, in / 32), read back from the tiles' headers."""
    headers = weight.memory.reshape(-1, weight.in_features // 32, 64 + 64 * weight.bits)[:, :, :32].copy()
    by_output = headers.view(np.float16).transpose(0, 2, 1).reshape(-1, weight.in_features // 32)
    return by_output[: weight.out_features].astype(np.float32)


@settings(deadline=None)
@given(SHAPES, st.sampled_from([1e-7, 1e-5, 1e-3, 0.05, 1.0, 300.0]), st.sampled_from([0.0, 1.0, -30.0]), SEEDS)
def test_quantising_is_off_by_half_a_step_at_most(
    shape: tuple[int, int], spread: float, centre: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape) * spread + centre * random.integers(0, 2)
    tensor = torch.from_numpy(values.astype(np.float32))
    weight = quantise_blocks(tensor)
    assert weight.bits == 8
    steps = steps_of(weight)
    found = weight.rows(np.arange(shape[0])).astype(np.float64)
    error = np.abs(found - tensor.double().numpy()).reshape(*steps.shape, 32).max(axis=2)
    lowest, highest = (bound.numpy() for bound in tensor.reshape(*steps.shape, 32).aminmax(dim=2))
    float32_rounding = 2.0**-22 * np.abs(tensor.numpy()).max()
    assert (error <= steps * 0.5001 + float32_rounding).all()
    # Rounding to float16 moves the minimum by 2^-10 of itself and the step by 2^-10 of itself, or by 2^-24 if tiny.
    widened = highest - lowest + np.abs(lowest) * 2.0**-10 + 2.0**-24
    assert (steps <= widened / 255 * (1 + 2.0**-10) * 1.001 + 2.0**-24).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_of_any_float_type_is_quantised_like_its_float32(dtype: torch.dtype) -> None:
    tensor = torch.randn(64, 33).to(dtype).T  # not contiguous either
    assert quantise_blocks(tensor).memory.tobytes() == quantise_blocks(tensor.float().contiguous()).memory.tobytes()


def test_a_constant_that_float16_holds_stays_exact() -> None:
    weight = quantise_blocks(torch.full((17, 32), -0.75))
    assert (weight.rows(np.arange(17)) == -0.75).all()


def test_the_ends_of_float16_are_no_overflow() -> None:
    tensor = torch.full((1, 32), 65504.0)
    tensor[0, ::2] *= -1
    found = torch.from_numpy(quantise_blocks(tensor).rows(np.zeros(1, np.int64)))
    assert (found - tensor).abs().max() <= 2 * 65504 / 255


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_a_weight_that_float16_cannot_hold_is_refused(bad: float) -> None:
    tensor = torch.zeros(3, 96)
    tensor[1, 40] = bad
    with pytest.raises(ValueError, match=r"row 1, block 1: the \w+ \S+ is not finite in float16"):
        quantise_blocks(tensor)
