"""Blocks in the whole scheduler, by example: who finds whose KV, and who gives way when there is too little."""

from scheduler.cohort import BASE, CohortKey
from scheduler.core import Scheduler
from scheduler.events import Admitted, Finished, FinishReason, Preempted, TokenSampled
from scheduler.request import Request
from tests.scheduler.builders import (
    LIST_A,
    LIST_B,
    LIST_C,
    finish_of,
    ids_of,
    make_limits,
    make_request,
    run_dry,
    start,
    step,
)

# The prefix cache.


def test_cached_blocks_of_a_prompt_are_not_computed_again() -> None:
    scheduler = start(make_request(0, tuple(range(40)), max_new_tokens=1))
    run_dry(scheduler)
    start(make_request(1, tuple(range(40)), max_new_tokens=1), scheduler=scheduler)
    assert [(row.start, len(row.token_ids)) for row in step(scheduler).rows] == [(32, 8)]
    assert finish_of(scheduler.take_events()).num_cached == 32


def test_last_token_of_a_prompt_is_always_computed() -> None:
    scheduler = start(make_request(0, tuple(range(32)), max_new_tokens=1))
    run_dry(scheduler)
    start(make_request(1, tuple(range(32))), scheduler=scheduler)
    assert step(scheduler).rows[0].start == 16


def test_running_requests_share_blocks() -> None:
    scheduler = start(make_request(0, (1,) * 20, max_new_tokens=9))
    step(scheduler)
    start(make_request(1, (1,) * 20), scheduler=scheduler)
    step(scheduler)
    tables = [request.blocks for request in scheduler.running.values()]
    assert tables[0][0] == tables[1][0]
    assert tables[0][1] != tables[1][1]
    assert scheduler.kv.blocks.num_references(tables[0][0]) == 2


def test_generated_tokens_are_cached_too() -> None:
    scheduler = start(make_request(0, (1,) * 10, max_new_tokens=8))
    run_dry(scheduler)
    start(make_request(1, (1,) * 10 + (7,) * 8), scheduler=scheduler)
    assert step(scheduler).rows[0].start == 16


def test_prompt_in_chunks_is_found_as_far_as_it_is_computed() -> None:
    scheduler = start(make_request(0, (1,) * 60), scheduler=Scheduler(make_limits(max_step_tokens=20)))
    step(scheduler)
    start(make_request(1, (1,) * 60), scheduler=scheduler)
    step(scheduler)
    (first,) = [event for event in scheduler.take_events() if isinstance(event, Admitted) and event.request_id == 1]
    assert first.num_cached == 16


def test_other_list_computes_the_same_prompt_anew() -> None:
    scheduler = start(make_request(0, (1,) * 40, key=LIST_A, max_new_tokens=1))
    run_dry(scheduler)
    for request_id, key in enumerate((LIST_B, BASE), 1):
        start(make_request(request_id, (1,) * 40, key=key, max_new_tokens=1), scheduler=scheduler)
        assert step(scheduler).rows[0].start == 0


def test_list_with_the_same_contents_reuses_the_prompt() -> None:
    scheduler = start(make_request(0, (1,) * 40, key=LIST_A, max_new_tokens=1))
    run_dry(scheduler)
    start(make_request(1, (1,) * 40, key=LIST_C), scheduler=scheduler)
    assert step(scheduler).rows[0].start == 32


def test_request_may_decline_cached_blocks_but_leaves_its_own() -> None:
    scheduler = start(make_request(0, (1,) * 40, max_new_tokens=1, reuse_prefix=False))
    run_dry(scheduler)
    start(make_request(1, (1,) * 40, max_new_tokens=1, reuse_prefix=False), scheduler=scheduler)
    assert step(scheduler).rows[0].start == 0
    start(make_request(2, (1,) * 40), scheduler=scheduler)
    assert step(scheduler).rows[0].start == 32


def test_cached_blocks_are_given_up_when_others_need_them() -> None:
    scheduler = Scheduler(make_limits(num_blocks=4, max_context=64))
    run_dry(start(make_request(0, (1,) * 40, max_new_tokens=1), scheduler=scheduler))
    run_dry(start(make_request(1, (2,) * 60, max_new_tokens=1), scheduler=scheduler))
    start(make_request(2, (1,) * 40), scheduler=scheduler)
    assert step(scheduler).rows[0].start == 0


# KV pressure.


def under_pressure(*, keys: tuple[CohortKey, CohortKey] = (BASE, BASE)) -> Scheduler:
    """Two requests in four blocks that will want five: the second must go when both reach their third block."""
    scheduler = Scheduler(make_limits(num_slots=2, num_blocks=4, max_context=64))
    requests = [make_request(i, (i,) * 15, key=key, max_new_tokens=30) for i, key in enumerate(keys)]
    return start(*requests, scheduler=scheduler)


def test_newest_admission_is_preempted_and_finishes_later() -> None:
    events = run_dry(under_pressure())
    assert ids_of(events, Preempted) == [1]
    assert ids_of(events, Admitted) == [0, 1, 1]
    assert ids_of(events, Finished) == [0, 1]
    assert [event.num_generated for event in events if isinstance(event, Finished)] == [30, 30]


def test_tokens_go_on_where_they_were_after_preemption() -> None:
    events = run_dry(under_pressure())
    indices = [event.index for event in events if isinstance(event, TokenSampled) and event.request_id == 1]
    assert indices == list(range(30))


def test_preemption_reaches_other_lists() -> None:
    events = run_dry(under_pressure(keys=(LIST_A, LIST_B)))
    assert [event.key for event in events if isinstance(event, Preempted)] == [LIST_B]


def test_preempted_request_is_admitted_before_new_ones() -> None:
    scheduler = under_pressure()
    while not ids_of(scheduler.take_events(), Preempted):
        step(scheduler)
    start(make_request(2), scheduler=scheduler)
    assert ids_of(run_dry(scheduler), Admitted) == [1, 2]


def test_preempted_request_finds_its_own_blocks_again() -> None:
    readmission = [event for event in run_dry(under_pressure()) if isinstance(event, Admitted)][-1]
    assert readmission.num_cached == 16


def test_admission_after_preemption_tells_what_was_generated_so_far() -> None:
    admissions = [event for event in run_dry(under_pressure()) if isinstance(event, Admitted)]
    assert [(event.is_first, event.num_tokens) for event in admissions] == [(True, 15), (True, 15), (False, 33)]


def test_preempted_request_can_be_ended() -> None:
    scheduler = under_pressure()
    while not ids_of(scheduler.take_events(), Preempted):
        step(scheduler)
    scheduler.end(1, FinishReason.ABORT, 0.0)
    scheduler.validate()
    assert ids_of(run_dry(scheduler), Finished) == [1, 0]


def test_newcomer_waits_until_the_running_ones_have_room_to_grow() -> None:
    scheduler = Scheduler(make_limits(num_slots=2, num_blocks=4, max_context=64))
    start(make_request(0, (1,) * 20, max_new_tokens=30), make_request(1, (2,) * 20), scheduler=scheduler)
    step(scheduler)
    assert ids_of(scheduler.take_events(), Admitted) == [0]


def test_newcomer_does_not_wait_for_room_that_the_running_ones_will_not_need() -> None:
    scheduler = Scheduler(make_limits(num_slots=2, num_blocks=4, max_context=64))
    start(make_request(0, (1,) * 20, max_new_tokens=13), make_request(1, (2,) * 20), scheduler=scheduler)
    step(scheduler)
    assert ids_of(scheduler.take_events(), Admitted) == [0, 1]


def test_request_as_large_as_the_pool_is_served() -> None:
    scheduler = Scheduler(make_limits(num_slots=2, num_blocks=4, max_context=64))
    events = run_dry(start(make_request(0, (1,) * 30, max_new_tokens=99), make_request(1), scheduler=scheduler))
    finishes = [(event.request_id, event.num_generated) for event in events if isinstance(event, Finished)]
    assert finishes == [(1, 4), (0, 34)]


def growing_beside(scheduler: Scheduler, *newcomers: Request) -> list[int]:
    """Who is preempted, when requests come whose first tokens take many turns."""
    start(make_request(0, (0,) * 10, max_new_tokens=80), scheduler=scheduler)
    step(scheduler)
    start(*newcomers, scheduler=scheduler)
    return ids_of(run_dry(scheduler), Preempted)


def test_newcomer_waits_until_others_can_grow_by_as_many_blocks_as_they_will_before_its_first_token() -> None:
    limits = make_limits(num_slots=2, num_blocks=6, max_context=96, max_step_tokens=2)
    assert growing_beside(Scheduler(limits), make_request(1, (1,) * 60, key=LIST_A, max_new_tokens=1)) == []


def test_prompts_in_front_of_a_newcomers_own_count_as_well() -> None:
    limits = make_limits(num_slots=3, num_blocks=9, max_context=96, max_step_tokens=3)
    long = make_request(1, (1,) * 60, key=LIST_A, max_new_tokens=30)
    short = make_request(2, (2,) * 17, key=LIST_A, max_new_tokens=1)
    assert short.request_id not in growing_beside(Scheduler(limits), long, short)
