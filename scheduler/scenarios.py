"""The five workloads on which policies are compared, each with the slots it is about. Sized for the cost model
`cpu-2-core`: each asks for more than that machine can do. Defined in words in docs/simulation.md."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scheduler.workload import (
    Bursts,
    Clients,
    Fixed,
    Geometric,
    ListMix,
    Poisson,
    Shape,
    Uniform,
    Workload,
    one_list,
    zipf_lists,
)

_CHAT_PROMPT = Uniform(20, 100)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload, and where and for how long it is simulated unless told otherwise."""

    workload: Workload
    num_slots: int = 16
    duration_s: float = 600.0
    num_requests: int | None = None
    """Run until so many are answered: without end there would be more to answer for whom a policy puts off."""


def _chat(lists: ListMix, mean_output: float = 64) -> Shape:
    return Shape(lists, _CHAT_PROMPT, Geometric(mean_output))


def even() -> Scenario:
    """Eight lists, eight clients each."""
    clients = tuple(Clients(8, _chat(one_list(f"list-{number}"))) for number in range(1, 9))
    return Scenario(Workload("even", clients=clients))


def zipf() -> Scenario:
    """A hundred lists, some much more popular than others, for ten minutes; then what is left is answered."""
    workload = Workload("zipf", sources=(Poisson(3.0, _chat(zipf_lists(100, 1.1))),))
    return Scenario(workload, duration_s=math.inf, num_requests=1800)


def hog() -> Scenario:
    """One list queued fifty deep with long generations, and one visitor who comes again and again."""
    hogs = Clients(50, Shape(one_list("hog"), Fixed(60), Fixed(2000)))
    visitor = Clients(1, Shape(one_list("visitor"), Fixed(60), Fixed(32)), think_s=7.0, start_s=7.0)
    return Scenario(Workload("hog", clients=(hogs, visitor)))


def bursts() -> Scenario:
    """Eight lists that are silent most of the time."""
    sources = tuple(Bursts(8.0, 5.0, 75.0, _chat(one_list(f"list-{number}"))) for number in range(1, 9))
    return Scenario(Workload("bursts", sources=sources))


def many_lists() -> Scenario:
    """Sixty-four lists and four slots."""
    clients = tuple(Clients(4, _chat(one_list(f"list-{number}"), 32)) for number in range(1, 65))
    return Scenario(Workload("many-lists", clients=clients), num_slots=4)


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "even": even,
    "zipf": zipf,
    "hog": hog,
    "bursts": bursts,
    "many-lists": many_lists,
}
"""By the names that the command line knows them by."""
