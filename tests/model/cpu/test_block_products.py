"""The instructions themselves: rows and their scalars at any stride, tiles laid out for AMX, memory asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.cpu.amx import configure_tiles, release_tiles
from model.cpu.block_products import (
    TILE_SHAPES,
    TileProduct,
    ask_for,
    block_bytes,
    rows_1,
    rows_2,
    rows_4,
    rows_16,
    unpack_4,
)
from model.cpu.jit import compiled, compiles_for
from tests.model.block_parts import (
    CONFIGURATION,
    LANES,
    WITH_AMX,
    Floats,
    Rows,
    Tile,
    aligned,
    product,
    random_rows,
    random_tile,
)

needs_vnni = pytest.mark.skipif(not compiles_for("avx512vnni"), reason="the CPU has no AVX-512 VNNI")
SEEDS = st.integers(0, 2**32 - 1)


@compiled
def _product(num_rows: int, bits: int, product: TileProduct, configuration: int) -> None:
    if num_rows == 16:
        configure_tiles(configuration)
        if bits == 4:
            unpack_4(product.weight, product.num_blocks, product.panel)
        rows_16(bits, product)
        release_tiles()
    elif num_rows == 4:
        rows_4(bits, product)
    elif num_rows == 2:
        rows_2(bits, product)
    else:
        rows_1(bits, product)


@compiled
def _unpack(weight: int, num_blocks: int, panel: int) -> None:
    unpack_4(weight, num_blocks, panel)


@compiled
def _ask_for(address: int, num_bytes: int) -> None:
    ask_for(address, num_bytes)


def spread(rows: NDArray[np.generic], gap: int) -> NDArray[np.generic]:
    """The rows (R, …) with `gap` elements of something else after each."""
    flat = rows.reshape(len(rows), -1)
    return np.concatenate([flat, np.full((len(rows), gap), 99, rows.dtype)], axis=1)


def multiply_spread(rows: Rows, tile: Tile, x_gap: int, s_gap: int, start: Floats) -> Floats:
    """Add all rows to `start` at once, their codes and scalars at strides of their own."""
    num_blocks = rows.scales.shape[1]
    codes, scales, sums = spread(rows.codes, x_gap), spread(rows.scales, s_gap), spread(rows.sums, s_gap)
    out, panel, scratch = (
        aligned(start.shape, np.float32),
        aligned((num_blocks, 1024), np.uint8),
        aligned((4096,), "u1"),
    )
    out[:] = start
    product = TileProduct(
        codes.ctypes.data, scales.ctypes.data, sums.ctypes.data, codes.strides[0], scales.strides[0], tile.address,
        num_blocks, out.ctypes.data, panel.ctypes.data, scratch.ctypes.data,
    )  # fmt: skip
    _product(len(start), tile.bits, product, CONFIGURATION.ctypes.data)
    return out


@needs_vnni
@settings(deadline=None, max_examples=200)
@given(
    num_rows=st.sampled_from([1, 2, 4] + [16] * (True in WITH_AMX)),
    bits=st.sampled_from([4, 8]),
    num_blocks=st.integers(1, 20),
    x_gap=st.integers(0, 200),
    s_gap=st.integers(0, 20),
    seed=SEEDS,
)
def test_rows_may_lie_at_any_stride(
    num_rows: int, bits: int, num_blocks: int, x_gap: int, s_gap: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows, tile = random_rows(num_rows, num_blocks, random), random_tile(num_blocks, bits, random)
    start = (random.standard_normal((num_rows, LANES)) * 100).astype(np.float32)
    wanted, tolerance = product(rows, tile, start)
    assert (np.abs(multiply_spread(rows, tile, x_gap, s_gap, start) - wanted) <= tolerance).all()


@needs_vnni
@settings(deadline=None)
@given(st.integers(1, 20), SEEDS)
def test_four_bits_are_laid_out_as_sixteenfold_codes_and_then_codes(num_blocks: int, seed: int) -> None:
    tile = random_tile(num_blocks, 4, np.random.default_rng(seed))
    panel = aligned((num_blocks + 1, 2, 8, LANES, 4), np.uint8)  # block, factor, line, output, input
    panel[:] = 99
    _unpack(tile.address, num_blocks, panel.ctypes.data)
    codes = tile.codes.reshape(LANES, num_blocks, 8, 4).transpose(1, 2, 0, 3)
    assert np.array_equal(panel[:-1, 0], 16 * codes)
    assert np.array_equal(panel[:-1, 1], codes)
    assert (panel[-1] == 99).all()


@pytest.mark.parametrize("num_bytes", [0, 63, 64, 1000])
def test_memory_that_is_asked_for_is_not_changed_and_need_not_exist(num_bytes: int) -> None:
    memory = np.random.default_rng(num_bytes).integers(0, 256, 1024, np.uint8)
    wanted = memory.copy()
    _ask_for(memory.ctypes.data, num_bytes)
    _ask_for(0, num_bytes)
    assert np.array_equal(memory, wanted)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_block_has_the_bytes_that_packing_gives_it(bits: int) -> None:
    assert block_bytes(bits) == random_tile(1, bits, np.random.default_rng(0)).memory.nbytes


def test_tiles_fit_the_registers() -> None:
    assert all(register < 8 and rows <= 16 and size <= 64 for register, (rows, size) in TILE_SHAPES.items())
