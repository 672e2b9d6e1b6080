"""Memory that torch owns, for kernels on CPUs, by its address: numpy's view of a tensor takes fifty times as long to
make as a number, and a step makes hundreds of them.

Nothing here is checked once it is compiled: the caller keeps the tensor alive, and gives its own shape.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import carray, types
from numba.extending import intrinsic
from torch import Tensor

from model.cpu.jit import inlined
from model.cpu.simd import Array

_ELEMENTS = {
    torch.bfloat16: np.empty(0, np.uint16),
    torch.float32: np.empty(0, np.float32),
    torch.uint8: np.empty(0, np.uint8),
    torch.int32: np.empty(0, np.int32),
    torch.int64: np.empty(0, np.int64),
}


def elements_of(dtype: torch.dtype) -> Array:
    """Return an empty array, which tells kernels what stands at addresses; bfloat16 is the uint16 of its bits."""
    return _ELEMENTS[dtype]


def address_of(tensor: Tensor, dtype: torch.dtype) -> int:
    """Return where a contiguous CPU tensor of `dtype` begins."""
    assert tensor.dtype == dtype, tensor.dtype
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def place_of(tensor: Tensor | None, dtype: torch.dtype) -> tuple[int, int]:
    """Return where a tensor begins and how many elements it has; (0, 0) for None."""
    return (0, 0) if tensor is None else (address_of(tensor, dtype), tensor.numel())


def _pointer(typing: Any, address: Any, elements: Any) -> Any:
    pointer = types.CPointer(elements.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64, elements), generate


_pointer_to: Callable[..., Any] = intrinsic(_pointer)


@inlined
def array_at(address: int, shape: tuple[int, ...], elements: Array) -> Array:
    """Return the array of `shape` at an address, with elements like those of the empty array `elements`."""
    return carray(_pointer_to(address, elements), shape)
