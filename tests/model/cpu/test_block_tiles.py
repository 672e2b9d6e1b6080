"""A tile of weights gives each row what float64 gives, in the same bits whatever the row's company and instructions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.cpu.amx import configure_tiles, release_tiles
from model.cpu.block_rows import LIMIT
from model.cpu.block_tiles import BlockRows, add_tile, multiply_tile, scratch_bytes, tile_bytes, tile_scratch
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
    rows_of,
    tile_of,
    with_odd_row,
)

pytestmark = pytest.mark.skipif(not compiles_for("avx512vnni"), reason="the CPU has no AVX-512 VNNI")

SEEDS = st.integers(0, 2**32 - 1)
BITS = st.sampled_from([4, 8])
MAX_COUNT = 40
GUARD = np.float32(-12345)
GUARD_ROWS = 16
GUARD_BYTES = 256


@compiled
def _run(
    rows: BlockRows,
    first: int,
    count: int,
    weight: int,
    bits: int,
    out: int,
    memory: int,
    configuration: int,
    adds: bool,
) -> None:
    if configuration:
        configure_tiles(configuration)
    scratch = tile_scratch(memory, configuration != 0)
    if adds:
        add_tile(rows, first, count, weight, bits, out, scratch)
    else:
        multiply_tile(rows, first, count, weight, bits, out, scratch)
    if configuration:
        release_tiles()


@compiled
def _tile_bytes(bits: int, num_blocks: int) -> int:
    return tile_bytes(bits, num_blocks)


@compiled
def _scratch_bytes(num_blocks: int) -> int:
    return scratch_bytes(num_blocks)


def run(rows: Rows, first: int, count: int, tile: Tile, has_amx: bool, start: Floats | None) -> Floats:
    """Rows first … first + count - 1 added to `start` (count, 16), or by themselves; (count, 16).

    Also asserts that nothing is written outside whole sixteens of rows and the scratch memory.
    """
    num_rows = -(-count // 16) * 16
    out = aligned((num_rows + 2 * GUARD_ROWS, LANES), np.float32)
    out[:] = GUARD
    out[GUARD_ROWS : GUARD_ROWS + count] = np.nan if start is None else start
    scratch_size = _scratch_bytes(rows.scales.shape[1])
    scratch = aligned((scratch_size + GUARD_BYTES,), np.uint8)
    scratch[:] = 0xAB
    _run(
        rows.place,
        first,
        count,
        tile.address,
        tile.bits,
        out.ctypes.data + out.strides[0] * GUARD_ROWS,
        scratch.ctypes.data,
        CONFIGURATION.ctypes.data if has_amx else 0,
        start is not None,
    )
    assert (out[:GUARD_ROWS] == GUARD).all()
    assert (out[GUARD_ROWS + num_rows :] == GUARD).all()
    assert (scratch[scratch_size:] == 0xAB).all()
    return out[GUARD_ROWS : GUARD_ROWS + count].copy()


def random_start(num_rows: int, random: np.random.Generator) -> Floats:
    return (random.standard_normal((num_rows, LANES)) * 100).astype(np.float32)


def one_by_one(rows: Rows, tile: Tile, start: Floats) -> Floats:
    """Each row alone, without AMX."""
    return np.concatenate([run(rows, row, 1, tile, False, start[row : row + 1]) for row in range(len(start))])


def assert_same_bits(got: Floats, wanted: Floats) -> None:
    assert np.array_equal(got.view(np.int32), wanted.view(np.int32))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_blocks", [1, 2, 18, 48])
@settings(deadline=None, max_examples=5)
@given(seed=SEEDS)
def test_any_number_of_rows_is_the_product_in_float64_and_each_has_the_bits_that_it_has_alone(
    num_blocks: int, bits: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows, tile = random_rows(MAX_COUNT + 32, num_blocks, random), random_tile(num_blocks, bits, random)
    start = random_start(MAX_COUNT + 16, random)
    alone = one_by_one(rows, tile, start)
    wanted, tolerance = product(rows.first(len(start)), tile, start)
    assert (np.abs(alone - wanted) <= tolerance).all()
    for count in range(1, MAX_COUNT + 1):
        for first in (0, 1, 5, 16):
            for has_amx in WITH_AMX:
                got = run(rows, first, count, tile, has_amx, start[first : first + count])
                assert_same_bits(got, alone[first : first + count])


@settings(deadline=None)
@given(BITS, st.integers(1, 20), st.integers(1, MAX_COUNT), st.sampled_from(WITH_AMX), SEEDS)
def test_multiplying_writes_over_what_is_there(
    bits: int, num_blocks: int, count: int, has_amx: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows, tile = random_rows(48, num_blocks, random), random_tile(num_blocks, bits, random)
    nothing = np.zeros((count, LANES), np.float32)
    got = run(rows, 0, count, tile, has_amx, None)
    assert_same_bits(got, run(rows, 0, count, tile, has_amx, nothing))
    wanted, tolerance = product(rows.first(count), tile, nothing)
    assert (np.abs(got - wanted) <= tolerance).all()


@settings(deadline=None)
@given(BITS, st.integers(1, 20), st.integers(1, 20), st.integers(1, MAX_COUNT), st.sampled_from(WITH_AMX), SEEDS)
def test_some_inputs_and_then_the_others_give_the_bits_of_all_at_once(
    bits: int, begin: int, rest: int, count: int, has_amx: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    num_blocks = begin + rest
    rows, tile = random_rows(48, num_blocks, random), random_tile(num_blocks, bits, random)
    start = random_start(count, random)
    between = run(rows.blocks(0, begin), 0, count, tile.blocks(0, begin), has_amx, start)
    in_parts = run(rows.blocks(begin, num_blocks), 0, count, tile.blocks(begin, num_blocks), has_amx, between)
    assert_same_bits(in_parts, run(rows, 0, count, tile, has_amx, start))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("count", [1, 2, 4, 16, 23])
@settings(deadline=None, max_examples=10)
@given(seed=SEEDS)
def test_sums_in_a_block_are_exact_up_to_the_largest_integers_and_codes(count: int, bits: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    ends = [LIMIT, -LIMIT, LIMIT - 1, 1 - LIMIT, 2023, 2024, -2024, -2025, 7, 8, -8, -9, 1, -1, 0]
    integers = random.choice(ends, (48, 1, 32))
    integers[0], integers[1], integers[2, 0, ::2], integers[2, 0, 1::2] = LIMIT, -LIMIT, LIMIT, -LIMIT
    codes = random.choice([0, 1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1], (LANES, 1, 32))
    codes[0], codes[1, 0, ::2], codes[1, 0, 1::2] = 2**bits - 1, 2**bits - 1, 0
    ones, no_sums = np.ones((48, 1), np.float32), np.zeros((48, 1), np.float32)
    tile = tile_of(codes, np.ones((LANES, 1), np.float16), np.zeros((LANES, 1), np.float16), bits)
    wanted = integers[:, 0] @ codes[:, 0].T  # below 2^24, so that float32 holds them
    for has_amx in WITH_AMX:
        got = run(rows_of(integers, ones, no_sums), 0, count, tile, has_amx, None)
        assert np.array_equal(got.astype(np.int64), wanted[:count])


@settings(deadline=None)
@given(BITS, st.integers(1, MAX_COUNT), st.sampled_from(WITH_AMX), st.data(), SEEDS)
def test_a_row_that_is_no_number_leaves_its_neighbours_their_bits(
    bits: int, count: int, has_amx: bool, data: st.DataObject, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows, tile = random_rows(48, 5, random), random_tile(5, bits, random)
    odd = data.draw(st.integers(0, 47), label="row that is no number")
    start = random_start(count, random)
    wanted = run(rows, 0, count, tile, has_amx, start)
    got = run(with_odd_row(rows, odd, data.draw(st.integers(0, 4), label="block")), 0, count, tile, has_amx, start)
    others = np.arange(count) != odd
    assert_same_bits(got[others], wanted[others])
    assert np.isnan(got[~others]).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_blocks", [1, 2, 18, 48])
def test_a_tile_has_the_bytes_that_packing_gives_it(num_blocks: int, bits: int) -> None:
    tile = random_tile(num_blocks, bits, np.random.default_rng(0))
    assert _tile_bytes(bits, num_blocks) == tile.memory.nbytes
