"""Decode rows whose constraint does not know yet what may come next: they sit out, and nobody else does."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.batch import Row, RowLate, Sample, StepOutput
from scheduler.cohort import BASE, CacheSeed
from scheduler.core import Scheduler
from scheduler.events import Finished, FinishReason, TokenSampled
from tests.scheduler.alone import answer_alone
from tests.scheduler.builders import LIST_A, LIST_B, finish_of, make_limits, make_request, start, step
from tests.scheduler.fake_model import FakeModel


class LateModel(FakeModel):
    """Leaves a part of the decode rows without a token."""

    def __init__(self, random: Random, ratio: float) -> None:
        super().__init__()
        self._random = random
        self._ratio = ratio
        self.num_late = 0

    def _sample(self, row: Row, seed: CacheSeed) -> Sample | RowLate:
        if row.is_decode and self._random.random() < self._ratio:
            self.num_late += 1
            return RowLate(row.request_id)
        return super()._sample(row, seed)


def test_a_late_row_comes_again_and_the_others_go_on() -> None:
    scheduler = start(make_request(0), make_request(1))
    step(scheduler)
    batch = scheduler.plan(0.0)
    assert batch is not None
    late, other = batch.rows
    scheduler.commit(StepOutput((RowLate(0), Sample(1, 7))), 0.0)
    scheduler.validate()
    again, next_of_other = step(scheduler).rows
    assert again == late
    assert next_of_other.start == other.start + 1
    tokens = [event.request_id for event in scheduler.take_events() if isinstance(event, TokenSampled)]
    assert tokens == [0, 1, 1, 0, 1]


def test_a_late_row_keeps_no_turn_from_another_list() -> None:
    scheduler = start(make_request(0, key=LIST_A), make_request(1, key=LIST_B))
    for _ in range(2):
        step(scheduler)
    keys = []
    while (batch := scheduler.plan(0.0)) is not None:
        keys.append(batch.key)
        [row] = batch.rows
        late = batch.key == LIST_A and len(keys) < 6
        scheduler.commit(StepOutput((RowLate(0) if late else Sample(row.request_id, 7),)), 0.0)
    assert keys[:6] == [LIST_A, LIST_B] * 3


def test_a_request_that_is_ended_while_its_row_is_late_has_ended() -> None:
    scheduler = start(make_request(0))
    step(scheduler)
    assert scheduler.plan(0.0) is not None
    scheduler.end(0, FinishReason.ABORT, 0.0)
    scheduler.commit(StepOutput((RowLate(0),)), 0.0)
    assert scheduler.plan(0.0) is None
    assert finish_of(scheduler.take_events()).reason is FinishReason.ABORT


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), ratio=st.sampled_from([0.1, 0.5, 0.9]), num_blocks=st.sampled_from([6, 8, 64]))
def test_late_rows_change_no_token(seed: int, ratio: float, num_blocks: int) -> None:
    random = Random(seed)
    model = LateModel(random, ratio)
    limits = make_limits(num_blocks=num_blocks, max_context=96)
    scheduler = Scheduler(limits)
    requests = [
        make_request(
            i,
            tuple(random.randrange(6) for _ in range(random.randint(1, 40))),
            key=random.choice([BASE, LIST_A, LIST_B]),
            max_new_tokens=random.randint(1, 40),
            eog_ids=frozenset({random.randrange(12)}),
        )
        for i in range(8)
    ]
    for request in requests:
        scheduler.add(request, 0.0)
        model.expect(request)
    now = 0.0
    while (batch := scheduler.plan(now)) is not None:
        scheduler.validate()
        scheduler.commit(model.execute(batch), now)
        scheduler.validate()
        now += 0.1
    ends = {event.request_id: event for event in scheduler.take_events() if isinstance(event, Finished)}
    for request in requests:
        assert (request.output, ends[request.request_id].reason) == answer_alone(request, limits.max_context)
