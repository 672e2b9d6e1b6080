"""The picture is well-formed SVG, and its bars are as high as they should be."""

import re
from xml.etree import ElementTree

import pytest

from scheduler.meter import ListMeter, Standing
from scheduler.picture import MAX_LANES, draw
from scheduler.timeline import Timeline

SVG = "{http://www.w3.org/2000/svg}"
WIDTH, BAR = 880, 16


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def bars(svg: str) -> list[list[tuple[float, float]]]:
    """For each filled path its runs of columns: width and height."""
    found = []
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        outline = path.get("d", "")
        start = re.match(r"M[0-9]+,([0-9]+)V", outline)
        if start and path.get("fill"):
            runs = re.findall(r"V([0-9.]+)h([0-9]+)", outline)
            found.append([(float(width), float(start[1]) - float(top)) for top, width in runs])
    return found


def test_a_list_that_runs_all_the_time_fills_its_lane() -> None:
    timeline = Timeline()
    timeline.ran(ListMeter("a"), 0.0, 10.0)
    timeline.stood(ListMeter("a"), Standing.SEATED, 0.0, 10.0)
    assert bars(draw(timeline, "title")) == [[(WIDTH, BAR)]] * 3


def test_bars_stand_where_and_as_high_as_the_time_was_spent() -> None:
    timeline = Timeline()
    a = ListMeter("a")
    timeline.stood(a, Standing.SEATLESS, 0.0, 5.0)
    timeline.stood(a, Standing.SEATED, 5.0, 10.0)
    for tenth in range(500, 1000):  # runs in the first half of each hundredth of a second
        timeline.ran(a, tenth / 100, (tenth + 0.5) / 100)
    seatless, seated, ran = bars(draw(timeline, ""))
    assert seatless == [(WIDTH, BAR)]
    assert seated == [(WIDTH / 2, 0), (WIDTH / 2, BAR)]
    assert ran[:1] == [(WIDTH / 2, 0)]
    assert sum(width * height for width, height in ran) == pytest.approx(WIDTH / 2 * BAR / 2, rel=0.05)
    assert all(height < BAR for _, height in ran)


def test_names_and_title_are_escaped_and_long_names_shortened() -> None:
    timeline = Timeline()
    timeline.ran(ListMeter("<b>&"), 0.0, 1.0)
    timeline.ran(ListMeter("a-very-long-name-of-a-list"), 0.0, 1.0)
    found = texts(draw(timeline, "a < b"))
    assert {"<b>&", "a < b", "a-very-long-name…"} <= set(found)


def test_lanes_are_in_order_of_their_numbers_with_their_shares() -> None:
    timeline = Timeline()
    for number in (10, 2, 1):
        timeline.ran(ListMeter(f"list-{number}"), 0.0, 5.0)
    timeline.stood(ListMeter("list-2"), Standing.SEATLESS, 5.0, 10.0)
    found = texts(draw(timeline, ""))
    assert [text for text in found if text.startswith("list-")] == ["list-1", "list-2", "list-10"]
    at = found.index("list-2")
    assert found[at + 1 : at + 3] == ["50.0%", "5.00 s"]


def test_the_axis_is_in_seconds_of_the_window() -> None:
    timeline = Timeline(0.25, 0.75)
    timeline.ran(ListMeter("a"), 0.0, 1.0)
    assert {"0.25", "0.50", "0.75"} <= set(texts(draw(timeline, "")))


def test_of_many_lists_those_that_ran_most_and_waited_longest_are_drawn() -> None:
    timeline = Timeline()
    for number in range(3 * MAX_LANES):
        adapter_list = ListMeter(f"list-{number}")
        timeline.ran(adapter_list, 0.0, 1.0 + number)
        timeline.stood(adapter_list, Standing.SEATLESS, 500.0, 1000.0 - number)
    found = texts(draw(timeline, ""))
    names = [text for text in found if text.startswith("list-")]
    half = MAX_LANES // 2
    expected = [*range(half), *range(3 * MAX_LANES - half, 3 * MAX_LANES)]
    assert names == [f"list-{number}" for number in expected]
    assert any(f"{2 * MAX_LANES} more lists" in text for text in found)


def test_a_run_without_requests_can_be_drawn() -> None:
    assert "seconds" in texts(draw(Timeline(), "nothing"))
