"""Attention whose output an int8 product reads: any `Attention`, and codes with a scale for each token made of it."""

from torch import Tensor

from model.attention import Attention, AttentionStep
from model.kernels_int8 import quantise
from model.scaled_rows import Rows


class Int8Attention:
    """`Attention` that returns `ScaledRows`. A token's scale is over all its heads, which no tile of heads knows."""

    def __init__(self, attention: Attention) -> None:
        """`attention` gives what is quantised: a Tensor."""
        self._attention = attention

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: AttentionStep, scale: float, window: int | None
    ) -> Rows:
        return quantise(self._attention.attend(q, k_cache, v_cache, step, scale, window))
