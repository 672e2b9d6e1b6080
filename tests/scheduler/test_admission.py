"""First come first served."""

from scheduler.admission import ArrivalQueue
from tests.scheduler.builders import make_request


def waiting(queue: ArrivalQueue) -> list[int]:
    return [request.request_id for request in queue]


def test_new_requests_come_first_come_first_served() -> None:
    queue = ArrivalQueue()
    for request_id in (3, 1, 2):
        queue.push(make_request(request_id), 0.0)
    assert waiting(queue) == [3, 1, 2]


def test_requests_that_lost_their_seat_come_before_new_ones_oldest_admission_first() -> None:
    queue = ArrivalQueue()
    queue.push(make_request(9), 0.0)
    for newest_first in (2, 1, 0):
        queue.unseat(make_request(newest_first), 0.0)
    assert waiting(queue) == [0, 1, 2, 9]


def test_first_passes_over_requests_that_do_not_fit() -> None:
    queue = ArrivalQueue()
    queue.push(make_request(0, slot_id_wanted=1), 0.0)
    queue.push(make_request(1), 0.0)
    first = queue.first(0.0, lambda request: request.slot_id_wanted is None)
    assert first is not None
    assert first.request_id == 1
    assert waiting(queue) == [0, 1]


def test_first_of_none_that_fits_is_none() -> None:
    queue = ArrivalQueue()
    queue.push(make_request(0), 0.0)
    assert queue.first(0.0, lambda request: False) is None


def test_seated_and_finished_requests_wait_no_longer() -> None:
    queue = ArrivalQueue()
    new, preempted = make_request(0), make_request(1)
    queue.push(new, 0.0)
    queue.unseat(preempted, 0.0)
    queue.leave(new, 0.0)
    assert waiting(queue) == [1]
    queue.seat(preempted, 0.0)
    assert len(queue) == 0
