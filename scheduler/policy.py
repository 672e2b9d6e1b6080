"""The policies, by name: an admission queue and an order of turns that belong together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from scheduler.admission import AdmissionQueue, ArrivalQueue
from scheduler.cohort import CohortKey
from scheduler.fairness import DEFAULT_FAIRNESS, FairnessSettings, FairQueue
from scheduler.turns import Draining, Rounds

PolicyName: TypeAlias = Literal["fair", "fcfs", "drain"]
"""`fair`: bounded waits and bounded differences between lists, large cohorts. `fcfs`: arrival order, rounds of turns.
`drain`: arrival order, and one cohort keeps the steps until it has no running request, as in llama-server: for
comparison, and for batch jobs."""
POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)


@dataclass(frozen=True, slots=True)
class Policy:
    """Who is seated, and whose turn it is. Holds the requests of one scheduler: not to be shared."""

    queue: AdmissionQueue
    turns: Rounds


def make_policy(
    name: PolicyName,
    num_slots: int,
    fairness: FairnessSettings = DEFAULT_FAIRNESS,
    weight_of: Callable[[CohortKey], float] = lambda key: 1.0,
) -> Policy:
    """Return a new policy for a scheduler of `num_slots`; `fairness` and the lists' weights matter to `fair` alone.

    Raises ValueError for another name.
    """
    match name:
        case "fair":
            return Policy(FairQueue(num_slots, fairness, weight_of), Rounds())
        case "fcfs":
            return Policy(ArrivalQueue(), Rounds())
        case "drain":
            return Policy(ArrivalQueue(), Draining())
    raise ValueError(f"policy is {name!r}, choose {', '.join(POLICY_NAMES)}")
