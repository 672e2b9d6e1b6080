from hypothesis import given
from hypothesis import strategies as st

from scheduler.cohort import BASE, CohortKey
from scheduler.fairness import AdmissionQueue, TurnOrder
from scheduler.request import Request
from tests.scheduler.builders import LIST_A, LIST_B, LIST_C, make_request

KEYS = [BASE, LIST_A, LIST_B, LIST_C]


def make_order(*requests: Request) -> TurnOrder:
    turns = TurnOrder()
    for request in requests:
        turns.join(request)
    return turns


def waiting(queue: AdmissionQueue) -> list[int]:
    return [request.request_id for request in queue]


def test_no_cohort_is_runnable_at_first() -> None:
    assert list(TurnOrder()) == []
    assert len(TurnOrder()) == 0


def test_cohorts_stand_in_the_order_in_which_they_joined() -> None:
    assert list(make_order(make_request(0, key=LIST_B), make_request(1, key=LIST_A))) == [LIST_B, LIST_A]


def test_request_of_a_runnable_cohort_joins_it_without_moving_it() -> None:
    turns = make_order(make_request(0, key=LIST_A), make_request(1, key=LIST_B), make_request(2, key=LIST_A))
    assert list(turns) == [LIST_A, LIST_B]
    assert [request.request_id for request in turns.members(LIST_A)] == [0, 2]


def test_ended_turn_sends_a_cohort_to_the_end() -> None:
    turns = make_order(*(make_request(i, key=key) for i, key in enumerate(KEYS)))
    turns.end_turn(BASE)
    assert list(turns) == [LIST_A, LIST_B, LIST_C, BASE]


def test_cohort_leaves_with_its_last_member() -> None:
    first, second = make_request(0, key=LIST_A), make_request(1, key=LIST_A)
    turns = make_order(first, second)
    turns.leave(first)
    assert list(turns) == [LIST_A]
    turns.leave(second)
    assert list(turns) == []
    assert turns.members(LIST_A) == []


def test_cohort_that_comes_back_goes_to_the_end() -> None:
    first = make_request(0, key=LIST_A)
    turns = make_order(first, make_request(1, key=LIST_B))
    turns.leave(first)
    turns.join(first)
    assert list(turns) == [LIST_B, LIST_A]


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=60))
def test_no_cohort_waits_longer_than_the_others_that_were_runnable(moves: list[tuple[CohortKey, bool]]) -> None:
    """I8 for the bare turn order: joins, leaves and returns at any time, a turn after each."""
    turns = TurnOrder()
    members: dict[CohortKey, Request] = {}
    ahead: dict[CohortKey, set[CohortKey]] = {}
    for key, joins in moves:
        if joins and key not in members:
            members[key] = make_request(0, key=key)
            turns.join(members[key])
            ahead[key] = set(turns) - {key}
        elif not joins and key in members:
            turns.leave(members.pop(key))
            del ahead[key]
            for others in ahead.values():
                others.discard(key)
        first = next(iter(turns), None)
        if first is not None:
            turns.end_turn(first)
            for other in ahead.keys() - {first}:
                ahead[other].remove(first)
            ahead[first] = set(turns) - {first}


def test_new_requests_come_first_come_first_served() -> None:
    queue = AdmissionQueue()
    for request_id in (3, 1, 2):
        queue.push(make_request(request_id))
    assert waiting(queue) == [3, 1, 2]


def test_preempted_requests_come_before_new_ones_oldest_admission_first() -> None:
    queue = AdmissionQueue()
    queue.push(make_request(9))
    for newest_first in (2, 1, 0):
        queue.push_preempted(make_request(newest_first))
    assert waiting(queue) == [0, 1, 2, 9]


def test_first_passes_over_requests_that_do_not_fit() -> None:
    queue = AdmissionQueue()
    queue.push(make_request(0, slot_id_wanted=1))
    queue.push(make_request(1))
    first = queue.first(lambda request: request.slot_id_wanted is None)
    assert first is not None
    assert first.request_id == 1
    assert waiting(queue) == [0, 1]


def test_first_of_none_that_fits_is_none() -> None:
    queue = AdmissionQueue()
    queue.push(make_request(0))
    assert queue.first(lambda request: False) is None


def test_removed_requests_are_gone_preempted_or_new() -> None:
    queue = AdmissionQueue()
    new, preempted = make_request(0), make_request(1)
    queue.push(new)
    queue.push_preempted(preempted)
    queue.remove(new)
    assert waiting(queue) == [1]
    queue.remove(preempted)
    assert len(queue) == 0
