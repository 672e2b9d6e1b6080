"""What an adapter file must hold, whatever its format: for each module one A and one B that fit the base model.

Decides which tensors make a delta. Knows neither PEFT nor GGUF: their readers name modules and factors.

R rank; `in` and `out` are the module's features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class AdapterError(ValueError):
    """An adapter that cannot be loaded as it is. The message names the field or tensor, and what would work."""


class Half(StrEnum):
    """The two matrices of a delta."""

    A = "A"
    B = "B"


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor and its name in the file, for messages."""

    name: str
    tensor: Tensor


@dataclass(slots=True)
class DeltaTensors:
    """The A and B matrices found so far, by module."""

    module_shapes: Mapping[str, tuple[int, int]]
    """(out, in) of each module of the base model that can be adapted."""
    halves: dict[Half, dict[str, NamedTensor]] = field(default_factory=lambda: {half: {} for half in Half})

    def place(self, module: str, half: Half, name: str, tensor: Tensor) -> None:
        """Keep a tensor for its module. Raises AdapterError where it cannot be adapted."""
        if module not in self.module_shapes:
            raise AdapterError(f"tensor '{name}' {_no_place(module)}")
        self.halves[half][module] = NamedTensor(name, tensor)

    @property
    def modules(self) -> list[str]:
        """Every module that has an A or a B, sorted."""
        return sorted(self.halves[Half.A].keys() | self.halves[Half.B].keys())

    def pair(self, module: str) -> tuple[NamedTensor, NamedTensor]:
        """Return A and B of a module. Raises AdapterError unless both are there, finite, and of shapes that fit."""
        a, b = self.halves[Half.A].get(module), self.halves[Half.B].get(module)
        if a is None or b is None:
            present, missing = (a, Half.B) if a is not None else (b, Half.A)
            assert present is not None
            raise AdapterError(f"tensor '{present.name}' has no matching {missing} matrix in the file")
        out_features, in_features = self.module_shapes[module]
        _check_shape(a, (None, in_features), "(rank, in)")
        _check_shape(b, (out_features, a.tensor.shape[0]), "(out, rank)")
        for half in (a, b):
            _check_values(half)
        return a, b


def _no_place(module: str) -> str:
    if module.endswith("lm_head"):
        return "adapts the output head, which is not supported: train without lm_head among the target modules"
    if module.endswith("embed_tokens"):
        return "adapts the embeddings, which is not supported: train without embed_tokens among the target modules"
    return f"adapts '{module}', which is not a linear module of the base model: is the adapter for another model?"


def _check_shape(half: NamedTensor, wanted: tuple[int | None, int], meaning: str) -> None:
    shape = tuple(half.tensor.shape)
    if len(shape) != 2 or 0 in shape or shape[1] != wanted[1] or wanted[0] not in (None, shape[0]):
        rows = "any" if wanted[0] is None else wanted[0]
        raise AdapterError(
            f"tensor '{half.name}' has shape {shape}, the base model wants ({rows}, {wanted[1]}), that is {meaning}"
        )


def _check_values(half: NamedTensor) -> None:
    if half.tensor.dtype not in FLOAT_DTYPES:
        wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOAT_DTYPES)
        raise AdapterError(f"tensor '{half.name}' is {half.tensor.dtype}, it must be one of {wanted}")
    if not bool(torch.isfinite(half.tensor).all()):
        raise AdapterError(f"tensor '{half.name}' contains NaN or infinity")
