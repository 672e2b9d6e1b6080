"""Workloads: what is sent when. Everything is a function of the seed."""

import itertools
import math
from random import Random

import pytest

from scheduler.workload import (
    Arrival,
    Bursts,
    Clients,
    Fixed,
    Geometric,
    Lengths,
    ListMix,
    Lognormal,
    Poisson,
    Replay,
    Shape,
    Traffic,
    Uniform,
    Workload,
    one_list,
    parse_lengths,
    zipf_lists,
)

SHAPE = Shape(one_list("a"), Fixed(3), Fixed(2))


def take(traffic: Traffic, count: int) -> list[Arrival]:
    return [traffic.take() for _ in range(count)]


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("fixed:60", Fixed(60)),
        ("uniform:20:100", Uniform(20, 100)),
        ("geometric:64", Geometric(64)),
        ("lognormal:64:1.5", Lognormal(64, 1.5)),
    ],
)
def test_distributions_are_read(text: str, lengths: Lengths) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    "text",
    [
        *("", "60", "fixed:0", "fixed:1.5", "fixed:x", "fixed:inf", "uniform:5:4", "uniform:5", "normal:5:1"),
        *("geometric:0.5", "geometric:inf", "geometric:nan", "lognormal:0:1", "lognormal:5:-1", "lognormal:5:9"),
    ],
)
def test_other_distributions_are_refused_with_what_would_work(text: str) -> None:
    with pytest.raises(ValueError, match="uniform:LEAST:MOST") as error:
        parse_lengths(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("lengths", "mean"),
    [
        (Fixed(7), 7),
        (Uniform(3, 9), 6),
        (Geometric(20), 20),
        (Geometric(1), 1),
        (Lognormal(30, 0.5), 30 * math.exp(0.125)),
    ],
)
def test_lengths_have_the_mean_they_promise_and_are_at_least_1(lengths: Lengths, mean: float) -> None:
    random = Random(1)
    drawn = [lengths.draw(random) for _ in range(20_000)]
    assert min(drawn) >= 1
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.03)


def test_uniform_reaches_both_ends() -> None:
    random = Random(1)
    assert {Uniform(3, 5).draw(random) for _ in range(100)} == {3, 4, 5}


def test_zipf_weights_fall_with_the_rank() -> None:
    assert zipf_lists(4, 1.0) == ListMix(("list-1", "list-2", "list-3", "list-4"), (1, 1 / 2, 1 / 3, 1 / 4))


def test_a_mix_draws_lists_by_their_weights() -> None:
    random = Random(1)
    mix = ListMix(("rare", "never", "often"), (1, 0, 3))
    drawn = [mix.draw(random) for _ in range(10_000)]
    assert drawn.count("never") == 0
    assert drawn.count("often") / len(drawn) == pytest.approx(0.75, abs=0.02)


def test_poisson_arrivals_have_their_rate() -> None:
    arrivals = list(itertools.islice(Poisson(5.0, SHAPE).arrivals(Random(1)), 10_000))
    assert arrivals[-1].arrival_s == pytest.approx(2_000, rel=0.03)
    gaps = [b.arrival_s - a.arrival_s for a, b in itertools.pairwise(arrivals)]
    assert sum(gap > 0.2 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.02)


def test_bursts_are_silent_while_off() -> None:
    arrivals = list(itertools.islice(Bursts(50.0, 2.0, 8.0, SHAPE).arrivals(Random(1)), 20_000))
    assert len(arrivals) / arrivals[-1].arrival_s == pytest.approx(10, rel=0.15)
    busy_seconds = {int(arrival.arrival_s) for arrival in arrivals}
    assert len(busy_seconds) < 0.4 * arrivals[-1].arrival_s


def test_sources_are_merged_in_order_of_time() -> None:
    workload = Workload(
        "two", sources=(Poisson(3.0, SHAPE), Replay((Arrival(0.5, "b", 1, 1), Arrival(2.0, "b", 1, 1))))
    )
    times = [arrival.arrival_s for arrival in take(Traffic(workload, 0), 20)]
    assert times == sorted(times)
    assert {0.5, 2.0} <= set(times)


def test_a_client_sends_its_next_request_when_it_has_been_answered_and_has_thought() -> None:
    traffic = Traffic(Workload("one", clients=(Clients(1, SHAPE, think_s=2.0, start_s=1.0),)), 0)
    assert traffic.next_s == 1.0
    first = traffic.take()
    assert first == Arrival(1.0, "a", 3, 2, client=0)
    assert traffic.next_s == math.inf
    traffic.answered(0, 5.0)
    assert traffic.next_s == 7.0
    assert traffic.take().arrival_s == 7.0
    traffic.answered(0, 8.0, pause_s=3.0)
    assert traffic.next_s == 11.0


def test_a_clients_requests_do_not_depend_on_when_it_is_answered() -> None:
    workload = Workload("two", clients=(Clients(2, Shape(one_list("a"), Uniform(1, 1000), Geometric(50))),))
    lengths = []
    for order in ((0, 1), (1, 0)):
        traffic = Traffic(workload, 3)
        take(traffic, 2)
        for seconds, client in enumerate(order, 1):
            traffic.answered(client, float(seconds))
        lengths.append({a.client: (a.prompt_tokens, a.output_tokens) for a in take(traffic, 2)})
    assert lengths[0] == lengths[1]


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    workload = Workload("p", sources=(Poisson(2.0, Shape(zipf_lists(9, 1.0), Uniform(1, 50), Geometric(9))),))
    assert take(Traffic(workload, 7), 50) == take(Traffic(workload, 7), 50)
    assert take(Traffic(workload, 7), 50) != take(Traffic(workload, 8), 50)


def test_traffic_ends_after_as_many_requests_as_were_asked_for() -> None:
    traffic = Traffic(Workload("p", sources=(Poisson(2.0, SHAPE),)), 0, max_requests=3)
    take(traffic, 3)
    assert traffic.next_s == math.inf
