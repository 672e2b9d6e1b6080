"""Rows and weights in blocks with random contents, and their products in float64: what kernels are compared with."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.cpu.amx import has_amx, tile_configuration
from model.cpu.block_products import TILE_SHAPES
from model.cpu.block_rows import LIMIT
from model.cpu.block_tiles import BlockRows
from model.cpu.block_weight import pack_blocks

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

LANES = 16
CONFIGURATION = tile_configuration(TILE_SHAPES)
WITH_AMX = [False, True] if has_amx() else [False]
"""The ways in which this machine can multiply."""


def aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return zeros that begin on a cache line."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(num_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array: NDArray[Any] = memory[start : start + num_bytes].view(dtype).reshape(shape)
    return array


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows x (R, blocks · 32) = scales · integers; `sums` need not be those of the integers."""

    integers: Integers  # (R, blocks, 32), up to LIMIT either way
    scales: Floats  # (R, blocks)
    sums: Floats
    codes: NDArray[np.int8]  # (R, blocks, 64): high parts, low parts

    @property
    def place(self) -> BlockRows:
        """Where the rows lie; valid while this object lives."""
        codes, scales, sums = (array.ctypes.data for array in (self.codes, self.scales, self.sums))
        return BlockRows(codes, scales, sums, self.scales.shape[1])

    def first(self, count: int) -> "Rows":
        """Return some of the rows."""
        return rows_of(self.integers[:count], self.scales[:count], self.sums[:count])

    def blocks(self, first: int, end: int) -> "Rows":
        """Return a part of the inputs as rows of its own."""
        return rows_of(self.integers[:, first:end], self.scales[:, first:end], self.sums[:, first:end])


def rows_of(integers: Integers, scales: Floats, sums: Floats) -> Rows:
    """Split integers (R, blocks, 32) into their parts."""
    high = (integers + 8) >> 4
    codes = np.concatenate([high, integers - 16 * high], axis=2).astype(np.int8)
    return Rows(integers, np.ascontiguousarray(scales), np.ascontiguousarray(sums), codes)


def random_rows(num_rows: int, num_blocks: int, random: np.random.Generator) -> Rows:
    """Rows that use all of the integers' range, with sums of their own, so that both are seen to be read."""
    integers = random.integers(-LIMIT, LIMIT, (num_rows, num_blocks, 32), endpoint=True)
    scales = 10.0 ** random.uniform(-6, 2, (num_rows, num_blocks))
    sums = random.standard_normal((num_rows, num_blocks)) * 10.0 ** random.uniform(-2, 4, (num_rows, num_blocks))
    return rows_of(integers, scales.astype(np.float32), sums.astype(np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A tile of weights: 16 outputs."""

    codes: Integers  # (16, blocks, 32)
    scales: NDArray[np.float16]  # (16, blocks)
    minima: NDArray[np.float16]
    bits: int
    memory: NDArray[np.uint8]

    @property
    def address(self) -> int:
        """Where it lies; valid while this object lives."""
        return int(self.memory.ctypes.data)

    def blocks(self, first: int, end: int) -> "Tile":
        """Return a part of the inputs as a tile that lies where this one does."""
        memory = self.memory.reshape(self.scales.shape[1], -1)[first:end].reshape(-1)
        scales, minima = self.scales[:, first:end], self.minima[:, first:end]
        return Tile(self.codes[:, first:end], scales, minima, self.bits, memory)


def tile_of(codes: Integers, scales: NDArray[np.float16], minima: NDArray[np.float16], bits: int) -> Tile:
    """Pack codes (16, blocks, 32) and what belongs to their blocks."""
    packed = pack_blocks(codes.reshape(LANES, -1).astype(np.uint8), scales, minima, bits)
    return Tile(codes, scales, minima, bits, packed.memory)


def random_tile(num_blocks: int, bits: int, random: np.random.Generator) -> Tile:
    """A tile with scales and minima of either sign."""
    codes = random.integers(0, 2**bits, (LANES, num_blocks, 32))
    scales, minima = (random.standard_normal((2, LANES, num_blocks)) * [[[0.01]], [[1]]]).astype(np.float16)
    return tile_of(codes, scales, minima, bits)


def product(rows: Rows, tile: Tile, start: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return start (R, 16) + x Wᵀ in float64, and by how much a sum in float32, block by block, may be off."""
    totals = np.einsum("rbk,nbk->rnb", rows.integers, tile.codes).astype(np.float64)
    scaled = totals * tile.scales.astype(np.float64) * rows.scales[:, None].astype(np.float64)
    shifted = tile.minima.astype(np.float64) * rows.sums[:, None].astype(np.float64)  # (R, 16, blocks)
    largest = np.abs(start) + (np.abs(scaled) + np.abs(shifted)).sum(axis=2)
    num_roundings = 2 * rows.scales.shape[1] + 2  # two for each block, and one where its total is scaled
    return start + (scaled + shifted).sum(axis=2), num_roundings * 2.0**-24 * largest


def with_odd_row(rows: Rows, row: int, block: int) -> Rows:
    """Return the rows, one of which is no number in a block."""
    scales, sums = rows.scales.copy(), rows.sums.copy()
    scales[row, block] = sums[row, block] = np.nan
    return replace(rows, scales=scales, sums=sums)
