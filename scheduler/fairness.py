"""Fair admission: which adapter list gets a free seat, and which list must give one up.

Each list has a *service* counter: tokens computed for it, prompt tokens once and sampled tokens twice, over its weight.
It is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (arXiv 2401.00588): a list
that begins to wait is lifted to the least served of those that wait, so that nobody saves up service. On top of it:

- *Locality.* A free seat goes to a list that already runs, as long as that list is at most `slack_tokens` ahead of the
  least served list that waits. Few lists at a time keep cohorts large, and a step costs little more for sixteen rows
  than for one (dLoRA, OSDI 2024).
- *Maximum wait.* A list without any seat is overdue after `max_wait_s`; overdue lists are seated in the order in which
  they began to wait. While few lists are active, the one with most seats gives up to half of them; else the most served
  of the lists whose tenure is over hands over its seats.
- *Bounded difference.* Where a list is more than twice the slack ahead of one that waits, and holds more seats, it
  gives up one; where it is more than four times the slack ahead, it gives up all it can.
- *Late requests.* Of an active list of which a request has waited for `max_wait_s` one more is seated, from a list with
  more seats that was not served less: so lists that are active together come to have equal seats.

A request that gives up its seat is paused: it keeps its KV while blocks last. It has always advanced since it was
seated, or an older one of its list stays. Bounds and proofs: docs/scheduling.md (I10 … I12). It knows no slots, no
blocks and no turns."""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from scheduler.admission import HasSlot, Swap
from scheduler.cohort import CohortKey
from scheduler.request import Request

_PROMPT_COST, _SAMPLED_COST = 1.0, 2.0
"""A sampled token is worth two of a prompt, as in the paper's experiments: prompts are computed many tokens at once."""
_MAX_REMEMBERED = 10_000
"""Idle lists whose service is remembered."""


@dataclass(frozen=True, slots=True)
class FairnessSettings:
    """What may be tuned, though nothing needs to be."""

    max_wait_s: float = 1.0
    """A list that has waited so long without a seat is given one."""
    slack_tokens: float = 1024
    """Service by which a list that runs may be ahead of one that waits, for the sake of large cohorts."""
    max_active_lists: int = 0
    """From so many active lists on, an overdue one replaces another; 0: a quarter of the slots, at least 2."""


DEFAULT_FAIRNESS = FairnessSettings()


@dataclass(slots=True, eq=False)
class _List:
    """An adapter list that has requests, waiting or seated."""

    key: CohortKey
    weight: float
    service: float
    unseated: OrderedDict[int, Request] = field(default_factory=OrderedDict)
    new: OrderedDict[int, Request] = field(default_factory=OrderedDict)
    seated: dict[int, Request] = field(default_factory=dict)
    """In order of admission."""
    since_s: float = 0.0
    """When it became active, or began to wait without a seat."""
    oldest_since_s: float = 0.0
    """While it has not sampled since it became active: when a seat of it was last lost, or it became active."""
    first_token_s: float | None = None
    """When it first sampled since it became active."""

    @property
    def is_waiting(self) -> bool:
        return bool(self.unseated or self.new)

    def waiting(self, has_slot: HasSlot) -> Iterator[Request]:
        """Its requests that a slot could be given to, in order."""
        return filter(has_slot, itertools.chain(self.unseated.values(), self.new.values()))

    def seats_per_weight(self) -> float:
        return len(self.seated) / self.weight

    def is_tenure_over(self, now: float, max_wait_s: float) -> bool:
        """Whether it has had its seats for `max_wait_s`, and since its first token for as long as that took: so that
        where KV is lost again and again, computing it takes at most half of the time."""
        first = self.first_token_s
        return now - self.since_s >= max_wait_s and (first is None or now - first >= first - self.oldest_since_s)

    def is_late(self, before_s: float) -> bool:
        """Whether one of its requests has waited since `before_s` or longer."""
        heads = (next(iter(requests.values()), None) for requests in (self.unseated, self.new))
        return any(head is not None and head.queued_s <= before_s for head in heads)

    def can_pause(self) -> list[Request]:
        """Seated requests that may give up their seats, the newest first.

        Each has advanced since it was seated, or leaves an older one in its seat: so every list advances while it is
        active."""
        oldest = next(iter(self.seated.values()), None)
        return [r for r in reversed(self.seated.values()) if r is not oldest or len(r.output) > r.num_output_at_seat]


class FairQueue:
    """The admission queue of the policy `fair`."""

    def __init__(
        self,
        num_slots: int,
        settings: FairnessSettings = DEFAULT_FAIRNESS,
        weight_of: Callable[[CohortKey], float] = lambda key: 1.0,
    ) -> None:
        self.settings = settings
        self._max_active = settings.max_active_lists or max(2, num_slots // 4)
        self._weight_of = weight_of
        self._lists: dict[CohortKey, _List] = {}
        self._active: dict[CohortKey, _List] = {}
        """Lists with a seat: at most as many as there are slots."""
        self._seatless: OrderedDict[CohortKey, _List] = OrderedDict()
        """Lists that wait without a seat, the longest wait first."""
        self._least: list[tuple[float, int, CohortKey]] = []
        """Heap over the service of waiting lists. Entries of lists that do not wait, or were served since, are
        stale."""
        self._serials = itertools.count()
        self._remembered: OrderedDict[CohortKey, float] = OrderedDict()
        self._level = 0.0
        """Service to which lists are lifted that begin to wait."""
        self._num_waiting = 0
        self._next: Request | None = None
        """The waiting request that was chosen and lacked blocks."""

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Request]:
        for adapter_list in self._lists.values():
            yield from adapter_list.waiting(lambda request: True)

    def service_of(self, key: CohortKey) -> float:
        """Return the service of a list that has requests."""
        return self._lists[key].service

    def longest_wait_s(self, now: float) -> float:
        first = next(iter(self._seatless.values()), None)
        return 0.0 if first is None else now - first.since_s

    # Transitions.

    def push(self, request: Request, now: float) -> None:
        adapter_list = self._lists.get(request.key) or self._enter(request.key)
        if not adapter_list.is_waiting and not adapter_list.seated:
            self._begin_seatless(adapter_list, now)
        self._lift(adapter_list)
        adapter_list.new[request.request_id] = request
        self._num_waiting += 1
        self._note_service(adapter_list)

    def seat(self, request: Request, now: float) -> None:
        adapter_list = self._lists[request.key]
        self._stop_waiting(adapter_list, request)
        if not adapter_list.seated:
            del self._seatless[request.key]
            self._active[request.key] = adapter_list
            adapter_list.since_s = adapter_list.oldest_since_s = now
            adapter_list.first_token_s = None
        adapter_list.seated[request.request_id] = request

    def unseat(self, request: Request, now: float) -> None:
        adapter_list = self._lists[request.key]
        del adapter_list.seated[request.request_id]
        self._lift(adapter_list)
        # The newest is unseated first, so the latest to come back belongs in front.
        adapter_list.unseated[request.request_id] = request
        adapter_list.unseated.move_to_end(request.request_id, last=False)
        self._num_waiting += 1
        self._note_service(adapter_list)
        self._note_lost_seat(adapter_list, now)

    def leave(self, request: Request, now: float) -> None:
        adapter_list = self._lists[request.key]
        was_seated = adapter_list.seated.pop(request.request_id, None) is not None
        if not was_seated:
            self._stop_waiting(adapter_list, request)
        if not adapter_list.seated and not adapter_list.is_waiting:
            self._retire(adapter_list)
        elif was_seated:
            self._note_lost_seat(adapter_list, now)

    def served(self, key: CohortKey, num_prompt: int, num_sampled: int, now: float) -> None:
        tokens = _PROMPT_COST * num_prompt + _SAMPLED_COST * num_sampled
        adapter_list = self._lists.get(key)
        if adapter_list is None:  # the step's last request ended while it was computed
            if key in self._remembered:
                self._remembered[key] += tokens / self._weight_of(key)
            return
        adapter_list.service += tokens / adapter_list.weight
        self._note_service(adapter_list)
        if num_sampled and adapter_list.first_token_s is None:
            adapter_list.first_token_s = now

    def _enter(self, key: CohortKey) -> _List:
        adapter_list = self._lists[key] = _List(key, self._weight_of(key), self._remembered.pop(key, 0.0))
        return adapter_list

    def _lift(self, adapter_list: _List) -> None:
        """Lift a list that does not wait, and is about to."""
        if next(adapter_list.waiting(_names_no_slot), None) is None:
            self._raise_level()
            adapter_list.service = max(adapter_list.service, self._level)

    def _raise_level(self) -> None:
        """Raise the level to the least served list that waits. Where none does, nobody was kept from anything, and the
        most served one is not to be held back for what it took: raise it to that."""
        least = self._peek(_names_no_slot)
        if least is not None:
            self._level = max(self._level, least[0].service)
        else:
            self._level = max(self._level, *(active.service for active in self._active.values()), 0.0)

    def _retire(self, adapter_list: _List) -> None:
        self._raise_level()
        del self._lists[adapter_list.key]
        self._active.pop(adapter_list.key, None)
        self._seatless.pop(adapter_list.key, None)
        if self._lists:
            self._remembered[adapter_list.key] = adapter_list.service
            if len(self._remembered) > _MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        else:  # nobody is there to be fair to
            self._remembered.clear()
            self._least.clear()
            self._level = 0.0

    def _note_lost_seat(self, adapter_list: _List, now: float) -> None:
        if not adapter_list.seated:
            self._begin_seatless(adapter_list, now)
        elif adapter_list.first_token_s is None:
            adapter_list.oldest_since_s = now

    def _begin_seatless(self, adapter_list: _List, now: float) -> None:
        self._active.pop(adapter_list.key, None)
        adapter_list.since_s = now
        self._seatless[adapter_list.key] = adapter_list

    def _stop_waiting(self, adapter_list: _List, request: Request) -> None:
        if adapter_list.unseated.pop(request.request_id, None) is None:
            del adapter_list.new[request.request_id]
        self._num_waiting -= 1
        if self._next is request:
            self._next = None

    def _note_service(self, adapter_list: _List) -> None:
        if not adapter_list.is_waiting:
            return
        heapq.heappush(self._least, (adapter_list.service, next(self._serials), adapter_list.key))
        if len(self._least) > 4 * len(self._lists) + 64:  # mostly stale
            waiting = [each for each in self._lists.values() if each.is_waiting]
            self._least = [(each.service, next(self._serials), each.key) for each in waiting]
            heapq.heapify(self._least)

    # Decisions.

    def lacks_blocks(self, request: Request) -> None:
        if request.slot_id_wanted is None:  # else it could delay others by the slot it names
            self._next = request

    def first(self, now: float, has_slot: HasSlot) -> Request | None:
        least = self._peek(has_slot)
        if least is None:
            return None
        overdue = self._overdue(now, has_slot)
        if overdue is not None and (len(self._active) < self._max_active or self._next is not None):
            return overdue[1]
        reach = least[0].service + self.settings.slack_tokens
        if self._next is not None and self._lists[self._next.key].service <= reach:
            return self._next
        for adapter_list in sorted(self._active.values(), key=lambda active: active.service):
            request = next(adapter_list.waiting(has_slot), None)
            if request is not None and adapter_list.service <= reach:
                return request
        return (overdue or least)[1]

    def swap(self, now: float, has_slot: HasSlot) -> Swap | None:
        overdue = self._overdue(now, has_slot)
        if overdue is not None:
            swap = self._swap_for_overdue(overdue[0], now, has_slot)
            if swap is not None:
                return swap
        least = self._peek(has_slot)
        if least is None or (overdue is not None and not least[0].seated):  # no list is seated before an overdue one
            return None
        return self._swap_for_difference(least[0], has_slot) or self._swap_for_late(now, has_slot)

    def _swap_for_overdue(self, overdue: _List, now: float, has_slot: HasSlot) -> Swap | None:
        if len(self._active) < self._max_active:
            several = [active for active in self._active.values() if len(active.seated) > 1]
            if several:
                gives = max(several, key=_List.seats_per_weight)
                return _exchange(gives.can_pause()[: len(gives.seated) // 2], overdue, has_slot)
        tenured = (active for active in self._active.values() if active.is_tenure_over(now, self.settings.max_wait_s))
        can_give = [active for active in tenured if active.can_pause()]
        if not can_give:
            return None
        return _exchange(max(can_give, key=lambda active: active.service).can_pause(), overdue, has_slot)

    def _swap_for_difference(self, takes: _List, has_slot: HasSlot) -> Swap | None:
        slack = self.settings.slack_tokens
        ahead = [active for active in self._active.values() if active.service - takes.service > 2 * slack]
        far_ahead = [active for active in ahead if active.service - takes.service > 4 * slack]
        paused = [request for active in far_ahead for request in active.can_pause()]
        if paused:  # all of them, that it ends; seats that `takes` does not want go to whom they should
            return Swap(tuple(paused), tuple(itertools.islice(takes.waiting(has_slot), len(paused))))
        can_give = [active for active in ahead if active.can_pause()]
        if not can_give:
            return None
        gives = max(can_give, key=lambda active: active.service)
        if gives.seats_per_weight() < (len(takes.seated) + 1) / takes.weight:
            return None
        return _exchange(gives.can_pause()[:1], takes, has_slot)

    def _swap_for_late(self, now: float, has_slot: HasSlot) -> Swap | None:
        """A seat for the active list with fewest, of those of which a request waits too long; from the one with most,
        if it still has as many then and was not served less: so no seat comes back for the same reason."""
        late = (active for active in self._active.values() if active.is_late(now - self.settings.max_wait_s))
        takes = min((a for a in late if any(a.waiting(has_slot))), key=_List.seats_per_weight, default=None)
        if takes is None:
            return None
        after = (len(takes.seated) + 1) / takes.weight
        can_give = [
            active
            for active in self._active.values()
            if (len(active.seated) - 1) / active.weight >= after
            and active.service >= takes.service
            and active.can_pause()
        ]
        if not can_give:
            return None
        return _exchange(max(can_give, key=_List.seats_per_weight).can_pause()[:1], takes, has_slot)

    def _overdue(self, now: float, has_slot: HasSlot) -> tuple[_List, Request] | None:
        """The list that has waited longest without a seat, if that is too long, and its first request."""
        for adapter_list in self._seatless.values():
            if now - adapter_list.since_s < self.settings.max_wait_s:
                break
            request = next(adapter_list.waiting(has_slot), None)
            if request is not None:
                return adapter_list, request
        return None

    def _peek(self, has_slot: HasSlot) -> tuple[_List, Request] | None:
        """The least served list with a waiting request that a slot could be given to, and that request."""
        passed_over = []
        found = None
        while self._least and found is None:
            service, _, key = self._least[0]
            adapter_list = self._lists.get(key)
            if adapter_list is None or not adapter_list.is_waiting or adapter_list.service != service:
                heapq.heappop(self._least)
                continue
            request = next(adapter_list.waiting(has_slot), None)
            if request is not None:
                found = adapter_list, request
            else:  # all its requests name busy slots
                passed_over.append(heapq.heappop(self._least))
        for entry in passed_over:
            heapq.heappush(self._least, entry)
        return found


def _exchange(paused: list[Request], takes: _List, has_slot: HasSlot) -> Swap:
    """One seat for each of `paused`, as far as `takes` has requests that wait."""
    seated = tuple(itertools.islice(takes.waiting(has_slot), len(paused)))
    return Swap(tuple(paused[: len(seated)]), seated)


def _names_no_slot(request: Request) -> bool:
    return request.slot_id_wanted is None
