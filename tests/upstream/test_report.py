"""From pytest's report to the table, and which tests are not applicable."""

from pathlib import Path

import pytest

from tests.upstream.not_applicable import NOT_APPLICABLE, matches, reason_of
from tests.upstream.report import Outcome, Result, failures, read_results, table
from tests.upstream.run import unmatched

REPORT = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest">
  <testcase classname="unit.test_a" name="test_fine[1-&quot;x&quot;]" time="1.0"/>
  <testcase classname="unit.test_a" name="test_wrong"><failure message="assert 1 == 2&#10;more">…</failure></testcase>
  <testcase classname="unit.test_a" name="test_wrong"><error message="cannot stop">…</error></testcase>
  <testcase classname="unit.test_b" name="test_none"><skipped message="images, which are not supported"/></testcase>
  <testcase classname="unit.test_b" name="test_other"><skipped message="a model to download"/></testcase>
  <testcase classname="unit.test_b" name="test_third"><skipped message="a model to download"/></testcase>
  <testcase classname="unit.test_b" name="test_late"><error message="the fixture broke">…</error></testcase>
</testsuite></testsuites>
"""


@pytest.fixture
def results(tmp_path: Path) -> list[Result]:
    """What REPORT says."""
    path = tmp_path / "report.xml"
    path.write_text(REPORT, encoding="utf-8")
    return read_results(path)


def test_each_test_is_one_result_and_a_failure_outlasts_the_rest(results: list[Result]) -> None:
    assert [(result.test, result.outcome) for result in results] == [
        ('test_a.py::test_fine[1-"x"]', Outcome.PASSED),
        ("test_a.py::test_wrong", Outcome.FAILED),
        ("test_b.py::test_late", Outcome.FAILED),
        ("test_b.py::test_none", Outcome.NOT_APPLICABLE),
        ("test_b.py::test_other", Outcome.NOT_APPLICABLE),
        ("test_b.py::test_third", Outcome.NOT_APPLICABLE),
    ]


def test_the_table_counts_by_file_and_gives_the_reasons(results: list[Result]) -> None:
    assert table(results)[2:] == [
        "| test_a.py | 1 | 1 | 0 |  |",
        "| test_b.py | 0 | 1 | 3 | images, which are not supported (1); a model to download (2) |",
        "| all | 1 | 2 | 3 |  |",
    ]


def test_failures_are_named(results: list[Result]) -> None:
    [wrong, late] = failures(results)
    assert wrong.startswith("FAILED test_a.py::test_wrong: ")
    assert late == "FAILED test_b.py::test_late: the fixture broke"


@pytest.mark.parametrize(
    ("pattern", "test", "does"),
    [
        ("test_a.py::test_x", "test_a.py::test_x", True),
        ("test_a.py::test_x", "test_a.py::test_xy", False),
        ("test_a.py::test_x", "test_a.py::test_x[1]", False),
        ("test_a.py::test_x[*", "test_a.py::test_x[1-[a]]", True),
        ("test_a.py::test_x[*", "test_a.py::test_x_stream[1]", False),
        ("test_a.py::test_x[-1*", "test_a.py::test_x[-1-2]", True),
        ("test_a.py::test_x[-1*", "test_a.py::test_x[64-2]", False),
        ("test_a.py::*", "test_a.py::test_x[1]", True),
        ("test_a.py::*", "test_ab.py::test_x", False),
        ("test_a.py::test_.", "test_a.py::test_x", False),
    ],
)
def test_a_star_in_a_pattern_is_anything_and_all_else_is_itself(pattern: str, test: str, does: bool) -> None:
    assert matches(pattern, test) is does


def test_the_first_reason_that_fits_is_given() -> None:
    assert reason_of("test_basic.py::test_no_ui") == NOT_APPLICABLE["test_basic.py::test_no_ui"]
    assert reason_of("test_basic.py::test_server_props") is None


def test_a_pattern_that_names_no_test_is_told(results: list[Result]) -> None:
    found = [Result("test_basic.py", "test_no_ui", Outcome.NOT_APPLICABLE), *results]
    assert not any("test_no_ui" in line for line in unmatched(found))
    assert "not_applicable.py names test_proxy.py::*, which is not there" in unmatched(found)
