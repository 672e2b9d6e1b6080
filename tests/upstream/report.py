"""From pytest's report (JUnit's XML) to a table: for each file what passed, failed and is not applicable, and why."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree


class Outcome(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Result:
    """One test."""

    file: str
    name: str
    """With its parameters in brackets."""
    outcome: Outcome
    message: str = ""
    """What failed, or why it is not applicable."""

    @property
    def test(self) -> str:
        """The test as patterns name it."""
        return f"{self.file}::{self.name}"


def read_results(path: Path) -> list[Result]:
    """Return the results in a report. A test that failed and whose end failed as well is one result."""
    results: dict[tuple[str, str], Result] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        result = _result(case)
        place = (result.file, result.name)
        if place not in results or result.outcome is Outcome.FAILED:
            results[place] = result
    return sorted(results.values(), key=lambda result: (result.file, result.name))


def _result(case: ElementTree.Element) -> Result:
    file, name = case.get("classname", "").rpartition(".")[2] + ".py", case.get("name", "")
    for kind, outcome in (
        ("failure", Outcome.FAILED),
        ("error", Outcome.FAILED),
        ("skipped", Outcome.NOT_APPLICABLE),
    ):
        if (found := case.find(kind)) is not None:
            lines = found.get("message", "").strip().splitlines()
            return Result(file, name, outcome, lines[0] if lines else kind)
    return Result(file, name, Outcome.PASSED)


def table(results: Iterable[Result]) -> list[str]:
    """Return the lines of the table, in Markdown."""
    by_file: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_file[result.file].append(result)
    lines = ["| file | passed | failed | not applicable | why not |", "|---|--:|--:|--:|---|"]
    totals: Counter[Outcome] = Counter()
    for file, of_file in sorted(by_file.items()):
        counts = Counter(result.outcome for result in of_file)
        totals += counts
        reasons = Counter(result.message for result in of_file if result.outcome is Outcome.NOT_APPLICABLE)
        why = "; ".join(reason if len(reasons) == 1 else f"{reason} ({count})" for reason, count in reasons.items())
        lines.append(_row(file, counts, why))
    return [*lines, _row("all", totals, "")]


def _row(name: str, counts: Counter[Outcome], why: str) -> str:
    return "| " + " | ".join([name, *(str(counts[outcome]) for outcome in Outcome), why]) + " |"


def failures(results: Sequence[Result]) -> list[str]:
    """Return a line for each test that failed."""
    return [f"FAILED {result.test}: {result.message}" for result in results if result.outcome is Outcome.FAILED]
