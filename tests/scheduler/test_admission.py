"""First come first served, and what every queue tells."""

import pytest

from scheduler.admission import AdmissionQueue, ArrivalQueue
from scheduler.fairness import FairQueue
from tests.scheduler.builders import LIST_A, make_request


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


@pytest.mark.parametrize("queue", [ArrivalQueue(), FairQueue(4)])
def test_a_list_waits_while_it_has_requests_and_no_seat(queue: AdmissionQueue) -> None:
    base, later, other = make_request(0), make_request(1), make_request(2, key=LIST_A)
    assert queue.longest_wait_s(5.0) == 0.0
    queue.push(base, 10.0)
    queue.push(later, 11.0)
    queue.push(other, 12.0)
    assert queue.longest_wait_s(15.0) == 5.0
    queue.seat(base, 15.0)
    assert queue.longest_wait_s(16.0) == 4.0  # of the other list
    queue.unseat(base, 17.0)
    queue.seat(other, 17.0)
    assert queue.longest_wait_s(19.0) == 2.0  # since it lost its seat, not since it came
    queue.seat(base, 20.0)
    queue.leave(base, 21.0)
    assert queue.longest_wait_s(22.0) == 1.0
    queue.leave(later, 22.0)
    queue.leave(other, 22.0)
    assert queue.longest_wait_s(99.0) == 0.0
