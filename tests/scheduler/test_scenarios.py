"""The five named workloads are what docs/simulation.md says."""

from collections import Counter

import pytest

from scheduler.scenarios import SCENARIOS
from scheduler.workload import Arrival, Traffic


def first(name: str, count: int) -> list[Arrival]:
    traffic = Traffic(SCENARIOS[name]().workload, 0)
    return [traffic.take() for _ in range(count)]


def test_each_is_named_as_it_is_called() -> None:
    assert {name: make().workload.name for name, make in SCENARIOS.items()} == {name: name for name in SCENARIOS}


@pytest.mark.parametrize(("name", "num_lists", "clients"), [("even", 8, 8), ("many-lists", 64, 4)])
def test_lists_have_as_many_clients_each(name: str, num_lists: int, clients: int) -> None:
    lists = Counter(arrival.list_name for arrival in first(name, num_lists * clients))
    assert set(lists.values()) == {clients}
    assert len(lists) == num_lists


def test_many_lists_have_few_slots() -> None:
    assert SCENARIOS["many-lists"]().num_slots == 4
    assert SCENARIOS["even"]().num_slots == 16


def test_zipf_has_a_hundred_lists_of_falling_popularity() -> None:
    lists = Counter(arrival.list_name for arrival in first("zipf", 20_000))
    assert len(lists) == 100
    assert lists["list-1"] / lists["list-10"] == pytest.approx(10**1.1, rel=0.2)


def test_the_hog_has_fifty_long_generations_and_the_visitor_comes_alone() -> None:
    hogs = [Arrival(0.0, "hog", 60, 2000, client) for client in range(50)]
    assert first("hog", 51) == [*hogs, Arrival(7.0, "visitor", 60, 32, 50)]


def test_bursts_come_from_eight_lists() -> None:
    arrivals = first("bursts", 5_000)
    assert len({a.list_name for a in arrivals}) == 8
    assert len(arrivals) / arrivals[-1].arrival_s == pytest.approx(4.0, rel=0.2)
