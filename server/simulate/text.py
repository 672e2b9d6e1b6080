"""How `cohort simulate` shows the numbers of a simulation to people."""

from collections.abc import Iterator

from scheduler.report import ListReport, Percentiles, Report

_NUM_LISTS_SHOWN = 8


def report_text(report: Report) -> str:
    """Return a page of text: the whole, then the lists that fared worst."""
    return "\n".join([*_whole(report), *_latencies(report), *_fairness(report), "", *_lists(report)])


def _whole(report: Report) -> Iterator[str]:
    yield (
        f"simulated       {report.simulated_s:,.1f} s: {len(report.lists):,} lists, {report.num_requests:,} requests; "
        f"{report.num_finished:,} finished, {report.num_refused:,} were refused"
    )
    yield f"tokens/s        {report.sampled_per_s:,.1f} generated, {report.prompt_per_s:,.1f} of prompts"
    yield (
        f"steps           {report.num_steps:,}, with {report.rows_per_step:.2f} rows; "
        f"{report.cohorts_per_step:.2f} cohorts runnable; {report.switches_per_step:.0%} change the list"
    )


def _latencies(report: Report) -> Iterator[str]:
    for name, times in (("TTFT", report.ttft_s), ("ITL", report.itl_s)):
        yield (
            f"{name:16}p50 {_time(times.p50)}, p95 {_time(times.p95)}, p99 {_time(times.p99)}, "
            f"longest {_time(times.max)} ({times.count:,})"
        )


def _fairness(report: Report) -> Iterator[str]:
    yield f"longest wait    {_time(report.longest_wait_s)} of a list without a seat ({report.longest_wait_list})"
    if report.jain is not None:
        yield f"Jain's index    {report.jain:.4f} over {report.num_backlogged_lists} backlogged lists"
    yield f"seats lost      {report.num_pauses:,} pauses, {report.num_preemptions:,} preemptions"
    yield f"trace hash      {report.trace_hash}"


def _lists(report: Report) -> Iterator[str]:
    worst = sorted(report.lists, key=lambda each: (-each.longest_wait_s, -each.ttft_s.p99))
    yield (
        f"{'list':<20}{'requests':>9}{'tokens':>10}{'longest wait':>14}"
        f"{'TTFT p50 / p95 / p99':>36}{'ITL p50 / p95 / p99':>36}"
    )
    for each in worst[:_NUM_LISTS_SHOWN]:
        yield _list(each)
    if len(worst) > _NUM_LISTS_SHOWN:
        yield f"… and {len(worst) - _NUM_LISTS_SHOWN:,} lists that waited less; --json has them all"


def _list(each: ListReport) -> str:
    return (
        f"{each.name:<20}{each.num_requests:>9,}{each.num_sampled:>10,}{_time(each.longest_wait_s):>14}"
        f"{_three(each.ttft_s):>36}{_three(each.itl_s):>36}"
    )


def _three(times: Percentiles) -> str:
    return " / ".join(_time(seconds) for seconds in (times.p50, times.p95, times.p99)) if times.count else "–"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:,.2f} s"
