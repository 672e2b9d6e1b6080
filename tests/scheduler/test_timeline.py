"""What is recorded of who ran when."""

from scheduler.meter import ListMeter, Standing
from scheduler.timeline import Spans, Timeline

A, B = ListMeter("a"), ListMeter("b")


def test_spans_that_touch_are_one() -> None:
    spans = Spans()
    for start_s, end_s in ((0.0, 1.0), (1.0, 3.0), (5.0, 6.0)):
        spans.append(start_s, end_s)
    assert list(spans) == [(0.0, 3.0), (5.0, 6.0)]
    assert (spans.total_s, spans.longest_s) == (4.0, 3.0)


def test_no_spans_have_no_length() -> None:
    assert (Spans().total_s, Spans().longest_s) == (0.0, 0.0)


def test_each_list_has_a_lane_with_its_steps_and_standings() -> None:
    timeline = Timeline()
    timeline.stood(B, Standing.SEATLESS, 0.0, 2.0)
    timeline.ran(A, 0.0, 1.0)
    timeline.stood(A, Standing.SEATED, 0.0, 4.0)
    b, a = timeline.lanes
    assert (a.name, list(a.ran), list(a.seated), list(a.seatless)) == ("a", [(0.0, 1.0)], [(0.0, 4.0)], [])
    assert (b.name, list(b.seatless)) == ("b", [(0.0, 2.0)])
    assert timeline.last_s == 4.0


def test_idle_lists_have_no_lane() -> None:
    timeline = Timeline()
    timeline.stood(A, Standing.IDLE, 0.0, 1.0)
    assert timeline.lanes == []


def test_what_lies_outside_the_window_is_cut_off() -> None:
    timeline = Timeline(10.0, 20.0)
    for start_s, end_s in ((0.0, 5.0), (8.0, 11.0), (12.0, 13.0), (19.0, 25.0), (30.0, 31.0)):
        timeline.ran(A, start_s, end_s)
    assert list(timeline.lanes[0].ran) == [(10.0, 11.0), (12.0, 13.0), (19.0, 20.0)]
    assert timeline.last_s == 20.0
