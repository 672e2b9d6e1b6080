"""How much service each adapter list is due, relative to the others: the setting `--adapter-weight`.

The weight of a list is the largest of its adapters' weights; an adapter that is not named weighs 1. What a weight leads
to is the scheduler's business.
"""

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from scheduler.cohort import AdapterId, CohortKey

log = logging.getLogger(__name__)

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


def check_names(weights: Sequence[AdapterWeight], names: Collection[str], *, can_come_later: bool) -> None:
    """Raise ValueError where a weight's name is not one of the adapters' `names`; only tell of it where such an adapter
    can come later.
    """
    for item in weights:
        if item.name != BASE_NAME and item.name not in names:
            problem = f"--adapter-weight names {item.name!r}; there are {', '.join([BASE_NAME, *names])}"
            if not can_come_later:
                raise ValueError(problem)
            log.warning("%s, until now", problem)


def weigh_lists(weights: Sequence[AdapterWeight], name_of: Callable[[AdapterId], str]) -> Callable[[CohortKey], float]:
    """Return the weight of each adapter list; adapters come and go, and their weights are their names'. Raises
    ValueError where a name comes twice.
    """
    by_name = {item.name: item.weight for item in weights}
    if len(by_name) < len(weights):
        raise ValueError(f"--adapter-weight names one twice: {', '.join(item.name for item in weights)}")

    def weight_of(key: CohortKey) -> float:
        if not by_name:
            return 1.0
        names = [name_of(adapter) for adapter, _ in key] or [BASE_NAME]
        return max(by_name.get(name, 1.0) for name in names)

    return weight_of
