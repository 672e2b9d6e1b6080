"""What a simulation measures, from the scheduler's events alone: waits, gaps and service of each list, and who ran
when. The numbers that are made of it: `report.py`.

A list *waits without a seat* while it has a waiting request and none that runs. It is *backlogged* while it has a
waiting request, seated ones or not: it asks for more than it gets. Its *service* is prompt tokens computed for it plus
twice the tokens sampled, the measure of Sheng et al. (arXiv 2401.00588). While lists are backlogged, each is *due* an
equal part of the service that they get together."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from scheduler.cohort import CohortKey
from scheduler.events import (
    Admitted,
    Event,
    Finished,
    Paused,
    Preempted,
    PromptComputed,
    Resumed,
    Shifted,
    StepDone,
    TokenSampled,
)


class Standing(IntEnum):
    """How a list stands at a moment."""

    IDLE = 0
    """It has no request."""
    SEATED = 1
    """At least one of its requests has a slot."""
    SEATLESS = 2
    """It waits without a seat."""


@dataclass(slots=True, eq=False)
class ListMeter:
    """One list's share of a simulation. Seconds are of virtual time."""

    name: str
    num_requests: int = 0
    num_refused: int = 0
    num_finished: int = 0
    num_sampled: int = 0
    ttft_s: "array[float]" = field(default_factory=lambda: array("d"))
    itl_s: "array[float]" = field(default_factory=lambda: array("d"))
    longest_wait_s: float = 0.0
    """Longest time that it waited without a seat."""
    backlogged_s: float = 0.0
    service_due: float = 0.0
    service_received: float = 0.0
    """Both while backlogged."""
    num_waiting: int = 0
    num_seated: int = 0
    standing: Standing = Standing.IDLE
    standing_since_s: float = 0.0
    backlogged_since_s: float = 0.0
    share_at_backlog: float = 0.0


@dataclass(slots=True)
class StepTotals:
    """Sums over the steps of a simulation."""

    num_steps: int = 0
    num_rows: int = 0
    num_prompt: int = 0
    num_cohorts: int = 0
    """Runnable cohorts, summed over the steps."""
    num_switches: int = 0
    num_preemptions: int = 0
    num_pauses: int = 0


StandingChange = Callable[[ListMeter, Standing, float, float], None]
"""Told of each period that a list stood in one way: list, standing, from, to."""


class Meter:
    """Watches one simulation."""

    def __init__(self, on_standing: StandingChange = lambda adapter_list, standing, start_s, end_s: None) -> None:
        self.lists: dict[CohortKey, ListMeter] = {}
        self.totals = StepTotals()
        self._on_standing = on_standing
        self._list_of: dict[int, ListMeter] = {}
        self._unanswered: dict[int, float] = {}
        """Requests without a first token: when they arrived."""
        self._paused: set[int] = set()
        self._num_backlogged = 0
        self._share = 0.0
        """Service that each backlogged list was due so far, had it been backlogged all the time."""

    def list_of(self, key: CohortKey, name: str) -> ListMeter:
        """Return the meter of a list, a new one where it is seen first."""
        found = self.lists.get(key)
        if found is None:
            found = self.lists[key] = ListMeter(name)
        return found

    def accepted(self, request_id: int, adapter_list: ListMeter, now: float) -> None:
        """Note that the scheduler took a request in."""
        adapter_list.num_requests += 1
        self._list_of[request_id] = adapter_list
        self._unanswered[request_id] = now
        self._move(adapter_list, 1, 0, now)

    def refused(self, adapter_list: ListMeter) -> None:
        """Note that the scheduler refused a request."""
        adapter_list.num_requests += 1
        adapter_list.num_refused += 1

    def saw(self, events: list[Event]) -> None:
        """Take note of what the scheduler did."""
        for event in events:
            match event:
                case TokenSampled():
                    self._sampled(event)
                case StepDone():
                    self._step(event)
                case Admitted():
                    self._move(self._list_of[event.request_id], -1, 1, event.now)
                case Finished():
                    # Nobody aborts in a simulation: what finishes was seated.
                    adapter_list = self._list_of.pop(event.request_id)
                    self._unanswered.pop(event.request_id, None)
                    adapter_list.num_finished += 1
                    self._move(adapter_list, 0, -1, event.now)
                case Paused() | Resumed() | Preempted():
                    self._changed_seat(event)
                case PromptComputed() | Shifted():  # the requests of a simulation want neither
                    pass

    def close(self, now: float) -> None:
        """End the measurement: what still waits has waited until now, and a first token that never came counts as late
        as that."""
        for request_id, arrived_s in self._unanswered.items():
            self._list_of[request_id].ttft_s.append(now - arrived_s)
        for adapter_list in self.lists.values():
            self._end_standing(adapter_list, now)
            if adapter_list.num_waiting:
                self._end_backlog(adapter_list, now)

    def _sampled(self, event: TokenSampled) -> None:
        adapter_list = self._list_of[event.request_id]
        adapter_list.num_sampled += 1
        self._serve(adapter_list, 2.0)
        if event.index:
            adapter_list.itl_s.append(event.gap_s)
        else:
            adapter_list.ttft_s.append(event.gap_s)
            del self._unanswered[event.request_id]

    def _step(self, event: StepDone) -> None:
        totals = self.totals
        num_prompt = event.num_tokens - event.num_decode
        totals.num_steps += 1
        totals.num_rows += event.num_rows
        totals.num_prompt += num_prompt
        totals.num_cohorts += event.num_cohorts
        totals.num_switches += event.is_switch
        if num_prompt:
            self._serve(self.lists[event.key], num_prompt)

    def _serve(self, adapter_list: ListMeter, service: float) -> None:
        if adapter_list.num_waiting:
            adapter_list.service_received += service
            self._share += service / self._num_backlogged

    def _changed_seat(self, event: Paused | Resumed | Preempted) -> None:
        adapter_list = self._list_of[event.request_id]
        match event:
            case Paused():
                self.totals.num_pauses += 1
                self._paused.add(event.request_id)
                self._move(adapter_list, 1, -1, event.now)
            case Resumed():
                self._paused.remove(event.request_id)
                self._move(adapter_list, -1, 1, event.now)
            case Preempted():
                self.totals.num_preemptions += 1
                if event.request_id in self._paused:  # it had no seat to lose
                    self._paused.remove(event.request_id)
                else:
                    self._move(adapter_list, 1, -1, event.now)

    def _move(self, adapter_list: ListMeter, waiting: int, seated: int, now: float) -> None:
        """Change how many requests of a list wait and how many are seated."""
        was_backlogged = adapter_list.num_waiting > 0
        adapter_list.num_waiting += waiting
        adapter_list.num_seated += seated
        if was_backlogged and not adapter_list.num_waiting:
            self._end_backlog(adapter_list, now)
        elif adapter_list.num_waiting and not was_backlogged:
            self._num_backlogged += 1
            adapter_list.backlogged_since_s, adapter_list.share_at_backlog = now, self._share
        if adapter_list.num_seated:
            standing = Standing.SEATED
        else:
            standing = Standing.SEATLESS if adapter_list.num_waiting else Standing.IDLE
        if standing is not adapter_list.standing:
            self._end_standing(adapter_list, now)
            adapter_list.standing, adapter_list.standing_since_s = standing, now

    def _end_backlog(self, adapter_list: ListMeter, now: float) -> None:
        self._num_backlogged -= 1
        adapter_list.backlogged_s += now - adapter_list.backlogged_since_s
        adapter_list.service_due += self._share - adapter_list.share_at_backlog

    def _end_standing(self, adapter_list: ListMeter, now: float) -> None:
        start_s = adapter_list.standing_since_s
        if adapter_list.standing is Standing.SEATLESS:
            adapter_list.longest_wait_s = max(adapter_list.longest_wait_s, now - start_s)
        if now > start_s:
            self._on_standing(adapter_list, adapter_list.standing, start_s, now)
