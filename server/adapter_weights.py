"""How much service each adapter list is due, relative to the others: the setting `--adapter-weight`.

The weight of a list is the largest of its adapters' weights; an adapter that is not named weighs 1. What a weight leads
to is the scheduler's business.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.cohort import AdapterId, CohortKey

BASE_NAME = "base"
"""Names the base model; no adapter may be called so."""


@dataclass(frozen=True, slots=True)
class AdapterWeight:
    """A name as the user wrote it, and its weight."""

    name: str
    weight: float


def read_weights(text: str) -> tuple[AdapterWeight, ...]:
    """Read `NAME=W[,NAME=W…]`; the last equals sign counts. Raises ValueError."""
    weights = []
    for item in filter(None, text.split(",")):
        name, _, number = item.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not name or not 0 < weight < math.inf:
            raise ValueError(f"wants NAME=W with a finite W above 0, not {item!r}")
        weights.append(AdapterWeight(name, weight))
    return tuple(weights)


def weigh_lists(weights: Sequence[AdapterWeight], adapters: Mapping[str, AdapterId]) -> Callable[[CohortKey], float]:
    """Return the weight of each adapter list. Raises ValueError where a name is not one of `adapters`, or comes
    twice.
    """
    by_name = {item.name: item.weight for item in weights}
    if len(by_name) < len(weights):
        raise ValueError(f"--adapter-weight names one twice: {', '.join(item.name for item in weights)}")
    for name in by_name:
        if name != BASE_NAME and name not in adapters:
            raise ValueError(f"--adapter-weight names {name!r}; there are {', '.join([BASE_NAME, *adapters])}")
    of_base = by_name.pop(BASE_NAME, 1.0)
    of_adapter = {adapters[name]: weight for name, weight in by_name.items()}

    def weight_of(key: CohortKey) -> float:
        return max((of_adapter.get(adapter, 1.0) for adapter, _ in key), default=of_base)

    return weight_of
