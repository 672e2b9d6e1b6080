"""The sum of an adapter list on one matrix product, as y ← gain ⊙ y + offset + B (A x).

Plain deltas add scale · factor · B (A x), a block of ranks for each, and their biases to the offset. A DoRA delta
(adapters/adapter.py) adds (g - 1) · W x + g · s · B (A x): its g less one is added to the list's gain, g is folded into
its B, and the offset takes back what the gain does to the module's own bias, which is in y already.

R rank of the whole list; `in` and `out` are the features of the product; a module has some of its outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.adapters.adapter import Adapter, LoraDelta


@dataclass(frozen=True, slots=True)
class DeltaSum:
    """What a list changes, in float32. The rank is 0 where it has only gain or offset."""

    a: Tensor  # (R, in)
    b: Tensor  # (out, R)
    gain: Tensor | None  # (out,)
    offset: Tensor | None  # (out,)


def sum_of_deltas(
    scaled: Sequence[tuple[Adapter, float]], in_features: int, parts: Sequence[tuple[str, int]]
) -> DeltaSum | None:
    """Sum what a list changes in the modules (path, out) of one product; None where it changes nothing.

    Ranks stand in the order of adapters, then of modules.
    """
    if not any(module in adapter.deltas or module in adapter.biases for adapter, _ in scaled for module, _ in parts):
        return None
    terms = _Terms(in_features, sum(out for _, out in parts))
    for adapter, scale in scaled:
        row = 0
        for module, out in parts:
            rows = slice(row, row + out)
            if module in adapter.deltas:
                terms.add_delta(rows, adapter.deltas[module], scale)
            if module in adapter.biases:
                terms.add_offset(rows, scale * adapter.biases[module].double())
            row += out
    return terms.sum()


class _Terms:
    """What has been added so far. Gain and offset are summed in float64, and rounded once."""

    def __init__(self, in_features: int, out_features: int) -> None:
        self._in_features = in_features
        self._out_features = out_features
        self._blocks: list[tuple[slice, Tensor, Tensor]] = []  # rows of the product, A (R, in), B (out, R)
        self._gain: Tensor | None = None  # (out,)
        self._offset: Tensor | None = None  # (out,)

    def add_delta(self, rows: slice, delta: LoraDelta, scale: float) -> None:
        strength = scale * delta.factor
        b, bias = delta.b.float() * strength, delta.bias
        if delta.dora is not None:
            gain = delta.dora.gain(strength)  # (out,)
            b = b * gain.unsqueeze(1)
            bias = None if bias is None else bias.float() * gain
            self._add_gain(rows, gain.double() - 1)
            if delta.dora.base_bias is not None:
                self.add_offset(rows, (1 - gain.double()) * delta.dora.base_bias.double())
        if bias is not None:
            self.add_offset(rows, strength * bias.double())
        self._blocks.append((rows, delta.a.float(), b))

    def add_offset(self, rows: slice, offset: Tensor) -> None:
        if self._offset is None:
            self._offset = torch.zeros(self._out_features, dtype=torch.float64)
        self._offset[rows] += offset

    def _add_gain(self, rows: slice, gain: Tensor) -> None:
        if self._gain is None:
            self._gain = torch.ones(self._out_features, dtype=torch.float64)
        self._gain[rows] += gain

    def sum(self) -> DeltaSum:
        a = torch.cat([torch.zeros(0, self._in_features), *(a for _, a, _ in self._blocks)])  # (R, in)
        gain, offset = (None if each is None else each.float() for each in (self._gain, self._offset))
        return DeltaSum(a, self._columns(a.shape[0]), gain, offset)

    def _columns(self, rank: int) -> Tensor:
        if self._blocks and all(b.shape[0] == self._out_features for _, _, b in self._blocks):
            return torch.cat([b for _, _, b in self._blocks], dim=1)  # (out, R)
        columns = torch.zeros(self._out_features, rank)
        column = 0
        for rows, _, b in self._blocks:
            columns[rows, column : column + b.shape[1]] = b
            column += b.shape[1]
        return columns
