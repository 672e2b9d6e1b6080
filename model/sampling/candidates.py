"""The tokens that a chain of samplers may still choose, and the draw of one of them.

Dimensions: V vocabulary, C candidates.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int64]

_LARGEST_LOGIT = 1e300
"""Differences of such logits are finite."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """At least one token, each with a finite logit."""

    ids: Ids
    """(C,), ascending."""
    logits: Floats
    """(C,)"""
    vocab_size: int

    def kept(self, is_kept: npt.NDArray[np.bool_]) -> "Candidates":
        """Return those of a mask (C,)."""
        return self if is_kept.all() else Candidates(self.ids[is_kept], self.logits[is_kept], self.vocab_size)

    def with_logits(self, logits: Floats) -> "Candidates":
        """Return them with other logits (C,), of which those out of range become the largest that are within."""
        return Candidates(self.ids, np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT), self.vocab_size)

    def probabilities(self) -> Floats:
        """Return the softmax of their logits (C,)."""
        masses = np.exp(self.logits - self.logits.max())
        probabilities: Floats = masses / masses.sum()
        return probabilities

    def order(self) -> Ids:
        """Return their places (C,) in order of likelihood, equal ones by id."""
        return ascending(-self.logits)

    def most_likely(self, count: int) -> npt.NDArray[np.bool_]:
        """Return the mask (C,) of the `count` most likely, of equal ones those first by id; 1 to C of them."""
        least = np.partition(self.logits, self.logits.size - count)[self.logits.size - count]
        is_among: npt.NDArray[np.bool_] = self.logits > least
        is_among[np.flatnonzero(self.logits == least)[: count - np.count_nonzero(is_among)]] = True
        return is_among


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a chain has chosen, from what, and what its next choice is to remember."""

    token_id: int
    candidates: Candidates
    state: tuple[float, ...] = ()


def ascending(values: Floats) -> Ids:
    """Return the places (C,) of finite values in their order, those of equal ones in that of places."""
    # One integer per value, of its float32 and its place, for numpy sorts integers many times faster than it sorts
    # floats stably; then little is left to do for the stable sort, which is quick where there is order already.
    bits = (values.astype(np.float32) + np.float32(0.0)).view(np.int32)
    ordered = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)
    keys = (ordered << 32) | np.arange(values.size)
    keys.sort()
    places = keys & 0xFFFFFFFF
    in_order: Ids = places[np.argsort(values[places], kind="stable")]
    return in_order


def draw(candidates: Candidates, u: float) -> int:
    """Return the place of a candidate: the inverse CDF at `u` in [0, 1), over the order of likelihood, or that of ids
    where none was left out."""
    probabilities = candidates.probabilities()
    if candidates.ids.size == candidates.vocab_size:
        cdf = np.cumsum(probabilities)
        return int(np.searchsorted(cdf, u * cdf[-1], side="right"))
    order = candidates.order()
    cdf = np.cumsum(probabilities[order])
    return int(order[np.searchsorted(cdf, u * cdf[-1], side="right")])
