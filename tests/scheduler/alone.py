"""What a request would get if it was alone: what serial equivalence (I9) compares with."""

from scheduler.batch import BLOCK_SIZE
from scheduler.core import Scheduler, SchedulerLimits
from scheduler.events import Finished, FinishReason
from scheduler.request import Request
from tests.scheduler.builders import make_request
from tests.scheduler.fake_model import FakeModel


def answer_alone(request: Request, max_context: int) -> tuple[list[int], FinishReason]:
    """What a request is answered when nobody else is there: one slot, its whole prompt in one step, no cache."""
    num_blocks = -(-max_context // BLOCK_SIZE)
    scheduler, model = Scheduler(SchedulerLimits(1, num_blocks, max_context, max_context, 0)), FakeModel()
    copy = make_request(
        request.request_id,
        request.prompt,
        key=request.key,
        max_new_tokens=request.max_new_tokens,
        sampling=request.sampling,
        eog_ids=request.eog_ids,
        activations=request.activations,
        shift=request.shift,
    )
    scheduler.add(copy, 0.0)
    model.expect(copy)
    while (batch := scheduler.plan(0.0)) is not None:
        scheduler.commit(model.execute(batch), 0.0)
    (finish,) = [event for event in scheduler.take_events() if isinstance(event, Finished)]
    return copy.output, finish.reason
