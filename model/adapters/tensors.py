"""Tensors of adapter files: which values and types they may have, and the error that names what is wrong.

Knows no format's names.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from model.checkpoint.fields import printable

_MAX_MESSAGE = 1000
FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class AdapterError(ValueError):
    """An adapter that cannot be loaded as it is. The message names the field or tensor, and what would work."""

    def __init__(self, message: str) -> None:
        """The names in a file may be of any length, and not printable."""
        super().__init__(printable(message[:_MAX_MESSAGE])[:_MAX_MESSAGE])


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor and its name in the file, for messages."""

    name: str
    tensor: Tensor

    def check_values(self) -> None:
        """Raise AdapterError unless it is of a float type and all its values are finite."""
        if self.tensor.dtype not in FLOAT_DTYPES:
            wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOAT_DTYPES)
            raise AdapterError(f"tensor '{self.name}' is {self.tensor.dtype}, it must be one of {wanted}")
        if not bool(torch.isfinite(self.tensor).all()):
            raise AdapterError(f"tensor '{self.name}' contains NaN or infinity")

    def check_shape(self, wanted: tuple[int, ...], meaning: str) -> None:
        """Raise AdapterError unless it has that shape; `meaning` says what the sizes are, '(out, rank)'."""
        shape = tuple(self.tensor.shape)
        if shape != wanted:
            raise AdapterError(f"tensor '{self.name}' has shape {shape}, wanted is {wanted}, that is {meaning}")
