"""Requests for the log-probabilities of their prompt: every chunk brings its part, and no cache hides any."""

import pytest

from scheduler.batch import BLOCK_SIZE, Batch, Sample, Scores, StepOutput
from scheduler.core import Scheduler
from scheduler.events import Admitted, FinishReason
from scheduler.request import Request
from tests.scheduler.builders import finish_of, make_limits, make_request, start

PROMPT = tuple(range(50))


def step(scheduler: Scheduler) -> Batch:
    batch = scheduler.plan(0.0)
    assert batch is not None
    samples = tuple(Sample(row.request_id, 7) for row in batch.rows if row.sampling is not None)
    scores = tuple(
        Scores(row.request_id, row.start, tuple(Sample(row.request_id, each) for each in row.scoring.token_ids))
        for row in batch.rows
        if row.scoring is not None
    )
    scheduler.commit(StepOutput(samples, scores=scores), 0.0)
    scheduler.validate()
    return batch


def token_ids(request: Request) -> list[int]:
    return [sample.token_id for sample in request.prompt_scores]


@pytest.mark.parametrize("max_new_tokens", [0, 2])
def test_each_chunk_scores_the_tokens_after_its_own(max_new_tokens: int) -> None:
    request = make_request(1, PROMPT, max_new_tokens=max_new_tokens, prompt_logprobs=3)
    scheduler = start(request, scheduler=Scheduler(make_limits(max_step_tokens=20)))
    rows = [row for _ in range(3) for row in step(scheduler).rows]
    scored = [row.scoring for row in rows if row.scoring is not None]
    assert [each.token_ids for each in scored] == [PROMPT[1:21], PROMPT[21:41], PROMPT[41:]]
    assert {each.num_logprobs for each in scored} == {3}
    assert token_ids(request) == list(PROMPT[1:])
    assert [row.sampling is not None for row in rows] == [False, False, max_new_tokens > 0]


def test_one_that_wants_no_token_ends_with_its_prompt() -> None:
    request = make_request(1, PROMPT, max_new_tokens=0, prompt_logprobs=0)
    scheduler = start(request)
    step(scheduler)
    finish = finish_of(scheduler.take_events())
    assert (finish.reason, finish.num_prompt, finish.num_generated) == (FinishReason.LIMIT, 50, 0)
    assert scheduler.num_requests == scheduler.kv.blocks.num_held == 0


def test_nothing_follows_the_first_token_of_a_prompt_of_one() -> None:
    request = make_request(1, (5,), max_new_tokens=0, prompt_logprobs=0)
    [row] = step(start(request)).rows
    assert row.scoring is None
    assert request.prompt_scores == []


def test_it_reads_no_cached_prefix_and_leaves_one() -> None:
    scheduler = start(make_request(1, PROMPT, max_new_tokens=1))
    step(scheduler)
    for number, num_cached in ((2, 0), (3, 0)):
        scheduler.add(make_request(number, PROMPT, max_new_tokens=0, prompt_logprobs=1), 0.0)
        assert step(scheduler).rows[0].start == num_cached
    scheduler.add(make_request(4, PROMPT, max_new_tokens=0), 0.0)
    assert step(scheduler).rows[0].start == 3 * BLOCK_SIZE
    admitted = [event for event in scheduler.take_events() if isinstance(event, Admitted)]
    assert [event.num_cached for event in admitted] == [0, 0, 0, 3 * BLOCK_SIZE]


def test_scores_that_are_lost_with_their_kv_come_again_and_those_that_are_there_do_not() -> None:
    request = make_request(1, PROMPT, prompt_logprobs=1)
    request.take_scores(Scores(1, 0, tuple(Sample(1, each) for each in range(1, 31))))
    again = request.prefill_row(20)
    assert (again.start, again.scoring is not None, request.can_reuse_prefix) == (0, True, False)
    request.take_scores(Scores(1, 0, tuple(Sample(1, each) for each in range(1, 21))))
    assert token_ids(request) == list(range(1, 21))
    request.take_scores(Scores(1, 20, tuple(Sample(1, each) for each in range(21, 50))))
    request.output.append(9)
    assert request.prefill_row(20).scoring is None
    assert request.can_reuse_prefix
