"""A fair queue, and what the scheduler does with it, without slots or blocks."""

from scheduler.admission import Swap
from scheduler.cohort import CohortKey
from scheduler.fairness import FairnessSettings, FairQueue
from scheduler.request import Request
from tests.scheduler.builders import make_request

SETTINGS = FairnessSettings(max_wait_s=10.0, slack_tokens=100, max_active_lists=2)


class Desk:
    """A queue, and the requests in it: what the scheduler does with it, without slots or blocks."""

    def __init__(self, *, settings: FairnessSettings = SETTINGS, weights: dict[CohortKey, float] | None = None) -> None:
        self.queue = FairQueue(8, settings, lambda key: (weights or {}).get(key, 1.0))
        self.num_requests = 0

    def push(self, key: CohortKey, count: int = 1, *, now: float = 0.0, slot_id: int | None = None) -> list[Request]:
        requests = []
        for _ in range(count):
            requests.append(make_request(self.num_requests, key=key, slot_id_wanted=slot_id))
            self.num_requests += 1
            self.queue.push(requests[-1], now)
        return requests

    def seat(self, key: CohortKey, count: int = 1, *, now: float = 0.0, advanced: bool = True) -> list[Request]:
        """Push and seat requests; unless told otherwise each has sampled a token since."""
        requests = self.push(key, count, now=now)
        for request in requests:
            self.queue.seat(request, now)
            if advanced:
                request.output.append(7)
        if advanced:
            self.queue.served(key, 0, 0, now)
        return requests

    def first(self, now: float = 0.0, *, busy: tuple[int, ...] = ()) -> Request | None:
        return self.queue.first(now, lambda request: request.slot_id_wanted not in busy)

    def swap(self, now: float = 0.0, *, busy: tuple[int, ...] = ()) -> Swap | None:
        return self.queue.swap(now, lambda request: request.slot_id_wanted not in busy)

    def take(self, now: float = 0.0) -> Request:
        """Seat whoever is first."""
        request = self.first(now)
        assert request is not None
        self.queue.seat(request, now)
        return request
