"""What is measured, from hand-made events."""

import pytest

from scheduler.batch import Sample
from scheduler.cohort import CohortKey
from scheduler.events import (
    Admitted,
    Event,
    Finished,
    FinishReason,
    Paused,
    Preempted,
    Resumed,
    StepDone,
    TokenSampled,
)
from scheduler.meter import ListMeter, Meter, Standing
from tests.scheduler.builders import LIST_A, LIST_B


def admitted(request_id: int, now: float, key: CohortKey = LIST_A) -> Admitted:
    return Admitted(request_id, key, 0, 5, 0, True, 0.0, now)


def finished(request_id: int, now: float, key: CohortKey = LIST_A) -> Finished:
    return Finished(request_id, key, FinishReason.LIMIT, "", 5, 1, 0, 0.0, now)


def sampled(request_id: int, index: int, gap_s: float, now: float, key: CohortKey = LIST_A) -> TokenSampled:
    return TokenSampled(request_id, key, index, Sample(request_id, 1), gap_s, now)


def step(key: CohortKey, num_tokens: int, num_decode: int, now: float = 0.0) -> StepDone:
    return StepDone(0, key, 2, num_decode, num_tokens, 3, 1, True, 0.1, now)


class Bench:
    """A meter with two lists, and the periods it told of."""

    def __init__(self) -> None:
        self.periods: list[tuple[str, Standing, float, float]] = []
        self.meter = Meter(self._stood)
        self.a = self.meter.list_of(LIST_A, "a")
        self.b = self.meter.list_of(LIST_B, "b")

    def _stood(self, adapter_list: ListMeter, standing: Standing, start_s: float, end_s: float) -> None:
        if standing is not Standing.IDLE:
            self.periods.append((adapter_list.name, standing, start_s, end_s))

    def accept(self, request_id: int, adapter_list: ListMeter, now: float) -> None:
        self.meter.accepted(request_id, adapter_list, now)

    def see(self, *events: Event) -> None:
        self.meter.saw(list(events))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_list_waits_from_its_first_request_to_its_first_seat(bench: Bench) -> None:
    bench.accept(1, bench.a, 1.0)
    bench.accept(2, bench.a, 2.0)
    bench.see(admitted(1, 4.0), finished(1, 5.0), admitted(2, 5.0))
    bench.meter.close(9.0)
    assert bench.a.longest_wait_s == 3.0
    assert bench.periods == [
        ("a", Standing.SEATLESS, 1.0, 4.0),
        ("a", Standing.SEATED, 4.0, 5.0),
        ("a", Standing.SEATED, 5.0, 9.0),
    ]


def test_a_wait_that_has_not_ended_counts(bench: Bench) -> None:
    bench.accept(1, bench.a, 1.0)
    bench.meter.close(8.0)
    assert bench.a.longest_wait_s == 7.0
    assert list(bench.a.ttft_s) == [7.0]


def test_a_list_whose_seats_are_all_paused_waits(bench: Bench) -> None:
    bench.accept(1, bench.a, 0.0)
    bench.see(admitted(1, 0.0), Paused(1, LIST_A, 2.0), Resumed(1, LIST_A, 0, 4.0, 6.0), finished(1, 7.0))
    assert bench.a.longest_wait_s == 4.0
    assert bench.meter.totals.num_pauses == 1


def test_a_preemption_takes_a_seat_but_not_from_a_paused_request(bench: Bench) -> None:
    bench.accept(1, bench.a, 0.0)
    bench.see(admitted(1, 0.0), Preempted(1, LIST_A, 1.0), admitted(1, 3.0))
    assert bench.a.longest_wait_s == 2.0
    bench.see(Paused(1, LIST_A, 4.0), Preempted(1, LIST_A, 5.0), admitted(1, 10.0), finished(1, 11.0))
    assert bench.a.longest_wait_s == 6.0
    assert (bench.a.num_waiting, bench.a.num_seated) == (0, 0)
    assert bench.meter.totals.num_preemptions == 2


def test_the_first_gap_is_ttft_and_the_others_are_itl(bench: Bench) -> None:
    bench.accept(1, bench.a, 0.0)
    bench.see(admitted(1, 0.0), sampled(1, 0, 0.5, 0.5), sampled(1, 1, 0.2, 0.7))
    bench.meter.close(1.0)
    assert (list(bench.a.ttft_s), list(bench.a.itl_s)) == ([0.5], [0.2])
    assert bench.a.num_sampled == 2


def test_backlogged_lists_are_due_equal_parts_of_what_they_get_together(bench: Bench) -> None:
    for request_id, adapter_list in enumerate((bench.a, bench.a, bench.b, bench.b)):
        bench.accept(request_id, adapter_list, 0.0)
    bench.see(admitted(0, 0.0), admitted(2, 0.0, LIST_B))
    bench.see(step(LIST_A, 30, 0), sampled(0, 0, 0.1, 0.1))  # 30 + 2 · 1
    bench.see(step(LIST_B, 5, 1), sampled(2, 0, 0.1, 0.1, LIST_B))  # 4 + 2 · 1
    bench.meter.close(2.0)
    assert (bench.a.service_received, bench.b.service_received) == (32, 6)
    assert (bench.a.service_due, bench.b.service_due) == (19, 19)
    assert (bench.a.backlogged_s, bench.b.backlogged_s) == (2.0, 2.0)


def test_a_list_that_asks_for_no_more_than_it_gets_is_due_nothing(bench: Bench) -> None:
    bench.accept(1, bench.a, 0.0)
    bench.accept(2, bench.a, 0.0)
    bench.accept(3, bench.b, 0.0)
    bench.see(admitted(1, 0.0), admitted(3, 1.0, LIST_B))
    bench.see(step(LIST_B, 40, 0), step(LIST_A, 10, 0))
    bench.meter.close(2.0)
    assert (bench.b.service_received, bench.b.service_due, bench.b.backlogged_s) == (0, 0, 1.0)
    assert (bench.a.service_received, bench.a.service_due) == (10, 10)


def test_steps_are_summed_up(bench: Bench) -> None:
    bench.see(step(LIST_A, 30, 1), step(LIST_B, 2, 2))
    totals = bench.meter.totals
    assert (totals.num_steps, totals.num_rows, totals.num_prompt) == (2, 4, 29)
    assert (totals.num_cohorts, totals.num_switches) == (6, 2)


def test_refused_requests_are_counted_apart(bench: Bench) -> None:
    bench.meter.refused(bench.a)
    assert (bench.a.num_requests, bench.a.num_refused, bench.a.num_waiting) == (1, 1, 0)
