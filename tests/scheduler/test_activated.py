"""Activated adapters: the key as a function of the position, its cohorts, and its cached blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.batch import BLOCK_SIZE
from scheduler.cohort import BASE, Activation, Activations, CohortKey, cache_seed, cohort_key, key_at, next_switch
from scheduler.core import Scheduler
from scheduler.events import Admitted
from scheduler.fairness import FairQueue
from scheduler.request import Request
from tests.scheduler.builders import (
    LIST_A,
    PIRATE,
    PIRATE_AGAIN,
    SHOUT,
    make_limits,
    make_request,
    run_dry,
    start,
    step,
)

BOTH = cohort_key([(PIRATE, 1.0), (SHOUT, 1.0)])
SHOUTING = cohort_key([(SHOUT, 1.0)])
ONES = (1,) * 100


def activated(request_id: int, at: int, length: int = 49, *, max_new_tokens: int = 1) -> Request:
    """A request of LIST_A whose adapter acts from position `at` on."""
    activations = (Activation(at, PIRATE),)
    return make_request(request_id, ONES[:length], key=LIST_A, activations=activations, max_new_tokens=max_new_tokens)


def num_found(first: Request, second: Request) -> int:
    """Run two requests one after the other; how many tokens of the second were found in the prefix cache."""
    scheduler = start(first)
    run_dry(scheduler)
    start(second, scheduler=scheduler)
    [admitted] = [event for event in run_dry(scheduler) if isinstance(event, Admitted)]
    return admitted.num_cached


# The key.


def test_an_activated_adapter_joins_the_key_at_its_start() -> None:
    activations = (Activation(3, SHOUT),)
    assert [key_at(BOTH, activations, position) for position in (0, 2, 3, 9)] == [LIST_A, LIST_A, BOTH, BOTH]


def test_several_adapters_join_one_after_the_other() -> None:
    activations = (Activation(5, PIRATE), Activation(3, SHOUT))
    assert [key_at(BOTH, activations, position) for position in (2, 3, 4, 5)] == [BASE, SHOUTING, SHOUTING, BOTH]
    assert [next_switch(activations, position) for position in (0, 2, 3, 4, 5)] == [3, 3, 5, 5, None]


def test_a_list_without_activated_adapters_is_the_same_everywhere() -> None:
    assert key_at(BOTH, (), 0) is BOTH
    assert next_switch((), 0) is None


# Its cohorts.


@pytest.mark.parametrize("budget", [4, 7, 16, 64])
@pytest.mark.parametrize("at", [0, 1, 2, 15, 16, 17, 31, 32, 33, 47, 48])
def test_no_chunk_crosses_the_boundary(at: int, budget: int) -> None:
    scheduler = start(activated(0, at, 49), scheduler=Scheduler(make_limits(max_step_tokens=budget)))
    ends = []
    while scheduler.num_requests:
        batch = step(scheduler)
        [row] = batch.rows
        assert batch.key == (BASE if row.end <= at else LIST_A)
        assert row.start >= at or row.end <= at
        ends.append(row.end)
    assert ends == sorted({*range(budget, at, budget), at, *range(at + budget, 49, budget), 49} - {0})


def test_tokens_before_the_boundary_run_with_the_base_cohort_and_later_ones_with_the_list() -> None:
    requests = [make_request(0, ONES[:8]), activated(1, 5, 10, max_new_tokens=4), make_request(2, ONES[:8], key=LIST_A)]
    scheduler = start(*requests)
    batches = [step(scheduler) for _ in range(4)]
    assert [batch.key for batch in batches] == [BASE, LIST_A, BASE, LIST_A]
    rows = [[(row.request_id, len(row.token_ids)) for row in batch.rows] for batch in batches]
    assert rows == [[(0, 8), (1, 5)], [(1, 5), (2, 8)], [(0, 1)], [(1, 1), (2, 1)]]


def test_several_lists_share_the_base_step_before_they_part() -> None:
    shouting = make_request(1, ONES[:9], key=SHOUTING, activations=(Activation(4, SHOUT),))
    scheduler = start(activated(0, 5, 9), shouting)
    assert [row.request_id for row in step(scheduler).rows] == [0, 1]
    assert [step(scheduler).key for _ in range(2)] == [LIST_A, SHOUTING]


def test_a_request_that_comes_over_keeps_its_place_in_the_order_of_admission() -> None:
    late = make_request(1, ONES[:40], key=LIST_A)
    scheduler = start(activated(0, 8, 40), late, scheduler=Scheduler(make_limits(max_step_tokens=16)))
    assert step(scheduler).key == BASE
    assert [(row.request_id, len(row.token_ids)) for row in step(scheduler).rows] == [(0, 16)]
    assert [(row.request_id, len(row.token_ids)) for row in step(scheduler).rows] == [(0, 16)]
    assert [row.request_id for row in step(scheduler).rows] == [1]


def test_service_is_counted_for_the_list_that_was_asked_for() -> None:
    scheduler = start(activated(0, 20, 30, max_new_tokens=9), make_request(1, ONES[:7], max_new_tokens=9))
    assert [step(scheduler).key for _ in range(3)] == [BASE, BASE, LIST_A]
    assert isinstance(scheduler.queue, FairQueue)
    assert scheduler.queue.service_of(LIST_A) == 30 + 2
    assert scheduler.queue.service_of(BASE) == 7 + 2 + 2


def test_generated_tokens_never_move_the_boundary() -> None:
    scheduler = start(activated(0, 5, 10, max_new_tokens=40))
    keys = []
    while scheduler.num_requests:
        keys.append(step(scheduler, token_id=1).key)
    assert keys == [BASE] + [LIST_A] * 40


def test_validate_notices_a_chunk_across_the_boundary() -> None:
    request = activated(0, 30, 40)
    scheduler = start(request)
    scheduler.plan(0.0)
    request.activations = (Activation(20, PIRATE),)
    with pytest.raises(AssertionError, match="two adapter lists"):
        scheduler.validate()


@pytest.mark.parametrize("activation", [Activation(5, SHOUT), Activation(40, PIRATE), Activation(-1, PIRATE)])
def test_validate_notices_an_activation_that_means_nothing(activation: Activation) -> None:
    request = activated(0, 0, 40)
    scheduler = start(request)
    scheduler.plan(0.0)
    request.activations = (activation,)
    with pytest.raises(AssertionError):
        scheduler.validate()


# Its cached blocks.


@pytest.mark.parametrize("at", range(1, 49))
def test_blocks_before_the_boundary_are_shared_with_base_requests(at: int) -> None:
    shared = at // BLOCK_SIZE * BLOCK_SIZE
    base = make_request(0, ONES[:49], max_new_tokens=1)
    assert num_found(base, activated(1, at)) == shared
    again = make_request(1, ONES[:49], max_new_tokens=1)
    assert num_found(activated(0, at), again) == shared


@pytest.mark.parametrize("at", [0, 1, 15, 16, 20, 47, 48])
def test_the_same_request_finds_all_its_blocks_again(at: int) -> None:
    assert num_found(activated(0, at), activated(1, at)) == 48


def test_an_adapter_that_acts_from_the_beginning_shares_with_one_that_is_not_activated() -> None:
    plain = make_request(1, ONES[:49], key=LIST_A, max_new_tokens=1)
    assert num_found(activated(0, 0), plain) == 48


starts = st.integers(0, 48)
lists = st.one_of(
    st.just((BASE, ())),
    st.builds(lambda at: (LIST_A, (Activation(at, PIRATE),)), starts),
    st.builds(lambda at: (cohort_key([(PIRATE_AGAIN, 1.0)]), (Activation(at, PIRATE_AGAIN),)), starts),
    st.builds(lambda at: (BOTH, (Activation(at, SHOUT),)), starts),
    st.builds(lambda at, then: (BOTH, (Activation(at, PIRATE), Activation(then, SHOUT))), starts, starts),
)


@given(lists, lists)
def test_a_hit_ends_where_the_computation_differs(
    first: tuple[CohortKey, Activations], second: tuple[CohortKey, Activations]
) -> None:
    def seed_at(request: Request, position: int) -> object:
        late = {adapter for at, adapter in request.activations if at > position}
        return cache_seed(tuple(pair for pair in request.key if pair[0] not in late))

    one, two = (
        make_request(i, ONES[:49], key=key, activations=activations, max_new_tokens=1)
        for i, (key, activations) in enumerate((first, second))
    )
    equal = [seed_at(one, position) == seed_at(two, position) for position in range(48)]
    num_equal = equal.index(False) if False in equal else 48
    assert num_found(one, two) == num_equal // BLOCK_SIZE * BLOCK_SIZE
