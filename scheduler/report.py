"""The numbers of a simulation: throughput, latencies, waits and fairness, overall and for each list.

Percentiles are nearest-rank: the smallest value that at least so many percent do not exceed. Jain's index is Jain, Chiu
and Hawe, "A Quantitative Measure of Fairness" (DEC TR-301, 1984), weighted as `jain` says."""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.meter import ListMeter, Meter

MIN_BACKLOGGED_RATIO = 0.5
"""Lists that were backlogged for a smaller part of the time ask for less than a fair share, and get what they ask."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a set of durations, in seconds. Of an empty set all are 0."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class ListReport:
    """One list."""

    name: str
    num_requests: int
    num_refused: int
    num_finished: int
    num_sampled: int
    ttft_s: Percentiles
    itl_s: Percentiles
    longest_wait_s: float
    """Without a seat."""
    backlogged_ratio: float
    """Of the time simulated."""
    service_ratio: float | None
    """Service received over service due, while backlogged; None where nothing was due."""


@dataclass(frozen=True, slots=True)
class Report:
    """One simulation. Means over steps are over all steps alike."""

    simulated_s: float
    num_requests: int
    num_refused: int
    num_finished: int
    num_sampled: int
    num_prompt: int
    """Prompt tokens computed; those recomputed after a preemption count again."""
    num_steps: int
    sampled_per_s: float
    prompt_per_s: float
    rows_per_step: float
    cohorts_per_step: float
    """Runnable when the step was planned."""
    switches_per_step: float
    ttft_s: Percentiles
    """A request without a first token at the end counts with the time until then."""
    itl_s: Percentiles
    longest_wait_s: float
    """Longest time that any list waited without a seat."""
    longest_wait_list: str
    jain: float | None
    """Of the backlogged lists; None where there are fewer than two."""
    num_backlogged_lists: int
    num_preemptions: int
    num_pauses: int
    trace_hash: str
    lists: tuple[ListReport, ...]
    """In order of their first requests."""


def percentiles(values: Iterable[float]) -> Percentiles:
    """Return the percentiles of `values`."""
    ordered = sorted(values)
    if not ordered:
        return Percentiles(0, 0.0, 0.0, 0.0, 0.0)
    count = len(ordered)
    p50, p95, p99 = (ordered[math.ceil(count * percent / 100) - 1] for percent in (50, 95, 99))
    return Percentiles(count, p50, p95, p99, ordered[-1])


def jain(received: Sequence[float], due: Sequence[float]) -> float | None:
    """Return Jain's index of received / due, each list weighted by what it was due; None for fewer than two lists.

    Where all were due the same it is the well-known (Σx)² / (n · Σx²) over what they received."""
    if len(received) < 2:
        return None
    squares = sum(due) * sum(x * x / d for x, d in zip(received, due, strict=True))
    return sum(received) ** 2 / squares if squares else None


def make_report(meter: Meter, simulated_s: float, trace_hash: str) -> Report:
    """Return the numbers of a simulation that took `simulated_s` seconds; `meter` is closed."""
    totals = meter.totals
    meters = list(meter.lists.values())
    reports = tuple(_list_report(each, simulated_s) for each in meters)
    worst = max(reports, key=lambda each: each.longest_wait_s, default=None)
    backlogged = [m for m in meters if m.service_due and m.backlogged_s >= MIN_BACKLOGGED_RATIO * simulated_s]
    num_steps = max(totals.num_steps, 1)
    num_sampled = sum(each.num_sampled for each in meters)
    return Report(
        simulated_s=simulated_s,
        num_requests=sum(each.num_requests for each in meters),
        num_refused=sum(each.num_refused for each in meters),
        num_finished=sum(each.num_finished for each in meters),
        num_sampled=num_sampled,
        num_prompt=totals.num_prompt,
        num_steps=totals.num_steps,
        sampled_per_s=_per(num_sampled, simulated_s),
        prompt_per_s=_per(totals.num_prompt, simulated_s),
        rows_per_step=totals.num_rows / num_steps,
        cohorts_per_step=totals.num_cohorts / num_steps,
        switches_per_step=totals.num_switches / num_steps,
        ttft_s=percentiles(_joined(each.ttft_s for each in meters)),
        itl_s=percentiles(_joined(each.itl_s for each in meters)),
        longest_wait_s=worst.longest_wait_s if worst else 0.0,
        longest_wait_list=worst.name if worst else "",
        jain=jain([each.service_received for each in backlogged], [each.service_due for each in backlogged]),
        num_backlogged_lists=len(backlogged),
        num_preemptions=totals.num_preemptions,
        num_pauses=totals.num_pauses,
        trace_hash=trace_hash,
        lists=reports,
    )


def _list_report(each: ListMeter, simulated_s: float) -> ListReport:
    return ListReport(
        name=each.name,
        num_requests=each.num_requests,
        num_refused=each.num_refused,
        num_finished=each.num_finished,
        num_sampled=each.num_sampled,
        ttft_s=percentiles(each.ttft_s),
        itl_s=percentiles(each.itl_s),
        longest_wait_s=each.longest_wait_s,
        backlogged_ratio=_per(each.backlogged_s, simulated_s),
        service_ratio=each.service_received / each.service_due if each.service_due else None,
    )


def _joined(arrays: "Iterable[array[float]]") -> "array[float]":
    joined = array("d")
    for each in arrays:
        joined.extend(each)
    return joined


def _per(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0
