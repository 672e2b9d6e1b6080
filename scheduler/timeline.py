"""Who ran when in a simulation, recorded: for each list the periods in which it was computed, had a seat, or waited
without one. How it is drawn: `picture.py`."""

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduler.meter import ListMeter, Standing


class Spans:
    """Periods in order of time, as many as there are steps."""

    def __init__(self) -> None:
        self._bounds: array[float] = array("d")

    def __iter__(self) -> Iterator[tuple[float, float]]:
        bounds = iter(self._bounds)
        return zip(bounds, bounds, strict=True)

    def append(self, start_s: float, end_s: float) -> None:
        """Add a period; one that goes on where the last ended makes it longer."""
        if self._bounds and self._bounds[-1] == start_s:
            self._bounds[-1] = end_s
        else:
            self._bounds.extend((start_s, end_s))

    @property
    def total_s(self) -> float:
        """How long they are together."""
        return math.fsum(self._bounds[1::2]) - math.fsum(self._bounds[::2])

    @property
    def longest_s(self) -> float:
        """How long the longest is."""
        return max((end_s - start_s for start_s, end_s in self), default=0.0)


@dataclass(slots=True, eq=False)
class Lane:
    """One list."""

    name: str
    ran: Spans = field(default_factory=Spans)
    """A step computed it."""
    seated: Spans = field(default_factory=Spans)
    """At least one of its requests had a slot; contains `ran`."""
    seatless: Spans = field(default_factory=Spans)
    """It waited without a seat."""


class Timeline:
    """Records what falls between `start_s` and `end_s` of virtual time."""

    def __init__(self, start_s: float = 0.0, end_s: float = math.inf) -> None:
        self.start_s = start_s
        self.end_s = end_s
        self.last_s = start_s
        """The end of the last period recorded."""
        self._lanes: dict[str, Lane] = {}

    @property
    def lanes(self) -> list[Lane]:
        """The lists that had requests, in order of their first ones."""
        return list(self._lanes.values())

    def ran(self, adapter_list: ListMeter, start_s: float, end_s: float) -> None:
        """Note a step of a list."""
        self._note(self._lane(adapter_list).ran, start_s, end_s)

    def stood(self, adapter_list: ListMeter, standing: Standing, start_s: float, end_s: float) -> None:
        """Note how a list stood."""
        if standing is not Standing.IDLE:
            lane = self._lane(adapter_list)
            self._note(lane.seated if standing is Standing.SEATED else lane.seatless, start_s, end_s)

    def _lane(self, adapter_list: ListMeter) -> Lane:
        lane = self._lanes.get(adapter_list.name)
        if lane is None:
            lane = self._lanes[adapter_list.name] = Lane(adapter_list.name)
        return lane

    def _note(self, spans: Spans, start_s: float, end_s: float) -> None:
        start_s, end_s = max(start_s, self.start_s), min(end_s, self.end_s)
        if start_s < end_s:
            spans.append(start_s, end_s)
            self.last_s = max(self.last_s, end_s)
