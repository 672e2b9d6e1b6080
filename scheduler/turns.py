"""Whose turn it is: the order in which runnable cohorts are given steps."""

from collections import OrderedDict
from collections.abc import Iterator

from scheduler.cohort import CohortKey
from scheduler.request import Request


class Rounds:
    """Every runnable cohort gets a turn before any gets a second.

    They stand in a queue; the first takes the step and goes to the end. A cohort that becomes runnable joins at the
    end. So with K runnable cohorts each waits at most K - 1 turns, whatever joins, leaves or comes back (I8)."""

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
        # One that comes over from another cohort in mid-prompt joins behind those that were admitted after it.
        return sorted(self._members.get(key, {}).values(), key=lambda request: request.admission_id)

    def join(self, request: Request) -> None:
        """Add a request to the cohort of its next token; a new cohort goes to the end of the queue."""
        self._members.setdefault(request.key_now, {})[request.request_id] = request

    def leave(self, request: Request) -> None:
        """Take out a request that no longer runs, or is about to change its key, and with the last one the cohort."""
        cohort = self._members[request.key_now]
        del cohort[request.request_id]
        if not cohort:
            del self._members[request.key_now]

    def end_turn(self, key: CohortKey) -> None:
        """Send a cohort that has been given a step to the end of the queue."""
        self._members.move_to_end(key)


class Draining(Rounds):
    """One cohort keeps the steps until it has no running request: llama-server's behaviour. Others may starve."""

    def end_turn(self, key: CohortKey) -> None:
        """Leave it in front."""
