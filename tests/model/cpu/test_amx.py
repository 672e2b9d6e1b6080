"""Tile registers: their configuration byte by byte, and products of their bytes against numpy."""

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import types
from numba.extending import intrinsic

from model.cpu.amx import (
    configure_tiles,
    emit_tile_load,
    emit_tile_multiply,
    emit_tile_store,
    emit_tile_zero,
    has_amx,
    release_tiles,
    tile_configuration,
)
from model.cpu.jit import compiled, compiles_for

needs_amx = pytest.mark.skipif(not has_amx(), reason="the CPU has no AMX, or the system does not lend it")
SUMS, SIGNED, UNSIGNED = 3, 7, 0


def test_a_configuration_byte_by_byte() -> None:
    wanted = bytearray(64)
    wanted[0] = 1  # palette 1; the row to begin at and what is reserved stay 0
    wanted[16:18] = 64, 0  # bytes a row of register 0, a 16-bit number
    wanted[48] = 16  # its rows
    wanted[26:28] = 12, 0
    wanted[53] = 3
    wanted[30:32] = 32, 0
    wanted[55] = 8
    assert tile_configuration({0: (16, 64), 5: (3, 12), 7: (8, 32)}).tobytes() == bytes(wanted)


def test_without_registers_it_is_all_zeros_but_for_the_palette() -> None:
    assert tile_configuration({}).tobytes() == bytes([1]) + bytes(63)


def test_nobody_gets_registers_that_the_cpu_or_the_system_lacks() -> None:
    if has_amx():
        assert platform.system() == "Linux"
        assert compiles_for("amx-int8")
        assert compiles_for("amx-tile")


def _emit_product(typing: Any, a: Any, a_stride: Any, b: Any, b_stride: Any, out: Any, out_stride: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, a_stride, b, b_stride, out, out_stride = arguments
        emit_tile_load(builder, SUMS, a, a_stride)  # what the register holds before it is made zero
        emit_tile_zero(builder, SUMS)
        emit_tile_load(builder, SIGNED, a, a_stride)
        emit_tile_load(builder, UNSIGNED, b, b_stride)
        emit_tile_multiply(builder, SUMS, SIGNED, UNSIGNED)
        emit_tile_multiply(builder, SUMS, SIGNED, UNSIGNED)
        emit_tile_store(builder, SUMS, out, out_stride)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


_twice_the_product: Callable[..., None] = intrinsic(_emit_product)


@compiled
def _multiply(configuration: int, a: int, a_stride: int, b: int, b_stride: int, out: int, out_stride: int) -> None:
    configure_tiles(configuration)
    _twice_the_product(a, a_stride, b, b_stride, out, out_stride)
    release_tiles()


@needs_amx
@settings(deadline=None)
@given(
    num_rows=st.integers(1, 16),
    num_quads=st.integers(1, 16),
    num_columns=st.integers(1, 16),
    seed=st.integers(0, 2**32 - 1),
)
def test_tiles_of_any_shape_multiply_signed_by_unsigned_bytes_and_add(
    num_rows: int, num_quads: int, num_columns: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    a = random.integers(-128, 128, (16, 100), np.int8)
    b = random.integers(0, 256, (16, 80), np.uint8)
    a[0], b[:, :4] = -128, 255  # the largest sum
    out = np.full((17, 18), 99, np.int32)
    shapes = {
        SUMS: (num_rows, 4 * num_columns),
        SIGNED: (num_rows, 4 * num_quads),
        UNSIGNED: (num_quads, 4 * num_columns),
    }
    configuration = tile_configuration(shapes)
    places = [place for array in (a, b, out) for place in (array.ctypes.data, array.strides[0])]
    _multiply(configuration.ctypes.data, *places)
    signed = a[:num_rows, : 4 * num_quads].astype(np.int32)
    quads = b[:num_quads, : 4 * num_columns].reshape(num_quads, num_columns, 4).astype(np.int32)
    wanted = np.full_like(out, 99)
    wanted[:num_rows, :num_columns] = 2 * signed @ quads.transpose(0, 2, 1).reshape(-1, num_columns)
    assert np.array_equal(out, wanted)
