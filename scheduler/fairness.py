"""Whose turn it is, and who is admitted next.

Turns: the runnable cohorts stand in a queue; the first takes the step and goes to the end. A cohort that becomes
runnable joins at the end. So with K runnable cohorts each waits at most K - 1 turns, whatever joins, leaves or comes
back (I8).

Admission: first come first served. A preempted request comes before all that were never admitted, oldest admission
first: it has waited already. A request that names a busy slot is passed over, and delays nobody."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from scheduler.cohort import CohortKey
from scheduler.request import Request


class TurnOrder:
    """The runnable cohorts in the order of their turns."""

    def __init__(self) -> None:
        self._members: OrderedDict[CohortKey, dict[int, Request]] = OrderedDict()

    def __len__(self) -> int:
        """The number of runnable cohorts."""
        return len(self._members)

    def __iter__(self) -> Iterator[CohortKey]:
        """Their keys, the next turn first."""
        return iter(self._members)

    def members(self, key: CohortKey) -> list[Request]:
        """The running requests of a cohort, in order of admission."""
        return list(self._members.get(key, {}).values())

    def join(self, request: Request) -> None:
        """Add a newly admitted request to its cohort; a new cohort goes to the end of the queue."""
        self._members.setdefault(request.key, {})[request.request_id] = request

    def leave(self, request: Request) -> None:
        """Take out a request that no longer runs, and with the last one the cohort."""
        cohort = self._members[request.key]
        del cohort[request.request_id]
        if not cohort:
            del self._members[request.key]

    def end_turn(self, key: CohortKey) -> None:
        """Send a cohort that has been given a step to the end of the queue."""
        self._members.move_to_end(key)


class AdmissionQueue:
    """The waiting requests, in the order in which they are to be admitted."""

    def __init__(self) -> None:
        self._preempted: dict[int, Request] = {}
        self._new: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._preempted) + len(self._new)

    def __iter__(self) -> Iterator[Request]:
        yield from self._preempted.values()
        yield from self._new.values()

    def push(self, request: Request) -> None:
        """Add an arriving request."""
        self._new[request.request_id] = request

    def push_preempted(self, request: Request) -> None:
        """Put a preempted request back. The newest admission is preempted first, so the latest put back goes in
        front."""
        self._preempted = {request.request_id: request} | self._preempted

    def remove(self, request: Request) -> None:
        """Take a request out, admitted or aborted."""
        if self._preempted.pop(request.request_id, None) is None:
            del self._new[request.request_id]

    def first(self, fits: Callable[[Request], bool]) -> Request | None:
        """Return the first request for which a slot could be given, or None."""
        return next((request for request in self if fits(request)), None)
