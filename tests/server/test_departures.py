"""How long a refused client is told to wait."""

import pytest

from scheduler.events import Finished, FinishReason, Preempted
from server.departures import Departures


def departures(*times_s: float) -> Departures:
    """Requests that ended at these times."""
    seen = Departures()
    for now in times_s:
        seen.observe(Preempted(1, (), now))
        seen.observe(Finished(2, (), FinishReason.ABORT, "", 3, 0, 0, 0.0, now))
        seen.observe(Finished(0, (), FinishReason.EOS, "", 3, 5, 0, 0.0, now))
    return seen


@pytest.mark.parametrize(
    ("times_s", "num_places", "now", "seconds"),
    [
        ((), 5, 100.0, 1),  # nothing is known
        ((0.0, 2.0, 4.0, 6.0), 1, 8.0, 2),
        ((0.0, 2.0, 4.0, 6.0), 3, 8.0, 6),
        ((0.0, 2.0, 4.0, 6.0), 1, 10.0, 3),  # they leave more slowly now
        ((0.0, 0.25, 0.5, 0.75), 1, 1.0, 1),
        ((0.0, 2.0), 1000, 4.0, 60),
    ],
)
def test_it_follows_how_fast_requests_leave(
    times_s: tuple[float, ...], num_places: int, now: float, seconds: int
) -> None:
    assert departures(*times_s).seconds_until(num_places, now) == seconds


def test_what_was_long_ago_does_not_count() -> None:
    times_s = [0.0, *(1000.0 + number for number in range(32))]
    assert departures(*times_s).seconds_until(1, 1032.0) == 1
