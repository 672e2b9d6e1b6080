"""Recorded arrivals as a CSV file, for `cohort simulate --trace`.

The first line names the columns, in any order: arrival_s,list,prompt_tokens,output_tokens. Rows need not be in order of
time. A file with one bad row is refused as a whole."""

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from scheduler.workload import Arrival

COLUMNS = ("arrival_s", "list", "prompt_tokens", "output_tokens")


class TraceError(ValueError):
    """A trace that cannot be read. The message names the line and the field."""


def load_trace(path: Path) -> tuple[Arrival, ...]:
    """Read a trace file. Raises TraceError where a row is wrong, OSError where the file cannot be read."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return read_trace(file)
    except UnicodeDecodeError as error:
        raise TraceError(f"the file is not UTF-8: {error}") from error


def read_trace(lines: Iterable[str]) -> tuple[Arrival, ...]:
    """Return the requests of a trace in order of time; those of one moment keep their order. Raises TraceError."""
    rows = csv.reader(lines, strict=True)
    try:
        places = _places(next(rows, []))
        arrivals = [_arrival(row, places, rows.line_num) for row in rows if row]
    except csv.Error as error:
        raise TraceError(f"line {rows.line_num}: {error}") from error
    return tuple(sorted(arrivals, key=lambda arrival: arrival.arrival_s))


def _places(header: list[str]) -> list[int]:
    """Where in a row each of COLUMNS stands."""
    names = [name.strip() for name in header]
    if sorted(names) != sorted(COLUMNS):
        raise TraceError(f"line 1: the columns are {','.join(names)!r}, expected {','.join(COLUMNS)!r}")
    return [names.index(name) for name in COLUMNS]


def _arrival(row: list[str], places: list[int], line: int) -> Arrival:
    if len(row) != len(COLUMNS):
        raise TraceError(f"line {line}: {len(row)} fields, expected {len(COLUMNS)}")
    arrival_s, name, prompt_tokens, output_tokens = (row[place].strip() for place in places)
    if not name:
        raise TraceError(f"line {line}: list is empty; the base model is called 'base'")
    return Arrival(
        _seconds(arrival_s, line),
        name,
        _count(prompt_tokens, "prompt_tokens", line),
        _count(output_tokens, "output_tokens", line),
    )


def _seconds(text: str, line: int) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise TraceError(f"line {line}: arrival_s is {text!r}, expected seconds from 0 on")
    return seconds


def _count(text: str, field: str, line: int) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise TraceError(f"line {line}: {field} is {text!r}, expected a whole number of at least 1")
    return count
