"""The bounds of docs/scheduling.md are not idle: for each a worst case that comes within a factor of two of it.

`ListWatch` asserts the bounds at every step here too."""

import math

from scheduler.batch import Batch, Row
from scheduler.cohort import CohortKey, cohort_key
from scheduler.core import Scheduler, SchedulerLimits
from scheduler.events import StepDone
from scheduler.fairness import FairnessSettings
from scheduler.policy import make_policy
from scheduler.request import Request
from tests.scheduler.builders import LIST_A, LIST_B, PIRATE, answer, make_request
from tests.scheduler.list_watch import Bounds, ListWatch


def list_of(number: int) -> CohortKey:
    return cohort_key([(PIRATE, 1.0 + number)])


class Play:
    """A scheduler under `fair` with a clock that ticks once a step, and the watch over it."""

    def __init__(self, limits: SchedulerLimits, fairness: FairnessSettings) -> None:
        self.scheduler = Scheduler(limits, make_policy("fair", limits.num_slots, fairness))
        self.bounds = Bounds(limits, fairness)
        self.watch = ListWatch(self.bounds)
        self.requests: dict[int, Request] = {}
        self.now = 0.0

    def add(self, key: CohortKey, num_prompt: int, num_output: int) -> None:
        """Offer a request whose prompt has nothing in common with others."""
        request_id = len(self.requests)
        request = make_request(request_id, (request_id + 1,) * num_prompt, key=key, max_new_tokens=num_output)
        self.requests[request_id] = request
        self.scheduler.add(request, self.now)
        self.watch.arrive(request, self.now)

    def step(self) -> Batch:
        batch = self.scheduler.plan(self.now)
        assert batch is not None
        self._observe()
        self.watch.planned(self.now)
        self.now += 1.0
        self.scheduler.commit(answer(batch), self.now)
        self._observe()
        self.watch.computed(batch, self.requests)
        return batch

    def _observe(self) -> None:
        for event in self.scheduler.take_events():
            self.watch.see(event, None if isinstance(event, StepDone) else self.requests[event.request_id])


def test_the_last_of_many_lists_waits_about_as_long_as_it_may() -> None:
    """I10: ten lists with generations without end on four slots, two of them active at a time."""
    limits = SchedulerLimits(num_slots=4, num_blocks=1024, max_context=4096, max_step_tokens=4096, max_waiting=99)
    play = Play(limits, FairnessSettings(max_wait_s=200.0))
    for number in range(11):
        for _ in range(2):
            play.add(list_of(number), 2, 4000)
        play.watch.planned(play.now)
        if number == 1:
            play.step()
    last = list_of(10)
    while play.step().key != last:
        pass
    assert play.bounds.num_at_a_time == 2
    assert play.watch.longest_wait_s >= play.bounds.wait_s(num_ahead=8) / 2


def test_lists_that_each_need_the_whole_pool_take_their_turns_one_at_a_time() -> None:
    """I10 under the worst KV pressure: each seat costs the list before its KV."""
    limits = SchedulerLimits(num_slots=2, num_blocks=32, max_context=512, max_step_tokens=512, max_waiting=99)
    play = Play(limits, FairnessSettings(max_wait_s=60.0))
    for number in range(7):
        play.add(list_of(number), 380, 132)
    last = list_of(6)
    while play.step().key != last:
        pass
    assert play.bounds.num_at_a_time == 1
    assert play.watch.longest_wait_s >= play.bounds.wait_s(num_ahead=5) / 2


def test_computing_lost_kv_again_takes_up_to_half_of_the_time_and_no_more() -> None:
    """I12: two lists that each need nearly the whole pool, and prompts that take long against `max_wait_s`."""
    limits = SchedulerLimits(num_slots=2, num_blocks=32, max_context=512, max_step_tokens=17, max_waiting=99)
    play = Play(limits, FairnessSettings(max_wait_s=2.0))
    for number in range(2):
        play.add(list_of(number), 300, 200)
    rows: list[Row] = []
    while play.scheduler.num_requests:
        rows += play.step().rows
    num_decode = sum(row.is_decode for row in rows)
    num_again = len(rows) - num_decode - 2 * math.ceil(300 / 17)
    assert num_decode / 2 <= num_again <= num_decode


def test_service_drifts_apart_about_as_far_as_it_may() -> None:
    """I11: both lists wait all the time; first one, then the other computes prompts that fill the context."""
    limits = SchedulerLimits(num_slots=2, num_blocks=64, max_context=512, max_step_tokens=256, max_waiting=99)
    play = Play(limits, FairnessSettings(max_wait_s=math.inf, slack_tokens=10))
    for key in (LIST_A, LIST_B):
        for _ in range(5):
            play.add(key, 511, 1)
    for _ in range(12):
        play.step()
    assert play.watch.widest_gap >= 2 * play.bounds.lead() / 2  # twice: each was ahead once
