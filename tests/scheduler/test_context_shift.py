"""A full context that gives up a part of itself: which part, what is computed again, and when it ends all the same."""

import pytest

from scheduler.cohort import Activation
from scheduler.context_shift import ContextShift, shifted
from scheduler.core import Scheduler
from scheduler.events import Admitted, FinishReason, Shifted, TokenSampled
from tests.scheduler.builders import PIRATE, SHOUT, finish_of, make_limits, make_request, run_dry, start, step


@pytest.mark.parametrize(
    ("num_keep", "num_discard", "max_context", "kept", "discarded"),
    [
        (0, 0, 32, 0, 16),
        (10, 0, 32, 10, 11),
        (10, 5, 32, 10, 5),
        (10, 99, 32, 10, 21),
        (99, 0, 32, 28, 2),
        (99, 99, 32, 28, 3),
        (5, 0, 2, 0, 1),
        (5, 7, 3, 0, 2),
    ],
)
def test_what_a_full_context_gives_up(
    num_keep: int, num_discard: int, max_context: int, kept: int, discarded: int
) -> None:
    shift = ContextShift(num_keep, num_discard)
    assert (shift.kept(max_context), shift.discarded(max_context)) == (kept, discarded)


def test_adapters_begin_to_act_on_the_same_tokens() -> None:
    activations = tuple(Activation(start, PIRATE) for start in (0, 3, 4, 6, 9))
    assert [start for start, _ in shifted(activations, 3, 4)] == [0, 3, 3, 3, 5]
    assert shifted((Activation(5, SHOUT),), 3, 0) == (Activation(5, SHOUT),)


def shifting(num_keep: int, num_discard: int, max_new_tokens: int) -> Scheduler:
    """One slot with a context of 32 tokens, and a prompt of 20."""
    limits = make_limits(num_slots=1, num_blocks=4, max_context=32)
    shift = ContextShift(num_keep, num_discard)
    request = make_request(0, tuple(range(100, 120)), max_new_tokens=max_new_tokens, shift=shift)
    return start(request, scheduler=Scheduler(limits))


def test_a_request_goes_on_behind_what_it_keeps() -> None:
    scheduler = shifting(4, 10, 30)
    request = scheduler.queue.first(0.0, lambda request: True)
    assert request is not None
    for number in range(12):
        step(scheduler, token_id=number)
    assert (request.num_tokens, request.num_dropped, request.blocks) == (22, 10, [])
    expected = (*range(100, 104), *range(114, 120), *range(12))
    assert request.tokens(0, 22) == expected
    assert request.tokens(2, 6) == expected[2:6]
    assert request.tokens(8, 12) == expected[8:12]
    batch = step(scheduler, token_id=50)
    assert (batch.rows[0].token_ids, batch.rows[0].start, batch.rows[0].draw) == (expected, 0, 32)
    events = run_dry(scheduler)
    assert finish_of(events).num_generated == 30
    assert request.num_dropped == 20
    indices = [event.index for event in events if isinstance(event, TokenSampled)]
    assert indices == list(range(30))
    assert [event.num_dropped for event in events if isinstance(event, Shifted)] == [10, 20]
    assert [event.is_first for event in events if isinstance(event, Admitted)] == [True, False, False]


def test_whole_blocks_that_are_kept_are_not_computed_again() -> None:
    scheduler = shifting(20, 6, 13)
    admissions = [event for event in run_dry(scheduler) if isinstance(event, Admitted)]
    assert [(event.num_tokens, event.num_cached) for event in admissions] == [(20, 0), (26, 16)]


def test_the_last_token_ends_a_request_in_a_full_context() -> None:
    events = run_dry(shifting(4, 10, 12))
    assert not any(isinstance(event, Shifted) for event in events)
    assert (finish_of(events).reason, finish_of(events).num_generated) == (FinishReason.LIMIT, 12)


def test_one_token_given_up_at_a_time_still_ends() -> None:
    events = run_dry(shifting(0, 1, 40))
    assert finish_of(events).num_generated == 40
    assert sum(isinstance(event, Shifted) for event in events) == 28
