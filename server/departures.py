"""How soon there is room in a full queue: judged by how fast requests have left lately. It knows no HTTP."""

import math
from collections import deque

from scheduler.events import Event, Finished, FinishReason

_NUM_REMEMBERED = 32
_MAX_S = 60


class Departures:
    """The latest ends of requests. `observe` takes every event of the step loop."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=_NUM_REMEMBERED)

    def observe(self, event: Event) -> None:
        """Note the end of a request. One that leaves with nothing says nothing about how fast others are served; the
        choices of a refused request, some of which were accepted for a moment, leave so."""
        if isinstance(event, Finished) and (event.num_generated or event.reason is FinishReason.EMBEDDED):
            self._times_s.append(event.now)

    def seconds_until(self, num_places: int, now: float) -> int:
        """Return in how many whole seconds so many more places of the queue are likely to be free: 1 to 60.

        `now` is of the events' clock."""
        if not self._times_s:
            return 1
        gap_s = (now - self._times_s[0]) / len(self._times_s)
        return min(max(math.ceil(num_places * gap_s), 1), _MAX_S)
