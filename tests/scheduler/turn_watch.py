"""I8 as a watcher of events: who may take a turn before whom. It never looks inside the scheduler."""

from scheduler.cohort import CohortKey
from scheduler.events import Admitted, Event, Finished, Paused, Preempted, Resumed, Shifted


class TurnWatch:
    """Fed with every event and every turn, in order; asserts the bound of docs/scheduling.md at each turn."""

    def __init__(self) -> None:
        self._members: dict[CohortKey, set[int]] = {}
        self._ahead: dict[CohortKey, set[CohortKey]] = {}
        """For each runnable cohort: those that may still have a turn before its next one."""
        self._bound: dict[CohortKey, int] = {}
        """K - 1 of the moment at which its wait began."""
        self._waited: dict[CohortKey, int] = {}
        self.longest_wait = 0

    @property
    def num_runnable(self) -> int:
        return len(self._members)

    def see(self, event: Event) -> None:
        """Follow the cohorts that become runnable or stop being so."""
        if isinstance(event, Admitted | Resumed):
            if event.key not in self._members:
                self._members[event.key] = set()
                self._begin_wait(event.key)
            self._members[event.key].add(event.request_id)
        elif isinstance(event, Paused | Preempted | Shifted | Finished):
            if event.request_id not in self._members.get(event.key, ()):
                return
            self._members[event.key].remove(event.request_id)
            if not self._members[event.key]:
                self._leave(event.key)

    def turn(self, key: CohortKey) -> None:
        """A cohort has been given a step."""
        assert key in self._members, "a cohort that is not runnable got a turn"
        for other in self._members.keys() - {key}:
            assert key in self._ahead[other], "a cohort had a second turn, or its first, before one that waited longer"
            self._ahead[other].remove(key)
            self._waited[other] += 1
            assert self._waited[other] <= self._bound[other]
            self.longest_wait = max(self.longest_wait, self._waited[other])
        self._begin_wait(key)

    def _begin_wait(self, key: CohortKey) -> None:
        self._ahead[key] = self._members.keys() - {key}
        self._bound[key] = len(self._members) - 1
        self._waited[key] = 0

    def _leave(self, key: CohortKey) -> None:
        del self._members[key], self._ahead[key], self._bound[key], self._waited[key]
        for ahead in self._ahead.values():
            ahead.discard(key)
