"""The table of policies and workloads, and its place in a page."""

from dataclasses import replace

import pytest

from scheduler.comparison import BEGIN, END, Trial, replace_between_markers, table, visitor_table
from scheduler.meter import Meter
from scheduler.report import Percentiles, Report, make_report
from tests.scheduler.builders import LIST_A


def report(tokens_per_s: float, fairness: float | None) -> Report:
    meter = Meter()
    visitor = meter.list_of(LIST_A, "visitor")
    visitor.num_requests = 7
    visitor.ttft_s.extend([0.5, 12.0])
    return replace(
        make_report(meter, 10.0, ""),
        sampled_per_s=tokens_per_s,
        jain=fairness,
        num_backlogged_lists=4,
        ttft_s=Percentiles(2, 0.5, 12.0, 1234.0, 1234.0),
        itl_s=Percentiles(2, 0.0126, 0.1, 1.2345, 1.3),
        longest_wait_s=1.05,
        num_pauses=1500,
    )


TRIALS = (Trial("hog", "fair", report(90.0, 0.99)), Trial("hog", "fcfs", report(100.0, None)))


def test_each_trial_has_a_row_with_its_part_of_the_best_throughput() -> None:
    header, rule, fair, fcfs = table(TRIALS).splitlines()
    assert header.count("|") == rule.count("|") == fair.count("|") == fcfs.count("|")
    assert "| hog | `fair` | 90 | 90% |" in fair
    assert "| 0.50 / 1,234 s | 13 / 1,234 ms | 1.05 s | 0.990 (4) | 1,500 |" in fair
    assert "| hog | `fcfs` | 100 | 100% |" in fcfs
    assert "| – |" in fcfs


def test_the_best_is_taken_for_each_workload() -> None:
    rows = table([*TRIALS, Trial("even", "fair", report(10.0, None))]).splitlines()
    assert "| even | `fair` | 10 | 100% |" in rows[-1]


def test_one_list_can_be_followed_over_the_policies() -> None:
    lines = visitor_table([*TRIALS, Trial("even", "fair", TRIALS[0].report)], "hog", "visitor").splitlines()
    assert len(lines) == 4
    assert lines[2] == "| `fair` | 7 | 0.50 s | 12 s | 12 s | 0 / 0 ms |"


def test_the_table_takes_the_place_of_the_old_one() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    renewed = replace_between_markers(page, "| new |")
    assert renewed == f"before\n{BEGIN}\n\n| new |\n\n{END}\nafter\n"
    assert replace_between_markers(renewed, "| new |") == renewed


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}\n{BEGIN}"])
def test_a_page_without_marks_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="make sim"):
        replace_between_markers(page, "new")
