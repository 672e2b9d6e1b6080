"""Intel's Advanced Matrix Extensions for kernels: tile registers, each a matrix of up to 16 rows of 64 bytes.

The instructions name registers by number. A thread configures shapes before it uses them and releases them afterwards,
for they are the thread's, and other libraries in it have shapes of their own. Linux gives a process the registers only
when it asks (arch_prctl, ARCH_REQ_XCOMP_PERM).

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

import ctypes
import functools
import platform
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from model.cpu.jit import compiles_for

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
_I8, _I64, _VOID = ir.IntType(8), ir.IntType(64), ir.VoidType()
_POINTER = _I8.as_pointer()


@functools.cache
def has_amx() -> bool:
    """Whether this process may multiply tiles of bytes and of bfloat16; asks the system for it."""
    if platform.system() != "Linux" or not _compiles():
        return False
    refusal: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    return refusal == 0


def tile_configuration(shapes: Mapping[int, tuple[int, int]]) -> NDArray[np.uint8]:
    """Return what `configure_tiles` reads: for each register its rows and their bytes."""
    configuration = np.zeros(64, np.uint8)
    configuration[0] = 1  # the palette
    for register, (num_rows, num_bytes) in shapes.items():
        configuration[16 + 2 * register] = num_bytes
        configuration[48 + register] = num_rows
    return configuration


def _compiles() -> bool:
    return all(compiles_for(feature) for feature in ("amx-int8", "amx-bf16", "amx-tile"))


def _call(builder: Any, name: str, arguments: list[Any]) -> None:
    if not _compiles():  # LLVM would end the process; and nobody gets here without `has_amx`
        return
    kind = ir.FunctionType(_VOID, [argument.type for argument in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), arguments)


def emit_tile_load(builder: Any, register: int, address: Any, stride: Any) -> None:
    """Load a register's rows from an address, `stride` bytes apart."""
    _call(builder, "tileloadd64", [ir.Constant(_I8, register), builder.inttoptr(address, _POINTER), stride])


def emit_tile_store(builder: Any, register: int, address: Any, stride: Any) -> None:
    """Store a register's rows to an address, `stride` bytes apart."""
    _call(builder, "tilestored64", [ir.Constant(_I8, register), builder.inttoptr(address, _POINTER), stride])


def emit_tile_zero(builder: Any, register: int) -> None:
    """Fill a register with zeros."""
    _call(builder, "tilezero", [ir.Constant(_I8, register)])


def emit_tile_multiply(builder: Any, sums: int, signed: int, unsigned: int) -> None:
    """sums (rows, columns) int32 += signed (rows, 4k) · unsigned (k, columns · 4), four bytes of a row at a time."""
    _call(builder, "tdpbsud", [ir.Constant(_I8, register) for register in (sums, signed, unsigned)])


def emit_pair_multiply(builder: Any, sums: int, rows: int, columns: int) -> None:
    """sums (rows, columns) float32 += rows (rows, 2k) · columns (k, columns · 2), two bfloat16 of a row at a time."""
    _call(builder, "tdpbf16ps", [ir.Constant(_I8, register) for register in (sums, rows, columns)])


def _configure(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _call(builder, "ldtilecfg", [builder.inttoptr(arguments[0], _POINTER)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _release(typing: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _call(builder, "tilerelease", [])
        return context.get_dummy_value()

    return types.void(), generate


configure_tiles: Callable[..., None] = intrinsic(_configure)
"""(address): give this thread's registers the shapes of a `tile_configuration`."""
release_tiles: Callable[..., None] = intrinsic(_release)
"""(): let go of this thread's registers."""
