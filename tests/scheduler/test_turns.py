"""Whose turn it is: rounds, and draining."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.cohort import BASE, CohortKey
from scheduler.request import Request
from scheduler.turns import Draining, Rounds
from tests.scheduler.builders import LIST_A, LIST_B, LIST_C, make_request

KEYS = [BASE, LIST_A, LIST_B, LIST_C]


def make_order(*requests: Request) -> Rounds:
    turns = Rounds()
    for request in requests:
        turns.join(request)
    return turns


def test_no_cohort_is_runnable_at_first() -> None:
    assert list(Rounds()) == []
    assert len(Rounds()) == 0


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


def test_draining_cohort_keeps_its_place_until_it_leaves() -> None:
    first = make_request(0, key=LIST_A)
    turns = Draining()
    for request in (first, make_request(1, key=LIST_B), make_request(2, key=LIST_A)):
        turns.join(request)
    turns.end_turn(LIST_A)
    turns.leave(first)
    assert list(turns) == [LIST_A, LIST_B]


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
    turns = Rounds()
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
