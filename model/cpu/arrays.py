"""Views of torch's tensors for the kernels on CPUs. Nothing is copied."""

import torch
from torch import Tensor

from model.cpu.simd import Array


def as_array(tensor: Tensor) -> Array:
    """View a contiguous CPU tensor as a numpy array, bfloat16 as the uint16 of its bits.

    Raises TypeError for any dtype but bfloat16 and float32.
    """
    assert tensor.is_contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    if tensor.dtype == torch.float32:
        return tensor.numpy()
    raise TypeError(f"the CPU kernels compute in float32 and bfloat16, not in {tensor.dtype}")
