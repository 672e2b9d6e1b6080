"""Which device, dtype and kernels compute the model. Decides once, at start; knows no weights."""

from dataclasses import dataclass

import torch

from model.attention import Attention
from model.layers import Ops


@dataclass(frozen=True, slots=True)
class Backend:
    """One consistent choice of device, dtype and kernels."""

    device: torch.device
    dtype: torch.dtype
    """Of weights, activations and KV cache; the residual stream and the norms' weights are float32 whatever it is."""
    ops: Ops
    attention: Attention
    packed: bool
    """Whether matrix products run on oneDNN's prepacked weights, which treat a row alike in every batch."""
