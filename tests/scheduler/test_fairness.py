"""Fair admission by example. Any interleaving: test_machine.py; the bounds: test_bounds.py."""

import pytest

from scheduler.admission import Swap
from scheduler.cohort import BASE, CohortKey, cohort_key
from scheduler.fairness import FairnessSettings, FairQueue
from scheduler.request import Request
from tests.scheduler.builders import LIST_A, LIST_B, LIST_C, PIRATE, make_request

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
