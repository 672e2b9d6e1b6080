"""I10, I11 and I12 as a watcher of events: how long a list waits for a seat, how far service drifts apart, and what a
seat is worth. It never looks inside the scheduler; the formulas are those of docs/scheduling.md."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler.batch import Batch
from scheduler.cohort import CohortKey
from scheduler.core import SchedulerLimits
from scheduler.events import Admitted, Event, Finished, Paused, Preempted, Resumed, Shifted, TokenSampled
from scheduler.fairness import FairnessSettings
from scheduler.kv_space import blocks_for
from scheduler.request import Request


@dataclass(frozen=True)
class Bounds:
    """The bounds of the policy `fair`. A step takes at most `step_s`."""

    limits: SchedulerLimits
    fairness: FairnessSettings
    step_s: float = 1.0

    @property
    def num_prefill_turns(self) -> int:
        """P: turns in which any one request is computed up to its next token."""
        return math.ceil(self.limits.max_context / (self.limits.max_step_tokens - self.limits.num_slots + 1))

    @property
    def handover_s(self) -> float:
        """T: time in which active lists have advanced and have had their tenure, and hand over."""
        num_steps = (3 * self.num_prefill_turns + 1) * self.limits.num_slots
        return self.fairness.max_wait_s + num_steps * self.step_s

    @property
    def num_at_a_time(self) -> int:
        """a: lists that are seated in each such time; where not all requests fit the pool, perhaps one."""
        num_slots = self.limits.num_slots
        if self.limits.num_blocks < num_slots * blocks_for(self.limits.max_context):
            return 1
        return min(self.fairness.max_active_lists or max(2, num_slots // 4), num_slots)

    def wait_s(self, num_ahead: int) -> float:
        """I10, for a list that begins to wait behind so many."""
        num_handovers = num_ahead // self.num_at_a_time + 1
        return self.fairness.max_wait_s + self.step_s + num_handovers * self.handover_s

    def lead(self, weight: float = 1.0) -> float:
        """I11: service by which a list of this weight can be ahead of one that waits."""
        num_tokens = self.limits.max_step_tokens + 2 * self.limits.num_slots + self.limits.max_context + 1
        return 4 * self.fairness.slack_tokens + num_tokens / weight


@dataclass
class _Standing:
    """What one list has, as far as events tell."""

    waiting: dict[int, bool] = field(default_factory=dict)
    """Whether each request that waits is free to take any slot."""
    seated: dict[int, bool] = field(default_factory=dict)
    """Whether each request with a seat has sampled since it got it."""
    since_s: float | None = None
    """Since when it has no seat, and a request that any slot would do for."""
    num_ahead: int = 0
    can_be_kept: bool = False
    """It has a seat, and has neither sampled nor lost a request otherwise since it had none."""
    service: float = 0.0

    @property
    def waits_freely(self) -> bool:
        return any(self.waiting.values())


class ListWatch:
    """Fed with arrivals, events, plans and computed batches, in order; asserts the bounds."""

    def __init__(self, bounds: Bounds, weight_of: Callable[[CohortKey], float] = lambda key: 1.0) -> None:
        self.bounds = bounds
        self._weight_of = weight_of
        self._standings: defaultdict[CohortKey, _Standing] = defaultdict(_Standing)
        self._gaps: dict[tuple[CohortKey, CohortKey], float] = {}
        """For lists that both wait: the least that the first was ahead of the second, in service, since they do."""
        self._was_overdue = False
        self.longest_wait_s = 0.0
        self.longest_share = 0.0
        """Of waits, of their bounds."""
        self.widest_gap = 0.0
        self.num_late_seats = 0

    def arrive(self, request: Request, now: float) -> None:
        """An accepted request begins to wait."""
        self._standings[request.key].waiting[request.request_id] = request.slot_id_wanted is None
        self._settle(request.key, now)

    def see(self, event: Event, request: Request | None) -> None:
        """Follow who waits and who sits; `request` is the one of the event."""
        if request is None or isinstance(event, TokenSampled):
            if request is not None and request.request_id in self._standings[request.key].seated:
                self._standings[request.key].seated[request.request_id] = True
                self._standings[request.key].can_be_kept = False
            return
        standing = self._standings[request.key]
        if isinstance(event, Admitted | Resumed):
            self._seat(standing, request.request_id)
        elif isinstance(event, Paused | Preempted | Shifted) and request.request_id in standing.seated:
            self._unseat(standing, request, event)
        elif isinstance(event, Finished):
            standing.waiting.pop(request.request_id, None)
            standing.seated.pop(request.request_id, None)
            standing.can_be_kept = False
        self._settle(request.key, event.now)

    def _seat(self, standing: _Standing, request_id: int) -> None:
        del standing.waiting[request_id]
        standing.can_be_kept |= not standing.seated
        standing.seated[request_id] = False

    def _unseat(self, standing: _Standing, request: Request, event: Paused | Preempted | Shifted) -> None:
        has_sampled = standing.seated.pop(request.request_id)
        standing.waiting[request.request_id] = request.slot_id_wanted is None
        if not isinstance(event, Paused):
            assert has_sampled, "a running request was preempted before it had sampled since it got its seat (I12)"
        assert standing.seated or not standing.can_be_kept, "a list lost its seat before it had sampled (I12)"

    def _settle(self, key: CohortKey, now: float) -> None:
        """Note where waits begin and end."""
        standing = self._standings[key]
        if standing.seated or not standing.waits_freely:
            standing.since_s = None
        elif standing.since_s is None:
            standing.since_s = now
            standing.num_ahead = sum(
                bool(other.waiting) and not other.seated for each, other in self._standings.items() if each != key
            )
        if not standing.waits_freely:
            self._gaps = {pair: gap for pair, gap in self._gaps.items() if key not in pair}
        else:
            for other, its in self._standings.items():
                if other != key and its.waits_freely:
                    self._gaps.setdefault((key, other), standing.service - its.service)
                    self._gaps.setdefault((other, key), its.service - standing.service)

    def planned(self, now: float) -> None:
        """Seats have been given out: I10 for those who got none."""
        if not any(standing.waiting or standing.seated for standing in self._standings.values()):
            self._was_overdue = False
            self._standings.clear()
        for standing in self._standings.values():
            if standing.since_s is not None:
                wait_s = now - standing.since_s
                self.longest_wait_s = max(self.longest_wait_s, wait_s)
                self._was_overdue |= wait_s >= self.bounds.fairness.max_wait_s
                bound_s = self.bounds.wait_s(standing.num_ahead)
                assert wait_s <= bound_s, f"a list waited {wait_s} s, the bound is {bound_s} s (I10)"
                self.longest_share = max(self.longest_share, wait_s / bound_s)

    def computed(self, batch: Batch, requests: dict[int, Request]) -> None:
        """A step was committed: I11, as long as no list has been overdue."""
        for row in batch.rows:
            key = requests[row.request_id].key
            tokens = (0 if row.is_decode else len(row.token_ids)) + 2 * (row.sampling is not None)
            self._standings[key].service += tokens / self._weight_of(key)
        for (ahead, behind), least in self._gaps.items():
            gap = self._standings[ahead].service - self._standings[behind].service
            self._gaps[ahead, behind] = min(least, gap)
            if not self._was_overdue:
                bound = self.bounds.lead(self._weight_of(ahead)) + self.bounds.lead(self._weight_of(behind))
                assert gap - least <= bound, f"service drifted apart by {gap - least}, the bound is {bound} (I11)"
                self.widest_gap = max(self.widest_gap, gap - least)
