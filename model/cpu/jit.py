"""How the CPU kernels are compiled, and where the machine code is kept.

A kernel's machine code lies beside its module in `__pycache__`, or in the user's numba cache where that is read-only,
so that a second start compiles nothing. numba drops it when the kernel's own module changes; what kernels borrow from
other modules takes part through the digest in the name it is stored under.
"""

import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit
from numba.core.codegen import get_host_cpu_features

Function = TypeVar("Function", bound=Callable[..., Any])

_ROOT = Path(__file__).parents[2]
_IMPORT = re.compile(r"^from ((?:model|scheduler)\.[\w.]+) import ", re.MULTILINE)


@functools.cache
def compiles_for(extension: str) -> bool:
    """Whether kernels may hold the instructions of an extension of the CPU's, by LLVM's name for it."""
    features: str = config.CPU_FEATURES or get_host_cpu_features()
    return f"+{extension}" in features.split(",")


def inlined(function: Function) -> Function:
    """Compile a piece of a kernel into its caller."""
    return cast(Function, njit(forceinline=True, nogil=True, error_model="numpy")(function))


def compiled(function: Function) -> Function:
    """Compile a piece of a kernel as a function of its own: what `run_in_team` calls."""
    return cast(Function, njit(nogil=True, error_model="numpy")(function))


def kernel(function: Function) -> Function:
    """Compile an entry point when it is first called, or load what an earlier process compiled. It releases the GIL."""
    function.__qualname__ += f"-{_digest(function.__module__)}"
    return cast(Function, njit(nogil=True, cache=True, error_model="numpy")(function))


def sources_of(module: str) -> set[str]:
    """Return the modules of ours whose code a kernel in `module` may hold: itself, and what it imports, all the way."""
    found, left = set(), [module]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _IMPORT.findall(_source(name).read_text(encoding="utf-8"))
    return found


@functools.cache
def _digest(module: str) -> str:
    contents = b"".join(_source(name).read_bytes() for name in sorted(sources_of(module)))
    return hashlib.sha256(contents).hexdigest()[:12]


def _source(module: str) -> Path:
    return _ROOT.joinpath(*module.split(".")).with_suffix(".py")
