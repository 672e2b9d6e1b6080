"""How the CPU kernels are compiled, and where the machine code is kept.

A kernel's machine code lies beside its module in `__pycache__`, or in the user's numba cache where that is read-only,
so that a second start compiles nothing. numba drops it when the kernel's own module changes; what kernels borrow from
other modules takes part through the digest in the name it is stored under.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

_BORROWED = ("addresses.py", "jit.py", "matrices_cpu.py", "rows_cpu.py", "simd.py", "team.py")
_DIGEST = hashlib.sha256(b"".join(Path(__file__).with_name(name).read_bytes() for name in _BORROWED)).hexdigest()[:12]


def inlined(function: Function) -> Function:
    """Compile a piece of a kernel into its caller."""
    return cast(Function, njit(forceinline=True, nogil=True, error_model="numpy")(function))


def compiled(function: Function) -> Function:
    """Compile a piece of a kernel as a function of its own: what `run_in_team` calls."""
    return cast(Function, njit(nogil=True, error_model="numpy")(function))


def kernel(function: Function) -> Function:
    """Compile an entry point when it is first called, or load what an earlier process compiled. It releases the GIL."""
    function.__qualname__ += f"-{_DIGEST}"
    return cast(Function, njit(nogil=True, cache=True, error_model="numpy")(function))
