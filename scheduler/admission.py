"""Who is given a seat: what the scheduler asks of an admission queue, and first come first served as the simplest one.

A queue knows every accepted request, waiting or seated. It proposes; slots and blocks are the scheduler's. The fair
queue is `fairness.py`."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from scheduler.cohort import CohortKey
from scheduler.request import Request

HasSlot: TypeAlias = Callable[[Request], bool]
"""Whether the slot that a request names, if it names one, is free."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Seats that change hands: `paused` give them up for `seated`, which wait."""

    paused: tuple[Request, ...]
    seated: tuple[Request, ...]


class AdmissionQueue(Protocol):
    """The order in which waiting requests are seated. `now` never runs backwards."""

    def __len__(self) -> int:
        """Requests that wait."""
        ...

    def __iter__(self) -> Iterator[Request]:
        """The requests that wait."""
        ...

    def longest_wait_s(self, now: float) -> float:
        """Return how long the list that has waited longest without any seat has done so; 0 where none waits so."""
        ...

    def push(self, request: Request, now: float) -> None:
        """An accepted request begins to wait."""
        ...

    def seat(self, request: Request, now: float) -> None:
        """A waiting request has been given a slot."""
        ...

    def unseat(self, request: Request, now: float) -> None:
        """A seated request lost its slot, and waits again, in front of those of its list that never had one."""
        ...

    def leave(self, request: Request, now: float) -> None:
        """A request, waiting or seated, has finished."""
        ...

    def served(self, key: CohortKey, num_prompt: int, num_sampled: int, now: float) -> None:
        """A step computed so many tokens of prompts, and sampled so many tokens, for the requests of a list."""
        ...

    def first(self, now: float, has_slot: HasSlot) -> Request | None:
        """Return the waiting request to which a free slot should go, or None where none can take one."""
        ...

    def lacks_blocks(self, request: Request) -> None:
        """The waiting request that `first` or `swap` chose could not be seated for want of blocks. It is to stay next
        in turn, or short requests would keep a long one from ever finding enough."""
        ...

    def swap(self, now: float, has_slot: HasSlot) -> Swap | None:
        """Return seats that must change hands now, however long the generations in them, or None."""
        ...


class ArrivalQueue:
    """First come first served, over all lists alike.

    A request that lost its seat comes before all that never had one, the oldest admission first: it has waited already.
    """

    def __init__(self) -> None:
        self._unseated: OrderedDict[int, Request] = OrderedDict()
        self._new: OrderedDict[int, Request] = OrderedDict()
        self._num_waiting: Counter[CohortKey] = Counter()
        self._num_seated: Counter[CohortKey] = Counter()
        self._seatless_since_s: dict[CohortKey, float] = {}
        """Lists that wait without a seat, the longest wait first."""

    def __len__(self) -> int:
        return len(self._unseated) + len(self._new)

    def __iter__(self) -> Iterator[Request]:
        yield from self._unseated.values()
        yield from self._new.values()

    def longest_wait_s(self, now: float) -> float:
        return now - next(iter(self._seatless_since_s.values()), now)

    def push(self, request: Request, now: float) -> None:
        self._new[request.request_id] = request
        self._count(request.key, 1, 0, now)

    def seat(self, request: Request, now: float) -> None:
        self._stop_waiting(request)
        self._count(request.key, -1, 1, now)

    def unseat(self, request: Request, now: float) -> None:
        # The newest admission goes first, so the latest to come back belongs in front.
        self._unseated[request.request_id] = request
        self._unseated.move_to_end(request.request_id, last=False)
        self._count(request.key, 1, -1, now)

    def leave(self, request: Request, now: float) -> None:
        if self._stop_waiting(request):
            self._count(request.key, -1, 0, now)
        else:
            self._count(request.key, 0, -1, now)

    def _stop_waiting(self, request: Request) -> bool:
        return any(waiting.pop(request.request_id, None) is not None for waiting in (self._unseated, self._new))

    def _count(self, key: CohortKey, waiting: int, seated: int, now: float) -> None:
        """Keep track of which lists wait without a seat, which is of interest to `longest_wait_s` alone."""
        for counts, change in ((self._num_waiting, waiting), (self._num_seated, seated)):
            counts[key] += change
            if not counts[key]:
                del counts[key]
        if self._num_waiting[key] and not self._num_seated[key]:
            self._seatless_since_s.setdefault(key, now)
        else:
            self._seatless_since_s.pop(key, None)

    def served(self, key: CohortKey, num_prompt: int, num_sampled: int, now: float) -> None:
        """Service does not matter here."""

    def first(self, now: float, has_slot: HasSlot) -> Request | None:
        return next((request for request in self if has_slot(request)), None)

    def lacks_blocks(self, request: Request) -> None:
        """It stays the first as it is."""

    def swap(self, now: float, has_slot: HasSlot) -> Swap | None:
        return None
