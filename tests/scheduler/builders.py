"""Requests and limits for tests of the scheduler. What a test does not speak of is set to something plain."""

from scheduler.batch import Batch, Pooling, Sample, SamplingParams, StepOutput
from scheduler.cohort import BASE, Activations, AdapterId, CohortKey, cohort_key
from scheduler.context_shift import ContextShift
from scheduler.core import Scheduler, SchedulerLimits
from scheduler.events import Admitted, Event, Finished, Preempted
from scheduler.request import Request

PIRATE = AdapterId(1, "digest-of-pirate")
SHOUT = AdapterId(2, "digest-of-shout")
PIRATE_AGAIN = AdapterId(3, "digest-of-pirate")
"""The same files as PIRATE, loaded a second time."""

LIST_A = cohort_key([(PIRATE, 1.0)])
LIST_B = cohort_key([(PIRATE, 0.5), (SHOUT, -1.25)])
LIST_C = cohort_key([(PIRATE_AGAIN, 1.0)])
"""Another list than LIST_A with the same contents: another cohort, the same cached KV."""

GREEDY = SamplingParams(temperature=0.0)


def make_request(
    request_id: int,
    prompt: tuple[int, ...] = (1, 2, 3),
    *,
    key: CohortKey = BASE,
    max_new_tokens: int = 4,
    sampling: SamplingParams = GREEDY,
    eog_ids: frozenset[int] = frozenset(),
    slot_id_wanted: int | None = None,
    reuse_prefix: bool = True,
    activations: Activations = (),
    pooling: Pooling | None = None,
    shift: ContextShift | None = None,
    prompt_logprobs: int | None = None,
) -> Request:
    return Request(
        request_id=request_id,
        key=key,
        prompt=prompt,
        sampling=sampling,
        max_new_tokens=max_new_tokens if pooling is None else 0,
        eog_ids=eog_ids,
        slot_id_wanted=slot_id_wanted,
        reuse_prefix=reuse_prefix,
        activations=activations,
        pooling=pooling,
        shift=shift,
        prompt_logprobs=prompt_logprobs,
    )


def make_limits(
    *,
    num_slots: int = 4,
    num_blocks: int = 64,
    max_context: int = 256,
    max_step_tokens: int = 64,
    max_waiting: int = 8,
) -> SchedulerLimits:
    return SchedulerLimits(num_slots, num_blocks, max_context, max_step_tokens, max_waiting)


def answer(batch: Batch, token_id: int = 7) -> StepOutput:
    """The same token for every row that wants one."""
    return StepOutput(tuple(Sample(row.request_id, token_id) for row in batch.rows if row.sampling is not None))


def step(scheduler: Scheduler, *, token_id: int = 7, now: float = 0.0) -> Batch:
    """Plan a step, which must be possible, answer it with one token for all, commit it, validate."""
    batch = scheduler.plan(now)
    assert batch is not None
    scheduler.validate()
    scheduler.commit(answer(batch, token_id), now)
    scheduler.validate()
    return batch


def run_dry(scheduler: Scheduler) -> list[Event]:
    """Step until nothing is left, and return all events since the last look."""
    while scheduler.num_requests:
        step(scheduler)
    return scheduler.take_events()


def start(*requests: Request, scheduler: Scheduler | None = None) -> Scheduler:
    """Add requests to a scheduler, a roomy one unless told otherwise, and return it."""
    scheduler = scheduler or Scheduler(make_limits())
    for request in requests:
        scheduler.add(request, 0.0)
        scheduler.validate()
    return scheduler


def ids_of(events: list[Event], kind: type[Admitted | Preempted | Finished]) -> list[int]:
    return [event.request_id for event in events if isinstance(event, kind)]


def finish_of(events: list[Event]) -> Finished:
    (finish,) = [event for event in events if isinstance(event, Finished)]
    return finish
