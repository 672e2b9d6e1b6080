"""The table that compares the policies on the five workloads, and where in a page of documentation it stands."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.report import Report

BEGIN = "<!-- begin: written by `make sim` -->"
END = "<!-- end: written by `make sim` -->"


class PageError(ValueError):
    """A page that has no place for the table."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One policy on one workload."""

    workload: str
    policy: str
    report: Report


_COLUMNS = (
    "workload",
    "policy",
    "tokens/s",
    "of the best",
    "rows a step",
    "cohorts",
    "TTFT p50 / p99",
    "ITL p50 / p99",
    "longest wait of a list",
    "Jain (lists)",
    "pauses",
)


def table(trials: Sequence[Trial]) -> str:
    """Return a Markdown table, a row for each trial in order."""
    best: dict[str, float] = {}
    for trial in trials:
        best[trial.workload] = max(best.get(trial.workload, 0.0), trial.report.sampled_per_s)
    header = f"| {' | '.join(_COLUMNS)} |\n|---|---|{'--:|' * (len(_COLUMNS) - 2)}"
    return "\n".join([header, *(_row(trial, best[trial.workload]) for trial in trials)])


def _row(trial: Trial, best: float) -> str:
    report = trial.report
    fairness = "–" if report.jain is None else f"{report.jain:.3f} ({report.num_backlogged_lists})"
    cells = (
        trial.workload,
        f"`{trial.policy}`",
        f"{report.sampled_per_s:.0f}",
        f"{report.sampled_per_s / best:.0%}" if best else "–",
        f"{report.rows_per_step:.1f}",
        f"{report.cohorts_per_step:.1f}",
        f"{_seconds(report.ttft_s.p50)} / {_seconds(report.ttft_s.p99)} s",
        f"{_milliseconds(report.itl_s.p50)} / {_milliseconds(report.itl_s.p99)} ms",
        f"{_seconds(report.longest_wait_s)} s",
        fairness,
        f"{report.num_pauses:,}",
    )
    return f"| {' | '.join(cells)} |"


def visitor_table(trials: Sequence[Trial], workload: str, name: str) -> str:
    """Return a Markdown table of what one list of one workload lived through under each policy."""
    lines = [f"| TTFT of `{name}` | visits | p50 | p99 | longest | ITL p50 / p99 |", "|---|--:|--:|--:|--:|--:|"]
    for trial in trials:
        for each in trial.report.lists:
            if (trial.workload, each.name) == (workload, name):
                itl = f"{_milliseconds(each.itl_s.p50)} / {_milliseconds(each.itl_s.p99)} ms"
                times = " | ".join(
                    f"{_seconds(seconds)} s" for seconds in (each.ttft_s.p50, each.ttft_s.p99, each.ttft_s.max)
                )
                lines.append(f"| `{trial.policy}` | {each.num_requests} | {times} | {itl} |")
    return "\n".join(lines)


def replace_between_markers(page: str, text: str) -> str:
    """Return `page` with what stands between BEGIN and END replaced. Raises PageError where it lacks them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PageError(f"the page has no lines {BEGIN!r} and {END!r}, in this order")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:,.0f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}"
