"""SmoothQuant (arXiv 2211.10438): outliers of activations are moved into the weights before either is rounded.

Input channel j of a product is divided by s_j, and column j of its weight multiplied: what it gives is the same, up to
rounding. The division is folded into whatever makes the input: the norm before queries, keys and values, and before
gate and up; the rows of v before o, one factor for all query heads that share a KV head; the rows of up before down.
Embedding and head are left alone. Adapters are trained for the model as it was, so what they add is changed alike.

D hidden, K KV heads, G query heads to each of them, h head size, F MLP; `in` and `out` are a projection's features.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from model.lora_sum import DeltaSum

ALPHA = 0.6
"""How much of the difficulty goes to the weights: at 0 none, at 1 all."""
_LEAST = 1e-3
"""Of the highest range. Channels that the text hardly reaches count as so high, lest another finds them blown up."""


@dataclass(frozen=True, slots=True)
class Smoothing:
    """What values inside the decoder have been divided by, float32; where nothing stands, by nothing."""

    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    """By projection: (in,)."""
    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    """By projection: (out,)."""
    norms: Mapping[str, Tensor] = field(default_factory=dict)
    """By a norm's module path, (size,)."""

    def of_change(self, projection: str, change: DeltaSum) -> DeltaSum:
        """Return a change of the original projection as that of the smoothed one. Gains are the same for both."""
        if (factors := self.inputs.get(projection)) is not None:
            change = replace(change, a=change.a * factors)
        if (factors := self.outputs.get(projection)) is not None:
            offset = None if change.offset is None else change.offset / factors
            change = replace(change, b=change.b / factors.unsqueeze(1), offset=offset)
        return change

    def of_norm(self, module: str, change: Tensor) -> Tensor:
        """Return a change of the original norm's weight as that of the smoothed one's."""
        factors = self.norms.get(module)
        return change if factors is None else change / factors.to(change.device)


def merged(smoothings: Iterable[Smoothing]) -> Smoothing:
    """Return the smoothing of all layers, of those of each."""
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    norms: dict[str, Tensor] = {}
    for smoothing in smoothings:
        inputs.update(smoothing.inputs)
        outputs.update(smoothing.outputs)
        norms.update(smoothing.norms)
    return Smoothing(inputs, outputs, norms)


def balance(activations: Tensor, weights: Tensor) -> Tensor:
    """Return the factor of each channel, from the highest magnitudes of its activations and of its weights, (in,)
    each."""
    activations, weights = (_without_zeros(ranges) for ranges in (activations, weights))
    return activations**ALPHA / weights ** (1 - ALPHA)


def _without_zeros(ranges: Tensor) -> Tensor:
    highest = float(ranges.max())
    return ranges.float().clamp_min(_LEAST * highest if highest > 0 else 1.0)


def column_ranges(weights: Iterable[Tensor]) -> Tensor:
    """Return the highest magnitude (in,) in each column of weights (out, in) side by side."""
    columns = [torch.maximum(weight.amax(dim=0), -weight.amin(dim=0)).float() for weight in weights]
    return torch.stack(columns).amax(dim=0)


def share_by_kv_head(ranges: Tensor, num_kv_heads: int, head_dim: int) -> Tensor:
    """Return the highest of the ranges (K · G · h,) of query heads that share a KV head, (K · h,)."""
    return ranges.view(num_kv_heads, -1, head_dim).amax(dim=1).flatten()


def repeat_for_query_heads(factors: Tensor, num_heads: int, num_kv_heads: int) -> Tensor:
    """Return the factors (K · h,) of values as those of attention's output, (K · G · h,)."""
    return factors.view(num_kv_heads, 1, -1).expand(-1, num_heads // num_kv_heads, -1).flatten()
