"""The scheduler by example, one behaviour per test. Any interleaving of them: test_machine.py."""

import pytest

from scheduler.batch import RowFault, Sample, SamplingParams, StepOutput
from scheduler.cohort import BASE
from scheduler.core import Scheduler
from scheduler.errors import PromptEmpty, PromptTooLong, QueueFull, SlotUnknown
from scheduler.events import Admitted, Finished, FinishReason, StepDone, TokenSampled
from scheduler.request import State
from tests.scheduler.builders import (
    LIST_A,
    LIST_B,
    LIST_C,
    answer,
    finish_of,
    ids_of,
    make_limits,
    make_request,
    run_dry,
    start,
    step,
)

# The door.


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(PromptEmpty, match="0 tokens"):
        start(make_request(0, ()))


def test_prompt_without_room_for_a_token_is_refused_with_the_bound() -> None:
    with pytest.raises(PromptTooLong, match=r"256 tokens\) exceeds .* \(256 tokens\)"):
        start(make_request(0, (1,) * 256))


def test_prompt_with_room_for_one_token_is_served() -> None:
    events = run_dry(start(make_request(0, (1,) * 255, max_new_tokens=9)))
    assert (finish_of(events).reason, finish_of(events).num_generated) == (FinishReason.LIMIT, 1)


@pytest.mark.parametrize("slot_id", [-1, 4])
def test_slot_that_does_not_exist_is_refused_by_number(slot_id: int) -> None:
    with pytest.raises(SlotUnknown, match=f"id_slot is {slot_id}, the slots are 0 to 3"):
        start(make_request(0, slot_id_wanted=slot_id))


def test_full_queue_refuses_with_both_numbers() -> None:
    scheduler = start(scheduler=Scheduler(make_limits(num_slots=1, max_waiting=2)))
    start(make_request(0), scheduler=scheduler)
    scheduler.plan(0.0)
    start(make_request(1), make_request(2), scheduler=scheduler)
    with pytest.raises(QueueFull, match="2 requests are waiting, the limit is 2"):
        scheduler.add(make_request(3), 0.0)
    assert scheduler.get(3) is None


def test_queue_of_zero_accepts_as_many_as_there_are_free_slots() -> None:
    scheduler = start(make_request(0), make_request(1), scheduler=Scheduler(make_limits(num_slots=2, max_waiting=0)))
    with pytest.raises(QueueFull):
        scheduler.add(make_request(2), 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_slots": 0}, "0 slots"),
        ({"max_context": 1}, "context of 1"),
        ({"max_step_tokens": 3}, "3 tokens cannot advance 4 slots"),
        ({"num_blocks": 15}, "15 KV blocks cannot hold a context of 256"),
        ({"max_waiting": -1}, "queue of -1"),
    ],
)
def test_limits_that_contradict_each_other_are_refused_by_value(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_limits(**change)


# A step.


def test_nothing_is_planned_where_nothing_was_added() -> None:
    assert Scheduler(make_limits()).plan(0.0) is None


def test_first_step_computes_the_prompt_and_samples() -> None:
    batch = start(make_request(0, (5, 6, 7), key=LIST_A)).plan(0.0)
    assert batch is not None
    (row,) = batch.rows
    assert (batch.key, row.token_ids, row.start, row.is_decode) == (LIST_A, (5, 6, 7), 0, False)
    assert row.sampling is not None


def test_later_steps_compute_the_newest_token() -> None:
    scheduler = start(make_request(0, (5, 6, 7)))
    step(scheduler, token_id=9)
    (row,) = step(scheduler).rows
    assert (row.token_ids, row.start, row.is_decode) == ((9,), 3, True)


def test_long_prompt_is_computed_in_chunks_and_samples_at_its_end() -> None:
    scheduler = start(make_request(0, tuple(range(20))), scheduler=Scheduler(make_limits(max_step_tokens=8)))
    rows = [step(scheduler).rows[0] for _ in range(3)]
    assert [(row.start, len(row.token_ids)) for row in rows] == [(0, 8), (8, 8), (16, 4)]
    assert [row.sampling is not None for row in rows] == [False, False, True]


def test_decode_rows_come_first_and_leave_the_rest_of_the_step_to_prompts() -> None:
    scheduler = start(make_request(0, max_new_tokens=9), scheduler=Scheduler(make_limits(max_step_tokens=8)))
    step(scheduler)
    start(make_request(1, (1,) * 20), scheduler=scheduler)
    rows = step(scheduler).rows
    assert [(row.request_id, row.is_decode, len(row.token_ids)) for row in rows] == [(0, True, 1), (1, False, 7)]


def test_oldest_prompt_is_computed_first() -> None:
    scheduler = start(
        make_request(0, (1,) * 6), make_request(1, (2,) * 6), scheduler=Scheduler(make_limits(max_step_tokens=8))
    )
    assert [(row.request_id, len(row.token_ids)) for row in step(scheduler).rows] == [(0, 6), (1, 2)]


def test_all_requests_of_one_list_share_a_step() -> None:
    scheduler = start(*(make_request(i, key=LIST_A) for i in range(4)))
    assert [row.request_id for row in step(scheduler).rows] == [0, 1, 2, 3]


def test_lists_take_turns() -> None:
    scheduler = start(*(make_request(i, key=key) for i, key in enumerate((BASE, LIST_A, LIST_B, LIST_A))))
    assert [step(scheduler).key for _ in range(6)] == [BASE, LIST_A, LIST_B] * 2


def test_lists_of_the_same_contents_but_other_load_ids_take_turns() -> None:
    scheduler = start(make_request(0, key=LIST_A), make_request(1, key=LIST_C))
    assert [step(scheduler).key for _ in range(2)] == [LIST_A, LIST_C]


def test_history_is_given_where_penalties_need_it() -> None:
    penalised = SamplingParams(repeat_penalty=1.2, repeat_last_n=2)
    scheduler = start(make_request(0, (5, 6, 7), sampling=penalised))
    assert step(scheduler, token_id=8).rows[0].history == (6, 7)
    assert step(scheduler).rows[0].history == (7, 8)


def test_row_of_a_batch_does_not_change_when_its_request_does() -> None:
    scheduler = start(make_request(0))
    batch = scheduler.plan(0.0)
    assert batch is not None
    table = batch.rows[0].block_table
    scheduler.end(0, FinishReason.ABORT, 0.0)
    assert batch.rows[0].block_table == table != ()


def test_second_step_cannot_be_planned_while_one_is_in_flight() -> None:
    scheduler = start(make_request(0))
    scheduler.plan(0.0)
    with pytest.raises(AssertionError, match="in flight"):
        scheduler.plan(0.0)


def test_commit_without_a_step_in_flight_is_caught() -> None:
    with pytest.raises(AssertionError, match="no step is in flight"):
        Scheduler(make_limits()).commit(StepOutput(()), 0.0)


@pytest.mark.parametrize("num_samples", [0, 2])
def test_output_that_does_not_fit_the_batch_is_caught_before_anything_is_committed(num_samples: int) -> None:
    scheduler = start(make_request(0))
    scheduler.plan(0.0)
    samples = tuple(Sample(request_id, 1) for request_id in range(num_samples))
    with pytest.raises(AssertionError, match=f"{num_samples} samples for 1 rows"):
        scheduler.commit(StepOutput(samples), 0.0)
    request = scheduler.get(0)
    assert request is not None
    assert request.output == []


# How a request ends.


def test_end_of_generation_token_ends_the_request_and_is_its_last_token() -> None:
    scheduler = start(make_request(0, eog_ids=frozenset({9})))
    step(scheduler, token_id=1)
    step(scheduler, token_id=9)
    finish = finish_of(scheduler.take_events())
    assert (finish.reason, finish.num_generated) == (FinishReason.EOS, 2)


def test_token_limit_ends_the_request() -> None:
    events = run_dry(start(make_request(0, max_new_tokens=3)))
    assert (finish_of(events).reason, finish_of(events).num_generated) == (FinishReason.LIMIT, 3)


def test_end_of_the_context_ends_the_request() -> None:
    scheduler = Scheduler(make_limits(max_context=10))
    events = run_dry(start(make_request(0, (1,) * 7, max_new_tokens=99), scheduler=scheduler))
    assert (finish_of(events).reason, finish_of(events).num_generated) == (FinishReason.LIMIT, 3)


def test_waiting_request_can_be_ended() -> None:
    scheduler = start(make_request(0))
    scheduler.end(0, FinishReason.ABORT, 1.0)
    scheduler.validate()
    assert finish_of(scheduler.take_events()).reason is FinishReason.ABORT
    assert scheduler.plan(1.0) is None


def test_ended_request_gives_its_slot_and_blocks_back_at_once() -> None:
    scheduler = start(make_request(0))
    step(scheduler)
    scheduler.end(0, FinishReason.WORD, 1.0)
    scheduler.validate()
    assert scheduler.running == {}
    assert scheduler.kv.blocks.num_held == 0


def test_sample_of_a_request_ended_in_flight_is_dropped() -> None:
    scheduler = start(make_request(0), make_request(1))
    batch = scheduler.plan(0.0)
    assert batch is not None
    scheduler.end(0, FinishReason.ABORT, 0.0)
    scheduler.take_events()
    scheduler.commit(answer(batch), 0.0)
    scheduler.validate()
    tokens = [event.request_id for event in scheduler.take_events() if isinstance(event, TokenSampled)]
    assert tokens == [1]


def test_blocks_of_a_request_ended_in_flight_are_not_cached() -> None:
    scheduler = start(make_request(0, (1,) * 40))
    batch = scheduler.plan(0.0)
    assert batch is not None
    scheduler.end(0, FinishReason.ABORT, 0.0)
    scheduler.commit(answer(batch), 0.0)
    assert len(scheduler.kv.cache) == 0


def test_failed_step_ends_its_own_requests_with_the_message_and_no_others() -> None:
    scheduler = start(make_request(0, key=LIST_A), make_request(1, key=LIST_B))
    batch = scheduler.plan(0.0)
    assert batch is not None
    scheduler.fail("out of memory", 0.0)
    scheduler.validate()
    finish = finish_of(scheduler.take_events())
    assert (finish.request_id, finish.reason, finish.message) == (0, FinishReason.ERROR, "out of memory")
    assert step(scheduler).key == LIST_B


def test_a_row_at_fault_ends_its_request_and_leaves_the_rest_of_the_batch_alone() -> None:
    scheduler = start(make_request(0), make_request(1), make_request(2))
    batch = scheduler.plan(0.0)
    assert batch is not None
    scheduler.commit(StepOutput((Sample(0, 7), RowFault(1, "the logits hold NaN"), Sample(2, 7))), 0.0)
    scheduler.validate()
    finish = finish_of(scheduler.take_events())
    assert (finish.request_id, finish.reason, finish.message) == (1, FinishReason.ERROR, "the logits hold NaN")
    assert [row.request_id for row in step(scheduler).rows] == [0, 2]


def test_a_row_that_nothing_may_follow_ends_as_at_an_end_token() -> None:
    scheduler = start(make_request(0))
    scheduler.plan(0.0)
    scheduler.commit(StepOutput((RowFault(0, "", is_end=True),)), 0.0)
    scheduler.validate()
    finish = finish_of(scheduler.take_events())
    assert (finish.reason, finish.message, finish.num_generated) == (FinishReason.EOS, "", 0)


def test_a_row_to_which_its_own_request_leaves_no_token_is_told_apart() -> None:
    scheduler = start(make_request(0))
    scheduler.plan(0.0)
    scheduler.commit(StepOutput((RowFault(0, "why", is_asked_for=True),)), 0.0)
    finish = finish_of(scheduler.take_events())
    assert (finish.reason, finish.message) == (FinishReason.UNANSWERABLE, "why")


@pytest.mark.parametrize("request_id", [0, 77])
def test_ending_a_request_that_is_not_there_does_nothing(request_id: int) -> None:
    scheduler = start(make_request(0, max_new_tokens=1))
    run_dry(scheduler)
    scheduler.end(request_id, FinishReason.ABORT, 1.0)
    assert scheduler.take_events() == []


# Slots.


def test_lowest_free_slot_is_taken() -> None:
    scheduler = start(*(make_request(i) for i in range(3)))
    step(scheduler)
    scheduler.end(1, FinishReason.ABORT, 0.0)
    start(make_request(3), scheduler=scheduler)
    step(scheduler)
    assert {slot_id: request.request_id for slot_id, request in scheduler.running.items()} == {0: 0, 1: 3, 2: 2}


def test_named_slot_is_taken() -> None:
    scheduler = start(make_request(0, slot_id_wanted=2))
    step(scheduler)
    assert list(scheduler.running) == [2]


def test_request_that_names_a_busy_slot_waits_for_it_and_delays_nobody() -> None:
    scheduler = start(make_request(0), make_request(1, slot_id_wanted=0), make_request(2, max_new_tokens=9))
    step(scheduler)
    assert ids_of(scheduler.take_events(), Admitted) == [0, 2]
    for _ in range(4):
        step(scheduler)
    assert scheduler.running[0].request_id == 1


def test_no_more_requests_run_than_there_are_slots() -> None:
    scheduler = start(*(make_request(i) for i in range(6)))
    assert len(step(scheduler).rows) == 4


# What is told.


def test_events_are_told_once() -> None:
    scheduler = start(make_request(0))
    step(scheduler)
    assert scheduler.take_events()
    assert scheduler.take_events() == []


def test_finished_is_the_last_event_of_a_request() -> None:
    events = run_dry(start(make_request(0, max_new_tokens=2)))
    assert [type(event) for event in events] == [Admitted, StepDone, TokenSampled, StepDone, TokenSampled, Finished]


def test_times_are_measured_from_arrival_and_from_token_to_token() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.add(make_request(0, max_new_tokens=2), 10.0)
    for planned_s, done_s in ((12.0, 15.0), (15.5, 16.0)):
        batch = scheduler.plan(planned_s)
        assert batch is not None
        scheduler.commit(answer(batch), done_s)
    events = scheduler.take_events()
    assert [event.queue_s for event in events if isinstance(event, Admitted)] == [2.0]
    assert [event.gap_s for event in events if isinstance(event, TokenSampled)] == [5.0, 1.0]
    assert [event.duration_s for event in events if isinstance(event, StepDone)] == [3.0, 0.5]
    assert finish_of(events).arrived_s == 10.0


def test_step_tells_its_rows_tokens_cohorts_and_switches() -> None:
    scheduler = start(make_request(0, key=LIST_A), make_request(1, (1, 2), key=LIST_B))
    for _ in range(3):
        step(scheduler)
    done = [event for event in scheduler.take_events() if isinstance(event, StepDone)]
    assert [event.is_switch for event in done] == [False, True, True]
    assert [event.num_tokens for event in done] == [3, 2, 1]
    assert [event.num_decode for event in done] == [0, 0, 1]
    assert [(event.num_rows, event.num_cohorts, event.num_lists) for event in done] == [(1, 2, 1)] * 3
    assert [event.step_id for event in done] == [0, 1, 2]


def test_requests_in_the_scheduler_are_counted_and_found() -> None:
    request = make_request(0, max_new_tokens=1)
    scheduler = start(request, make_request(1))
    assert scheduler.num_requests == 2
    assert scheduler.get(0) is request
    step(scheduler)
    assert scheduler.num_requests == 1
    assert scheduler.get(0) is None
    assert request.state is State.FINISHED
