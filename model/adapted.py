"""The parts of the decoder that an adapter list may change, each with the name by which lists know it.

T tokens in the step; `in` and `out` are a projection's features.
"""

from dataclasses import dataclass

from torch import Tensor

from model.linear import Linear
from model.lora import LoraStack


@dataclass(frozen=True, slots=True)
class AdaptedLinear:
    """A matrix product: one of the decoder's projections."""

    name: str
    """The projection's, 'layers.0.qkv'."""
    linear: Linear

    def __call__(self, x: Tensor, lora: LoraStack | None) -> Tensor:
        """Return what the list (None: the base model) makes of x (T, in): (T, out)."""
        y = self.linear(x)
        if lora is not None:
            lora.add_to(self.name, y, x)
        return y


@dataclass(frozen=True, slots=True)
class AdaptedNorm:
    """The weight of a norm."""

    module: str
    """Its path, 'model.layers.0.input_layernorm'."""
    weight: Tensor  # (size,) float32

    def __call__(self, lora: LoraStack | None) -> Tensor:
        """Return the weight under the list, (size,) float32."""
        return self.weight if lora is None else lora.norm(self.module, self.weight)
