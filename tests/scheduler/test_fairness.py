"""Fair admission by example: who gets a free seat. Who must give one up: test_fairness_swaps.py; any interleaving:
test_machine.py; the bounds: test_bounds.py."""

import pytest

from scheduler.cohort import BASE, CohortKey, cohort_key
from scheduler.fairness import FairnessSettings
from tests.scheduler.builders import LIST_A, LIST_B, LIST_C, PIRATE
from tests.scheduler.desk import Desk

# Who is first.


def test_nobody_is_first_where_nobody_waits() -> None:
    desk = Desk()
    assert desk.first() is None
    assert desk.swap() is None
    assert len(desk.queue) == 0
    assert list(desk.queue) == []


def test_requests_of_a_list_come_in_order_of_arrival() -> None:
    desk = Desk()
    desk.push(LIST_A, 3)
    assert [desk.take().request_id for _ in range(3)] == [0, 1, 2]


def test_the_least_served_list_comes_first() -> None:
    desk = Desk()
    keys = (LIST_A, LIST_B, LIST_C)
    for key in keys:
        desk.push(key)
    for key, tokens in zip(keys, (300, 200, 400), strict=True):
        desk.queue.served(key, tokens, 0, 0.0)
    assert [desk.take().key for _ in range(3)] == [LIST_B, LIST_A, LIST_C]


def test_a_sampled_token_counts_twice() -> None:
    desk = Desk()
    desk.push(LIST_A)
    desk.queue.served(LIST_A, 10, 3, 0.0)
    assert desk.queue.service_of(LIST_A) == 16


def test_service_counts_by_weight() -> None:
    desk = Desk(weights={LIST_A: 4.0})
    desk.push(LIST_A)
    desk.push(LIST_B)
    desk.queue.served(LIST_A, 200, 0, 0.0)
    desk.queue.served(LIST_B, 100, 0, 0.0)
    assert (desk.queue.service_of(LIST_A), desk.queue.service_of(LIST_B)) == (50, 100)
    assert desk.take().key == LIST_A


@pytest.mark.parametrize(("lead", "first"), [(100, LIST_A), (101, LIST_B)])
def test_a_list_that_runs_comes_first_as_long_as_its_lead_is_within_the_slack(lead: int, first: CohortKey) -> None:
    desk = Desk()
    desk.seat(LIST_A)
    desk.push(LIST_B)
    desk.push(LIST_A)
    desk.queue.served(LIST_A, lead, 0, 0.0)
    assert desk.take().key == first


def test_of_the_lists_that_run_the_least_served_comes_first() -> None:
    desk = Desk()
    for key in (LIST_A, LIST_B):
        desk.seat(key)
    for key in (LIST_A, LIST_B, LIST_C):
        desk.push(key)
    desk.queue.served(LIST_A, 20, 0, 0.0)
    desk.queue.served(LIST_B, 10, 0, 0.0)
    assert desk.take().key == LIST_B


def test_a_request_that_names_a_busy_slot_is_passed_over() -> None:
    desk = Desk()
    desk.push(LIST_A, slot_id=3)
    (free,) = desk.push(LIST_A)
    assert desk.first(busy=(3,)) is free
    desk.queue.seat(free, 0.0)
    assert desk.first(busy=(3,)) is None
    assert desk.first() is not None


def test_a_list_that_names_busy_slots_only_does_not_hide_the_next_one() -> None:
    desk = Desk()
    desk.push(LIST_A, 2, slot_id=3)
    desk.push(LIST_B)
    desk.queue.served(LIST_B, 50, 0, 0.0)
    chosen = desk.first(busy=(3,))
    assert chosen is not None
    assert chosen.key == LIST_B
    assert desk.take().key == LIST_A, "it was put back"


# Lifting.


def test_a_new_list_starts_where_the_least_served_of_those_that_wait_is() -> None:
    desk = Desk()
    for key in (LIST_A, LIST_B):
        desk.push(key)
    desk.queue.served(LIST_A, 300, 0, 0.0)
    desk.queue.served(LIST_B, 200, 0, 0.0)
    desk.push(LIST_C)
    assert desk.queue.service_of(LIST_C) == 200


def test_a_list_that_comes_back_keeps_what_it_is_ahead() -> None:
    desk = Desk()
    (request,) = desk.seat(LIST_A)
    desk.push(LIST_B)
    desk.queue.served(LIST_A, 500, 0, 0.0)
    desk.queue.leave(request, 0.0)
    desk.push(LIST_A)
    assert desk.queue.service_of(LIST_A) == 500


def test_a_list_that_runs_without_waiting_saves_nothing_up() -> None:
    desk = Desk()
    desk.seat(LIST_A)
    desk.push(LIST_B)
    desk.queue.served(LIST_B, 500, 0, 0.0)
    desk.push(LIST_A)
    assert desk.queue.service_of(LIST_A) == 500


def test_what_was_taken_while_nobody_waited_is_held_against_nobody() -> None:
    desk = Desk()
    desk.seat(LIST_A)
    desk.seat(LIST_B)
    desk.queue.served(LIST_A, 5000, 0, 0.0)
    desk.push(LIST_C)
    assert desk.queue.service_of(LIST_C) == 5000
    desk.push(LIST_B)
    assert desk.queue.service_of(LIST_B) == 5000


def test_a_list_that_left_while_nobody_waited_is_not_behind_when_it_returns() -> None:
    desk = Desk()
    desk.seat(LIST_B)
    (request,) = desk.seat(LIST_A)
    desk.queue.served(LIST_A, 5000, 0, 0.0)
    desk.queue.leave(request, 0.0)
    desk.push(LIST_C)
    desk.push(LIST_A)
    assert desk.queue.service_of(LIST_C) == desk.queue.service_of(LIST_A) == 5000


def test_a_paused_list_is_lifted_like_any_that_begins_to_wait() -> None:
    desk = Desk()
    (request,) = desk.seat(LIST_A)
    desk.push(LIST_B)
    desk.queue.served(LIST_B, 500, 0, 0.0)
    desk.queue.unseat(request, 0.0)
    assert desk.queue.service_of(LIST_A) == 500


def test_a_list_whose_last_request_ended_while_it_was_computed_is_charged_all_the_same() -> None:
    desk = Desk()
    desk.push(LIST_B)
    (request,) = desk.seat(LIST_A)
    desk.queue.leave(request, 0.0)
    desk.queue.served(LIST_A, 400, 0, 0.0)
    desk.push(LIST_A)
    assert desk.queue.service_of(LIST_A) == 400


def test_everything_is_forgotten_when_nobody_is_left() -> None:
    desk = Desk()
    (request,) = desk.seat(LIST_A)
    desk.queue.served(LIST_A, 400, 0, 0.0)
    desk.queue.leave(request, 0.0)
    desk.queue.served(LIST_A, 400, 0, 0.0)
    desk.push(LIST_A)
    desk.push(LIST_B)
    assert desk.queue.service_of(LIST_A) == desk.queue.service_of(LIST_B) == 0


def test_idle_lists_are_remembered_up_to_a_number() -> None:
    desk = Desk()
    desk.push(LIST_B)
    for number in range(10_002):
        key = cohort_key([(PIRATE, 2.0 + number)])
        (request,) = desk.seat(key)
        desk.queue.served(key, 400, 0, 0.0)
        desk.queue.leave(request, 0.0)
    for number, service in ((0, 0), (1, 0), (2, 400), (10_001, 400)):
        key = cohort_key([(PIRATE, 2.0 + number)])
        desk.push(key)
        assert desk.queue.service_of(key) == service


# Lost seats.


def test_requests_that_lost_their_seats_come_first_in_their_list_oldest_admission_first() -> None:
    desk = Desk()
    old, newer, newest = desk.seat(LIST_A, 3)
    (new,) = desk.push(LIST_A)
    for request in (newest, newer):
        desk.queue.unseat(request, 0.0)
    assert desk.take() is newer
    desk.queue.unseat(newer, 1.0)
    desk.queue.unseat(old, 1.0)
    assert [desk.take() for _ in range(4)] == [old, newer, newest, new]


def test_waiting_requests_can_leave_whether_they_ever_had_a_seat_or_not() -> None:
    desk = Desk()
    (paused,) = desk.seat(LIST_A)
    (new,) = desk.push(LIST_A)
    desk.queue.unseat(paused, 0.0)
    assert list(desk.queue) == [paused, new]
    for request in (paused, new):
        desk.queue.leave(request, 0.0)
    assert len(desk.queue) == 0
    assert desk.first() is None


# The maximum wait.


def test_an_overdue_list_is_seated_before_those_that_run() -> None:
    desk = Desk()
    desk.seat(LIST_A)
    desk.push(LIST_A)
    desk.push(LIST_B, now=1.0)
    for now, key in ((10.9, LIST_A), (11.0, LIST_B)):
        chosen = desk.first(now)
        assert chosen is not None
        assert chosen.key == key


def test_an_overdue_list_is_seated_before_the_least_served_one_however_many_are_active() -> None:
    desk = Desk(settings=FairnessSettings(10.0, 100, max_active_lists=1))
    desk.seat(BASE)
    desk.push(LIST_A)
    desk.push(LIST_B, now=5.0)
    desk.queue.served(LIST_A, 50, 0, 0.0)
    assert desk.take(10.0).key == LIST_A


def test_overdue_lists_come_in_the_order_in_which_they_began_to_wait() -> None:
    desk = Desk()
    desk.push(LIST_B, now=1.0)
    desk.push(LIST_C, now=2.0)
    desk.queue.served(LIST_B, 900, 0, 0.0)
    assert [desk.take(50.0).key for _ in range(2)] == [LIST_B, LIST_C]


def test_a_list_whose_seats_are_lost_begins_a_new_wait_behind_the_others() -> None:
    desk = Desk()
    (request,) = desk.seat(LIST_A)
    desk.push(LIST_B, now=5.0)
    desk.queue.unseat(request, 6.0)
    assert [desk.take(50.0).key for _ in range(2)] == [LIST_B, LIST_A]


def test_the_longest_wait_is_that_of_a_list_without_a_seat() -> None:
    desk = Desk()
    assert desk.queue.longest_wait_s(5.0) == 0
    desk.seat(LIST_A)
    desk.push(LIST_A)
    desk.push(LIST_B, now=2.0)
    assert desk.queue.longest_wait_s(5.0) == 3.0


# Want of blocks.


def test_a_request_that_lacked_blocks_stays_next() -> None:
    desk = Desk()
    (large,) = desk.push(LIST_A)
    desk.push(LIST_B)
    assert desk.first() is large
    desk.queue.lacks_blocks(large)
    desk.queue.served(LIST_A, 50, 0, 0.0)
    assert desk.first() is large
    desk.queue.seat(large, 0.0)
    assert desk.take().key == LIST_B


def test_a_request_that_lacked_blocks_is_next_only_while_its_list_is_within_the_slack() -> None:
    desk = Desk()
    (large,) = desk.push(LIST_A)
    desk.push(LIST_B)
    desk.queue.lacks_blocks(large)
    desk.queue.served(LIST_A, 101, 0, 0.0)
    assert desk.take().key == LIST_B


def test_a_request_that_lacked_blocks_does_not_delay_an_overdue_list() -> None:
    desk = Desk(settings=FairnessSettings(10.0, 100, max_active_lists=1))
    desk.seat(LIST_A, now=5.0)
    (large,) = desk.push(LIST_A, now=5.0)
    desk.push(LIST_B, now=0.0)
    desk.queue.lacks_blocks(large)
    assert desk.first(9.0) is large
    assert desk.take(10.0).key == LIST_B


def test_a_request_that_lacked_blocks_and_left_is_not_waited_for() -> None:
    desk = Desk()
    (large,) = desk.push(LIST_A)
    desk.push(LIST_B)
    desk.queue.lacks_blocks(large)
    desk.queue.leave(large, 0.0)
    assert desk.take().key == LIST_B


def test_a_request_that_names_a_slot_is_not_kept_next() -> None:
    desk = Desk()
    (named,) = desk.push(LIST_A, slot_id=1)
    desk.push(LIST_B)
    desk.queue.lacks_blocks(named)
    chosen = desk.first(busy=(1,))
    assert chosen is not None
    assert chosen.key == LIST_B


# Size.


def test_stale_service_is_cleared_away() -> None:
    desk = Desk()
    desk.push(LIST_A)
    desk.push(LIST_B)
    for _ in range(1000):
        desk.queue.served(LIST_B, 1, 0, 0.0)
    assert len(desk.queue._least) <= 4 * 2 + 64
    assert [desk.take().key for _ in range(2)] == [LIST_A, LIST_B]
