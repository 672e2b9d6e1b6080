"""B (A x) of a tile is what float64 gives, in the same bits whatever a row's company and instructions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.cpu.amx import configure_tiles, release_tiles
from model.cpu.jit import compiled, compiles_for
from model.cpu.rank_products import (
    RANK_ROW_BYTES,
    RankRows,
    multiply_ranks,
    pack_ranks,
    rank_tile_bytes,
    store_ranks,
)
from model.cpu.simd import Array, load
from tests.model.block_parts import CONFIGURATION, LANES, WITH_AMX, Floats, aligned

pytestmark = pytest.mark.skipif(not compiles_for("avx512f"), reason="the CPU has no AVX-512")

Packed = NDArray[np.uint16]
SEEDS = st.integers(0, 2**32 - 1)
MAX_COUNT = 40
GUARD = np.float32(-12345)


@compiled
def _store(x: Array, address: int, num_tiles: int, num_rows: int) -> None:
    rows = RankRows(address, num_tiles)
    for row in range(num_rows):
        for tile in range(num_tiles):
            store_ranks(rows, row, tile, load(x, (row * num_tiles + tile) * LANES))


@compiled
def _multiply(address: int, num_tiles: int, first: int, count: int, weight: int, out: int, configuration: int) -> None:
    if configuration:
        configure_tiles(configuration)
    multiply_ranks(RankRows(address, num_tiles), first, count, weight, out, configuration != 0)
    if configuration:
        release_tiles()


@compiled
def _tile_bytes(num_tiles: int) -> int:
    return rank_tile_bytes(num_tiles)


def stored(x: Floats) -> Floats:
    """Rows (R, 16 · tiles) as the kernels read them."""
    num_tiles = x.shape[1] // LANES
    memory = aligned((len(x) + 16, num_tiles * RANK_ROW_BYTES // 4), np.float32)
    _store(x.reshape(-1), memory.ctypes.data, num_tiles, len(x))
    return memory


def multiply(memory: Floats, first: int, count: int, b: Packed, tile: int, has_amx: bool) -> Floats:
    """What a tile of packed B gives for some rows, (count, 16). Also asserts that nothing else is written."""
    num_tiles = b.shape[1]
    num_rows = -(-count // 16) * 16
    out = aligned((num_rows + 32, LANES), np.float32)
    out[:] = GUARD
    weight = b.ctypes.data + tile * _tile_bytes(num_tiles)
    configuration = CONFIGURATION.ctypes.data if has_amx else 0
    _multiply(memory.ctypes.data, num_tiles, first, count, weight, out[16:].ctypes.data, configuration)
    assert (out[:16] == GUARD).all()
    assert (out[16 + num_rows :] == GUARD).all()
    return out[16 : 16 + count].copy()


def one_by_one(memory: Floats, count: int, b: Packed, tile: int) -> Floats:
    """Each row alone, without AMX."""
    return np.concatenate([multiply(memory, row, 1, b, tile, False) for row in range(count)])


def assert_same_bits(got: Floats, wanted: Floats) -> None:
    assert np.array_equal(got.view(np.int32), wanted.view(np.int32))


def random_values(shape: tuple[int, int], least: float, random: np.random.Generator) -> Floats:
    """Normal numbers of many sizes, down to 10 to the power of `least`."""
    return (random.standard_normal(shape) * 10.0 ** random.uniform(least, 4, shape)).astype(np.float32)


@pytest.mark.parametrize("rank", [1, 15, 16, 17, 64])
@settings(deadline=None, max_examples=5)
@given(seed=SEEDS)
def test_any_number_of_rows_is_the_product_in_float64_and_each_has_the_bits_that_it_has_alone(
    rank: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    num_ranks = -(-rank // LANES) * LANES
    x = np.zeros((MAX_COUNT + 16, num_ranks), np.float32)
    x[:, :rank] = random_values((len(x), rank), -6, random)
    plain = torch.from_numpy(random_values((24, rank), -6, random))
    memory, b = stored(x), pack_ranks(plain.numpy())
    for tile in range(2):
        alone = one_by_one(memory, len(x), b, tile)
        for count in (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 33, MAX_COUNT):
            for first in (0, 5, 16):
                for has_amx in WITH_AMX:
                    got = multiply(memory, first, count, b, tile, has_amx)
                    assert_same_bits(got, alone[first : first + count])
        rows = torch.from_numpy(x[:, :rank]).bfloat16().double()
        columns = torch.zeros(LANES, rank, dtype=torch.float64)
        outputs = plain[16 * tile : 16 * tile + 16].bfloat16().double()
        columns[: len(outputs)] = outputs
        wanted, sizes = (rows @ columns.T).numpy(), (rows.abs() @ columns.abs().T).numpy()
        assert (np.abs(alone - wanted) <= 2.0**-24 * num_ranks * sizes).all()


@settings(deadline=None, max_examples=30)
@given(least=st.integers(-44, -20), seed=SEEDS)
def test_what_is_too_small_for_amx_is_zero_everywhere(least: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    x, b = random_values((16, 16), least, random), pack_ranks(random_values((16, 16), least, random))
    memory = stored(x)
    alone = one_by_one(memory, 16, b, 0)
    for has_amx in WITH_AMX:
        assert_same_bits(multiply(memory, 0, 16, b, 0, has_amx), alone)


def test_b_lies_in_pairs_of_ranks() -> None:
    plain = torch.randn(20, 18)
    packed = pack_ranks(plain.numpy())  # tile, sixteen, line, output, j
    assert packed.shape == (2, 2, 8, 16, 2)
    assert packed.nbytes == 2 * _tile_bytes(2)
    for output, rank in ((0, 0), (3, 5), (19, 17), (15, 16)):
        at = output // 16, rank // 16, rank % 16 // 2, output % 16, rank % 2
        assert packed[at] == int(plain[output, rank].bfloat16().view(torch.uint16))
    assert np.count_nonzero(packed) == plain.count_nonzero()


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_row_that_is_no_number_leaves_its_neighbours_their_bits(odd: float) -> None:
    random = np.random.default_rng(0)
    x, b = random_values((32, 16), -2, random), pack_ranks(np.ones((16, 16), np.float32))
    wanted = one_by_one(stored(x), 32, b, 0)
    x[7, 3] = odd
    for has_amx in WITH_AMX:
        got = multiply(stored(x), 0, 32, b, 0, has_amx)
        assert not np.isfinite(got[7]).any()
        assert_same_bits(np.delete(got, 7, 0), np.delete(wanted, 7, 0))


def test_ranks_are_rounded_to_the_nearest_bfloat16() -> None:
    x = random_values((4, 32), -3, np.random.default_rng(1))
    rounded = torch.from_numpy(x).bfloat16()
    memory = stored(x)[:4].reshape(4, 2, 2, 16)  # row, tile, bfloat16 or float32
    assert np.array_equal(memory[:, :, 1].reshape(4, 32), rounded.float().numpy())
    halves = memory[:, :, 0].view(np.uint16)[:, :, :16].reshape(4, 32)
    assert np.array_equal(halves, rounded.view(torch.uint16).numpy())
