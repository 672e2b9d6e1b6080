"""Requests for embeddings: they end when their prompt is computed, with what the model has made of every chunk."""

import pytest

from scheduler.batch import BLOCK_SIZE, Batch, Pooled, Pooling, Row, Sample, StepOutput
from scheduler.core import Scheduler
from scheduler.events import Admitted, Finished, FinishReason, Paused
from tests.scheduler.builders import LIST_A, finish_of, make_limits, make_request, start


def pool(row: Row) -> Pooled:
    """The token ids of a prompt, as far as it is computed."""
    return Pooled(row.request_id, row.pooled + bytes(row.token_ids))


def step(scheduler: Scheduler, now: float = 0.0) -> Batch:
    batch = scheduler.plan(now)
    assert batch is not None
    samples = tuple(Sample(row.request_id, 7) for row in batch.rows if row.sampling is not None)
    pooled = tuple(pool(row) for row in batch.rows if row.pooling is not None)
    scheduler.commit(StepOutput(samples, pooled), now)
    scheduler.validate()
    return batch


def test_it_ends_when_its_prompt_is_computed() -> None:
    request = make_request(1, tuple(range(50)), pooling=Pooling.MEAN)
    scheduler = start(request, scheduler=Scheduler(make_limits(max_step_tokens=20)))
    rows = [row for _ in range(3) for row in step(scheduler).rows]
    assert [(row.start, row.end, row.sampling, row.pooling) for row in rows] == [
        (0, 20, None, Pooling.MEAN),
        (20, 40, None, Pooling.MEAN),
        (40, 50, None, Pooling.MEAN),
    ]
    assert request.pooled == bytes(range(50))
    finish = finish_of(scheduler.take_events())
    assert (finish.reason, finish.num_prompt, finish.num_generated) == (FinishReason.EMBEDDED, 50, 0)
    assert scheduler.num_requests == scheduler.kv.blocks.num_held == 0


def test_it_shares_steps_with_requests_for_tokens_of_its_list_alone() -> None:
    both = make_request(1, (1, 2, 3), key=LIST_A, pooling=Pooling.MEAN), make_request(2, (4, 5), key=LIST_A)
    scheduler = start(*both, make_request(3, (6, 7)))
    batches = [step(scheduler), step(scheduler)]
    assert [[row.request_id for row in batch.rows] for batch in batches] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("pooling", "num_cached"), [(Pooling.LAST, 2 * BLOCK_SIZE), (Pooling.MEAN, 0), (Pooling.CLS, 0), (Pooling.NONE, 0)]
)
def test_only_the_last_tokens_state_can_do_without_computing_the_others(pooling: Pooling, num_cached: int) -> None:
    scheduler = start(make_request(1, (1,) * 40, max_new_tokens=1))
    step(scheduler)
    scheduler.add(make_request(2, (1,) * 40, pooling=pooling), 0.0)
    [row] = step(scheduler).rows
    assert row.start == num_cached
    [_, admitted] = [event for event in scheduler.take_events() if isinstance(event, Admitted)]
    assert admitted.num_cached == num_cached


def test_what_it_has_computed_is_found_by_others() -> None:
    scheduler = start(make_request(1, (1,) * 40, pooling=Pooling.MEAN))
    step(scheduler)
    scheduler.add(make_request(2, (1,) * 40), 0.0)
    assert step(scheduler).rows[0].start == 2 * BLOCK_SIZE


def test_where_computing_begins_again_pooling_does_too() -> None:
    request = make_request(1, tuple(range(40)), pooling=Pooling.NONE)
    request.pooled = b"of before a preemption"
    assert request.prefill_row(20).pooled == b""
    request.num_computed = 20
    assert request.prefill_row(20).pooled == b"of before a preemption"


def test_a_pause_keeps_what_is_pooled() -> None:
    limits = make_limits(num_slots=2, num_blocks=16, max_context=64, max_step_tokens=8)
    requests = [make_request(number, tuple(range(60)), pooling=Pooling.NONE) for number in range(8)]
    scheduler, now = Scheduler(limits), 0.0
    for request in requests:
        scheduler.add(request, now)
    scheduler.add(make_request(9, (1, 2), key=LIST_A), now)
    while scheduler.num_requests:
        step(scheduler, now)
        now += 1.0
    events = scheduler.take_events()
    assert any(isinstance(event, Paused) for event in events)
    assert all(request.pooled == bytes(range(60)) for request in requests)
    reasons = {event.request_id: event.reason for event in events if isinstance(event, Finished)}
    assert reasons == dict.fromkeys(range(8), FinishReason.EMBEDDED) | {9: FinishReason.LIMIT}


def test_one_that_ends_early_has_no_embedding() -> None:
    request = make_request(1, (1,) * 100, pooling=Pooling.MEAN)
    scheduler = start(request)
    step(scheduler)
    batch = scheduler.plan(0.0)
    assert batch is not None
    scheduler.end(1, FinishReason.ABORT, 0.0)
    scheduler.commit(StepOutput((), (pool(batch.rows[0]),)), 0.0)
    assert request.pooled == bytes([1] * 64)
    assert finish_of(scheduler.take_events()).reason is FinishReason.ABORT
