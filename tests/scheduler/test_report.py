"""The numbers of a simulation, from what was measured."""

import pytest

from scheduler.meter import Meter
from scheduler.report import Percentiles, jain, make_report, percentiles
from tests.scheduler.builders import LIST_A, LIST_B, LIST_C


def test_percentiles_are_nearest_rank() -> None:
    assert percentiles(range(100, 0, -1)) == Percentiles(100, 50, 95, 99, 100)
    assert percentiles([3.0, 1.0, 2.0]) == Percentiles(3, 2.0, 3.0, 3.0, 3.0)
    assert percentiles([]) == Percentiles(0, 0.0, 0.0, 0.0, 0.0)


def test_jain_is_1_where_all_get_the_same_and_1_over_n_where_one_gets_everything() -> None:
    assert jain([5, 5, 5], [5, 5, 5]) == pytest.approx(1)
    assert jain([15, 0, 0], [5, 5, 5]) == pytest.approx(1 / 3)


def test_jain_is_the_well_known_formula_where_all_are_due_the_same() -> None:
    assert jain([1, 2, 6], [3, 3, 3]) == pytest.approx((1 + 2 + 6) ** 2 / (3 * (1 + 4 + 36)))


def test_jain_is_1_where_each_gets_the_same_part_of_what_it_is_due() -> None:
    assert jain([2, 20], [1, 10]) == pytest.approx(1)


def test_lists_that_are_due_little_weigh_little() -> None:
    assert (jain([0, 10, 10], [0.01, 10, 10]) or 0) > 0.999


def test_one_list_has_nobody_to_be_compared_with() -> None:
    assert jain([1], [1]) is None


def test_nothing_received_is_no_fairness() -> None:
    assert jain([0, 0], [1, 1]) is None


def full_meter() -> Meter:
    """Three lists over ten seconds: two backlogged, one that waited once and got nothing."""
    meter = Meter()
    for key, name in ((LIST_A, "a"), (LIST_B, "b"), (LIST_C, "c")):
        meter.list_of(key, name)
    a, b, c = meter.lists.values()
    a.num_requests, a.num_finished, a.num_sampled = 4, 2, 60
    b.num_requests, b.num_refused, b.num_sampled = 3, 1, 40
    c.num_requests = 1
    a.service_received, a.service_due, a.backlogged_s = 100.0, 75.0, 9.0
    b.service_received, b.service_due, b.backlogged_s = 50.0, 75.0, 5.0
    c.service_due, c.backlogged_s = 10.0, 4.9
    a.longest_wait_s, b.longest_wait_s, c.longest_wait_s = 1.0, 6.0, 4.0
    a.ttft_s.extend([0.1, 0.3])
    b.ttft_s.extend([0.2])
    b.itl_s.extend([0.05])
    totals = meter.totals
    totals.num_steps, totals.num_rows, totals.num_prompt = 50, 100, 30
    totals.num_cohorts, totals.num_switches, totals.num_preemptions, totals.num_pauses = 150, 25, 3, 4
    return meter


def test_the_whole_is_the_sum_of_the_lists() -> None:
    report = make_report(full_meter(), 10.0, "hash")
    assert (report.num_requests, report.num_refused, report.num_finished, report.num_sampled) == (8, 1, 2, 100)
    assert (report.sampled_per_s, report.prompt_per_s) == (10.0, 3.0)
    assert (report.rows_per_step, report.cohorts_per_step, report.switches_per_step) == (2.0, 3.0, 0.5)
    assert (report.num_preemptions, report.num_pauses, report.trace_hash) == (3, 4, "hash")
    assert report.ttft_s == Percentiles(3, 0.2, 0.3, 0.3, 0.3)
    assert report.itl_s == Percentiles(1, 0.05, 0.05, 0.05, 0.05)


def test_the_longest_wait_is_named() -> None:
    report = make_report(full_meter(), 10.0, "")
    assert (report.longest_wait_s, report.longest_wait_list) == (6.0, "b")


def test_jain_is_taken_over_lists_that_were_backlogged_half_of_the_time() -> None:
    report = make_report(full_meter(), 10.0, "")
    assert report.num_backlogged_lists == 2
    assert report.jain == pytest.approx(jain([100, 50], [75, 75]))


def test_each_list_has_its_own_numbers() -> None:
    a, b, c = make_report(full_meter(), 10.0, "").lists
    assert (a.name, a.num_requests, a.num_finished, a.ttft_s.max) == ("a", 4, 2, 0.3)
    assert a.backlogged_ratio == 0.9
    assert a.service_ratio == pytest.approx(4 / 3)
    assert (b.num_refused, b.itl_s.count) == (1, 1)
    assert (c.service_ratio, c.longest_wait_s) == (0.0, 4.0)


def test_a_run_without_requests_has_zeros() -> None:
    report = make_report(Meter(), 0.0, "")
    assert (report.sampled_per_s, report.rows_per_step, report.longest_wait_list, report.lists) == (0.0, 0.0, "", ())
    assert report.jain is None
