"""Fair admission by example: who must give up a seat, and for whom."""

from scheduler.admission import Swap
from scheduler.cohort import BASE
from scheduler.fairness import FairnessSettings
from tests.scheduler.builders import LIST_A, LIST_B, LIST_C
from tests.scheduler.desk import Desk

# The maximum wait.


def test_while_few_lists_are_active_the_one_with_most_seats_gives_up_half_of_them() -> None:
    desk = Desk()
    *_, third, fourth, fifth = desk.seat(LIST_A, 5)
    wanting = desk.push(LIST_B, 9)
    assert desk.swap(9.9) is None
    assert desk.swap(10.0) == Swap((fifth, fourth), tuple(wanting[:2]))
    assert third not in (fifth, fourth)


def test_no_more_seats_change_hands_than_are_wanted() -> None:
    desk = Desk()
    newest = desk.seat(LIST_A, 5)[-1]
    (wanting,) = desk.push(LIST_B)
    assert desk.swap(10.0) == Swap((newest,), (wanting,))


def test_seats_are_compared_by_weight() -> None:
    desk = Desk(settings=FairnessSettings(10.0, 100, max_active_lists=3), weights={LIST_A: 4.0})
    desk.seat(LIST_A, 6)
    desk.seat(LIST_B, 2)
    desk.push(LIST_C)
    swap = desk.swap(10.0)
    assert swap is not None
    assert [request.key for request in swap.paused] == [LIST_B]


def test_once_as_many_lists_are_active_as_may_be_the_most_served_hands_over_all_its_seats() -> None:
    desk = Desk()
    desk.seat(LIST_A, 2)
    rich = desk.seat(LIST_B, 2)
    desk.queue.served(LIST_B, 100, 0, 0.0)
    wanting = desk.push(LIST_C, 3)
    assert desk.swap(10.0) == Swap((rich[1], rich[0]), tuple(wanting[:2]))


def test_a_list_hands_over_only_when_its_tenure_is_over() -> None:
    desk = Desk(settings=FairnessSettings(10.0, 1e9, max_active_lists=2))
    (old,) = desk.seat(LIST_A, now=0.0)
    desk.seat(LIST_B, now=8.0)
    desk.queue.served(LIST_B, 100, 0, 8.0)
    (wanting,) = desk.push(LIST_C, now=0.0)
    assert desk.swap(10.0) == Swap((old,), (wanting,))
    desk.queue.leave(old, 10.0)
    desk.seat(BASE, now=10.0)
    assert desk.swap(17.9) is None
    swap = desk.swap(18.0)
    assert swap is not None
    assert [request.key for request in swap.paused] == [LIST_B]


def test_tenure_lasts_as_long_again_as_the_first_token_took() -> None:
    desk = Desk(settings=FairnessSettings(10.0, 1e9, max_active_lists=1))
    (request,) = desk.seat(LIST_A, advanced=False)
    (wanting,) = desk.push(LIST_B)
    request.output.append(7)
    desk.queue.served(LIST_A, 0, 1, 30.0)
    desk.queue.served(LIST_A, 0, 1, 40.0)
    assert desk.swap(59.0) is None
    assert desk.swap(60.0) == Swap((request,), (wanting,))


def test_a_first_token_is_timed_from_when_the_request_became_the_oldest() -> None:
    desk = Desk(settings=FairnessSettings(10.0, 1e9, max_active_lists=1))
    gone, request = desk.seat(LIST_A, 2, advanced=False)
    (wanting,) = desk.push(LIST_B)
    desk.queue.leave(gone, 25.0)
    request.output.append(7)
    desk.queue.served(LIST_A, 0, 1, 30.0)
    assert desk.swap(34.0) is None
    assert desk.swap(35.0) == Swap((request,), (wanting,))


def test_the_oldest_request_of_a_list_is_not_paused_before_it_has_advanced() -> None:
    desk = Desk(settings=FairnessSettings(10.0, 1e9, max_active_lists=1))
    oldest, newest = desk.seat(LIST_A, 2, advanced=False)
    wanting = desk.push(LIST_B, 2)
    assert desk.swap(10.0) == Swap((newest,), (wanting[0],))
    desk.queue.unseat(newest, 10.0)
    desk.queue.seat(wanting[0], 10.0)
    desk.push(LIST_C, now=5.0)
    assert desk.swap(15.0) is None
    oldest.output.append(7)
    swap = desk.swap(15.0)
    assert swap is not None
    assert swap.paused == (oldest,)


def test_an_overdue_list_that_names_a_busy_slot_lets_the_next_one_pass() -> None:
    desk = Desk()
    newest = desk.seat(LIST_A, 2)[-1]
    desk.push(LIST_B, slot_id=3)
    (wanting,) = desk.push(LIST_C)
    assert desk.swap(10.0, busy=(3,)) == Swap((newest,), (wanting,))


def test_a_list_is_active_only_while_it_has_a_seat() -> None:
    desk = Desk(settings=FairnessSettings(10.0, 1e9, max_active_lists=1))
    (request,) = desk.seat(LIST_A)
    desk.push(LIST_A)
    desk.push(LIST_B, now=1.0)
    desk.queue.leave(request, 5.0)
    assert desk.take(11.0).key == LIST_B


# The bounded difference.


def test_a_list_far_ahead_gives_a_seat_to_the_least_served() -> None:
    desk = Desk()
    newest = desk.seat(LIST_A, 3)[-1]
    wanting = desk.push(LIST_B, 2)
    desk.queue.served(LIST_A, 200, 0, 0.0)
    assert desk.swap() is None
    desk.queue.served(LIST_A, 1, 0, 0.0)
    assert desk.swap() == Swap((newest,), (wanting[0],))


def test_a_list_without_more_seats_keeps_them_until_it_is_very_far_ahead() -> None:
    desk = Desk()
    seated = desk.seat(LIST_A, 2)
    desk.seat(LIST_B, 2)
    (wanting,) = desk.push(LIST_B)
    desk.queue.served(LIST_A, 400, 0, 0.0)
    assert desk.swap() is None
    desk.queue.served(LIST_A, 1, 0, 0.0)
    assert desk.swap() == Swap((seated[1], seated[0]), (wanting,))


def test_seats_are_compared_by_weight_where_service_differs() -> None:
    desk = Desk(weights={LIST_A: 2.0})
    desk.seat(LIST_A, 3)
    desk.seat(LIST_B, 1)
    desk.push(LIST_B)
    desk.queue.served(LIST_A, 600, 0, 0.0)
    assert desk.swap() is None


def test_while_a_list_is_overdue_no_other_is_seated_before_it_by_difference() -> None:
    desk = Desk(settings=FairnessSettings(10.0, 100, max_active_lists=1))
    desk.seat(LIST_A, 2, now=5.0)
    desk.push(LIST_B, now=0.0)
    desk.queue.served(LIST_B, 250, 0, 0.0)
    desk.queue.served(LIST_A, 300, 0, 0.0)
    desk.queue.served(LIST_A, 0, 1, 5.0)
    (wanting,) = desk.push(LIST_C, now=5.0)
    desk.queue.served(LIST_B, 200, 0, 0.0)
    desk.queue.served(LIST_A, 300, 0, 0.0)
    assert desk.swap(9.0) is not None
    assert desk.swap(10.0) is None
    assert wanting.key == LIST_C


# Late requests.


def test_an_active_list_with_a_late_request_gets_a_seat_from_one_with_more() -> None:
    desk = Desk()
    newest = desk.seat(LIST_A, 3)[-1]
    desk.seat(LIST_B)
    (late,) = desk.push(LIST_B)
    assert desk.swap(9.9) is None
    assert desk.swap(10.0) == Swap((newest,), (late,))


def test_no_seat_is_given_up_for_a_late_request_that_would_come_back_for_the_same_reason() -> None:
    desk = Desk()
    desk.seat(LIST_A, 2)
    desk.seat(LIST_B)
    desk.push(LIST_B)
    assert desk.swap(10.0) is None


def test_a_list_that_was_served_less_gives_no_seat_up_for_a_late_request() -> None:
    desk = Desk()
    desk.seat(LIST_A, 3)
    desk.seat(LIST_B)
    desk.push(LIST_B)
    desk.queue.served(LIST_B, 1, 0, 0.0)
    assert desk.swap(10.0) is None


def test_a_paused_request_is_late_after_as_long_again() -> None:
    desk = Desk()
    newest = desk.seat(LIST_A, 4)[-1]
    _, paused = desk.seat(LIST_B, 2)
    desk.queue.unseat(paused, 5.0)
    paused.queued_s = 5.0
    assert desk.swap(14.9) is None
    assert desk.swap(15.0) == Swap((newest,), (paused,))
