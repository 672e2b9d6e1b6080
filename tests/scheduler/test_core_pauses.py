"""Pauses in the whole scheduler, by example: seats change hands, KV stays while blocks last."""

from scheduler.core import Scheduler, SchedulerLimits
from scheduler.events import Admitted, Event, Finished, FinishReason, Paused, Preempted, Resumed, TokenSampled
from scheduler.fairness import FairnessSettings
from scheduler.policy import PolicyName, make_policy
from scheduler.request import State
from tests.scheduler.builders import LIST_A, LIST_B, LIST_C, make_limits, make_request, start, step

WAIT_S = 10.0
ROOMY = make_limits(num_slots=2, num_blocks=64, max_context=256)


def hogged(limits: SchedulerLimits = ROOMY, *, policy: PolicyName = "fair", num_prompt: int = 20) -> Scheduler:
    """All slots taken by long generations of LIST_A, since long enough."""
    fairness = FairnessSettings(max_wait_s=WAIT_S, slack_tokens=1e9)
    scheduler = Scheduler(limits, make_policy(policy, limits.num_slots, fairness))
    for i in range(limits.num_slots):
        start(make_request(i, (i,) * num_prompt, key=LIST_A, max_new_tokens=200), scheduler=scheduler)
    for _ in range(3):
        step(scheduler)
    scheduler.take_events()
    return scheduler


def of(events: list[Event], kind: type[Admitted | Paused | Resumed | Preempted | Finished]) -> list[int]:
    return [event.request_id for event in events if isinstance(event, kind)]


def test_a_list_that_waited_too_long_gets_the_seat_of_the_newest_admission() -> None:
    scheduler = hogged()
    scheduler.add(make_request(9, key=LIST_B), 0.0)
    step(scheduler, now=WAIT_S - 0.1)
    assert of(scheduler.take_events(), Paused) == []
    batches = [step(scheduler, now=WAIT_S) for _ in range(2)]
    events = scheduler.take_events()
    assert (of(events, Paused), of(events, Admitted)) == ([1], [9])
    assert [batch.key for batch in batches] == [LIST_A, LIST_B]


def test_nobody_is_paused_under_the_other_policies() -> None:
    policies: tuple[PolicyName, ...] = ("fcfs", "drain")
    for policy in policies:
        scheduler = hogged(policy=policy)
        scheduler.add(make_request(9, key=LIST_B), 0.0)
        step(scheduler, now=100 * WAIT_S)
        assert of(scheduler.take_events(), Paused) == []


def visited(limits: SchedulerLimits = ROOMY, *, num_prompt: int = 3) -> Scheduler:
    """Request 1 has just been paused for request 9."""
    scheduler = hogged(limits)
    scheduler.add(make_request(9, (9,) * num_prompt, key=LIST_B, max_new_tokens=3), 0.0)
    step(scheduler, now=WAIT_S)
    assert of(scheduler.take_events(), Paused) == [1]
    return scheduler


def test_a_paused_request_waits_and_keeps_its_blocks() -> None:
    scheduler = visited()
    request = scheduler.get(1)
    assert request is not None
    assert (request.state, request.slot_id, len(request.blocks)) == (State.PAUSED, None, 2)
    assert list(scheduler.queue) == [request]


def test_a_paused_request_goes_on_where_it_was() -> None:
    scheduler = visited()
    rows = [row for _ in range(8) for row in step(scheduler, now=WAIT_S + 4).rows if row.request_id == 1]
    assert (rows[0].start, rows[0].is_decode) == (22, True)
    events = scheduler.take_events()
    resumption = next(event for event in events if isinstance(event, Resumed))
    assert (resumption.request_id, resumption.queue_s) == (1, 4.0)
    assert of(events, Preempted) == []
    indices = [event.index for event in events if isinstance(event, TokenSampled) and event.request_id == 1]
    assert indices == list(range(3, 3 + len(indices)))


def test_time_between_tokens_spans_a_pause() -> None:
    scheduler = visited()
    for _ in range(8):
        step(scheduler, now=WAIT_S + 4)
    tokens = [event for event in scheduler.take_events() if isinstance(event, TokenSampled) and event.request_id == 1]
    assert tokens[0].gap_s == WAIT_S + 4


def test_a_paused_request_can_be_ended_and_gives_its_blocks_back() -> None:
    scheduler = visited()
    num_held = scheduler.kv.blocks.num_held
    scheduler.end(1, FinishReason.ABORT, WAIT_S)
    scheduler.validate()
    assert scheduler.kv.blocks.num_held == num_held - 2
    assert of(scheduler.take_events(), Finished) == [1]


TIGHT = make_limits(num_slots=2, num_blocks=8, max_context=128)


def test_who_is_seated_takes_the_blocks_of_the_paused_where_others_do_not_suffice() -> None:
    scheduler = visited(TIGHT, num_prompt=60)
    request = scheduler.get(1)
    assert request is not None
    assert (request.state, request.blocks) == (State.WAITING, [])


def test_a_request_whose_blocks_were_taken_is_computed_again() -> None:
    scheduler = visited(TIGHT, num_prompt=60)
    for _ in range(8):
        step(scheduler, now=WAIT_S)
    again = next(event for event in scheduler.take_events() if isinstance(event, Admitted) and event.request_id == 1)
    assert (again.is_first, again.num_tokens) == (False, 23)


def test_the_paused_lose_their_blocks_before_anyone_who_runs_does() -> None:
    scheduler = hogged(make_limits(num_slots=2, num_blocks=8, max_context=128), num_prompt=30)
    scheduler.add(make_request(9, (9,) * 30, key=LIST_B, max_new_tokens=90), 0.0)
    events: list[Event] = []
    while not of(events, Preempted):
        step(scheduler, now=WAIT_S)
        events += scheduler.take_events()
    assert (of(events, Paused), of(events, Preempted)) == ([1], [1])
    assert sorted(request.request_id for request in scheduler.running.values()) == [0, 9]


def test_of_the_paused_the_latest_loses_its_blocks_first() -> None:
    scheduler = hogged(make_limits(num_slots=3, num_blocks=12, max_context=128), num_prompt=30)
    scheduler.add(make_request(8, (8,) * 10, key=LIST_B, max_new_tokens=90), 0.0)
    step(scheduler, now=WAIT_S)
    scheduler.add(make_request(9, (9,) * 60, key=LIST_C, max_new_tokens=20), WAIT_S)
    step(scheduler, now=2 * WAIT_S)
    events = scheduler.take_events()
    assert of(events, Paused) == [2, 1]
    assert of(events, Preempted) == [1]


def test_a_list_that_needs_the_whole_pool_gets_it_from_long_generations() -> None:
    scheduler = hogged(make_limits(num_slots=4, num_blocks=16, max_context=256), num_prompt=30)
    scheduler.add(make_request(9, (9,) * 250, key=LIST_B), 0.0)
    num_steps = 0
    while not of(scheduler.take_events(), Admitted):
        num_steps += 1
        step(scheduler, now=WAIT_S)
    assert num_steps <= 4
    assert [request.request_id for request in scheduler.running.values()] == [9]


def test_a_resumed_request_leaves_the_others_room_to_grow() -> None:
    """Else it would be preempted at once, for it is the newest."""
    scheduler = visited(make_limits(num_slots=2, num_blocks=6, max_context=96))
    scheduler.end(9, FinishReason.ABORT, WAIT_S)
    blocks = scheduler.kv.blocks.allocate(scheduler.kv.blocks.num_available)
    assert blocks is not None
    scheduler.plan(WAIT_S)
    assert of(scheduler.take_events(), Resumed) == []
    scheduler.kv.blocks.release(blocks)


def test_a_request_that_is_to_be_resumed_does_not_lose_its_own_blocks_for_it() -> None:
    scheduler = visited(make_limits(num_slots=2, num_blocks=6, max_context=96))
    scheduler.end(9, FinishReason.ABORT, WAIT_S)
    spare = scheduler.kv.blocks.allocate(scheduler.kv.blocks.num_available)
    assert spare is not None
    scheduler.plan(WAIT_S)
    request = scheduler.get(1)
    assert request is not None
    assert (request.state, len(request.blocks)) == (State.PAUSED, 2)


def test_where_a_request_lacks_blocks_an_overdue_list_gets_the_free_slot_in_the_same_step() -> None:
    fairness = FairnessSettings(max_wait_s=WAIT_S, slack_tokens=1e9, max_active_lists=1)
    limits = make_limits(num_slots=2, num_blocks=8, max_context=128)
    scheduler = Scheduler(limits, make_policy("fair", limits.num_slots, fairness))
    for request_id in range(2):
        scheduler.add(make_request(request_id, key=LIST_A, max_new_tokens=60), 0.0)
    step(scheduler)
    scheduler.add(make_request(8, key=LIST_B), 0.0)
    scheduler.end(1, FinishReason.ABORT, WAIT_S)
    scheduler.add(make_request(9, (9,) * 120, key=LIST_A), WAIT_S)
    scheduler.take_events()
    step(scheduler, now=WAIT_S)
    events = scheduler.take_events()
    assert (of(events, Paused), of(events, Admitted)) == ([], [8])
