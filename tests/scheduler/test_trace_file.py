"""Trace files: read in order of time, or refused with the line and the field."""

from pathlib import Path

import pytest

from scheduler.trace_file import TraceError, load_trace, read_trace
from scheduler.workload import Arrival

HEADER = "arrival_s,list,prompt_tokens,output_tokens"


def test_rows_come_in_order_of_time_and_those_of_one_moment_in_order_of_the_file() -> None:
    lines = [HEADER, "2.5,pirate,10,4", "0,base,3,1", "2.5,emoji,7,2"]
    assert read_trace(lines) == (
        Arrival(0.0, "base", 3, 1),
        Arrival(2.5, "pirate", 10, 4),
        Arrival(2.5, "emoji", 7, 2),
    )


def test_columns_may_stand_in_any_order_and_names_may_hold_commas() -> None:
    lines = ["list, output_tokens,arrival_s,prompt_tokens", '"a,b",4,1.5,10', "", "c,1,2,3"]
    assert read_trace(lines) == (Arrival(1.5, "a,b", 10, 4), Arrival(2.0, "c", 3, 1))


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("x,a,1,1", "line 3: arrival_s is 'x', expected seconds from 0 on"),
        ("-1,a,1,1", "line 3: arrival_s is '-1', expected seconds from 0 on"),
        ("nan,a,1,1", "line 3: arrival_s is 'nan', expected seconds from 0 on"),
        ("inf,a,1,1", "line 3: arrival_s is 'inf', expected seconds from 0 on"),
        ("1, ,1,1", "line 3: list is empty; the base model is called 'base'"),
        ("1,a,0,1", "line 3: prompt_tokens is '0', expected a whole number of at least 1"),
        ("1,a,1.5,1", "line 3: prompt_tokens is '1.5', expected a whole number of at least 1"),
        ("1,a,1,", "line 3: output_tokens is '', expected a whole number of at least 1"),
        ("1,a,1", "line 3: 3 fields, expected 4"),
        ("1,a,1,1,1", "line 3: 5 fields, expected 4"),
        ('1,"a"b,1,1', "line 3: ',' expected after '\"'"),
    ],
)
def test_a_bad_row_is_refused_with_its_line_and_field(row: str, complaint: str) -> None:
    with pytest.raises(TraceError) as error:
        read_trace([HEADER, "0,a,1,1", row])
    assert str(error.value) == complaint


@pytest.mark.parametrize("header", ["", "0,a,1,1", "arrival_s,list,prompt_tokens", f"{HEADER},tenant"])
def test_a_wrong_header_is_refused_with_the_right_one(header: str) -> None:
    with pytest.raises(TraceError, match=f"line 1: .* expected '{HEADER}'"):
        read_trace([header] if header else [])


def test_a_file_is_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text(f"{HEADER}\r\n1,ä,2,3\r\n", encoding=encoding)
        assert load_trace(path) == (Arrival(1.0, "ä", 2, 3),)


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(f"{HEADER}\n1,ä,2,3\n".encode("latin-1"))
    with pytest.raises(TraceError, match="not UTF-8"):
        load_trace(path)
