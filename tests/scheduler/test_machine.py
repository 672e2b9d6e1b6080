"""Property tests of the whole scheduler: any interleaving of requests, aborts, steps and failures keeps I1 … I12."""

import math
import random
import time
from collections import Counter

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduler.batch import BLOCK_SIZE, Pooling, SamplingParams
from scheduler.cohort import BASE, CohortKey
from scheduler.context_shift import ContextShift
from scheduler.core import SchedulerLimits
from scheduler.events import FinishReason
from scheduler.fairness import FairnessSettings
from scheduler.policy import POLICY_NAMES, PolicyName
from scheduler.request import Request
from tests.scheduler.builders import LIST_A, LIST_B, LIST_C, make_request
from tests.scheduler.fake_model import VOCABULARY_SIZE
from tests.scheduler.harness import Harness

KEYS = (BASE, LIST_A, LIST_B, LIST_C)
SHARED_BEGINNINGS = ((1,) * 64, (1,) * 16 + (2,) * 48, (2,) * 64, (2, 1) * 32)
SAMPLINGS = (
    SamplingParams(seed=0),
    SamplingParams(seed=1),
    SamplingParams(seed=2, repeat_penalty=1.5, repeat_last_n=5),
    SamplingParams(seed=3, presence_penalty=0.5, repeat_last_n=-1),
)
SHIFTS = (None, None, None, ContextShift(0, 0), ContextShift(5, 9), ContextShift(17, 1), ContextShift(100, 0))
EARLY_ENDS = (FinishReason.ABORT, FinishReason.WORD)


@st.composite
def small_limits(draw: st.DrawFn) -> SchedulerLimits:
    """Few blocks, so that preemption and eviction are common."""
    num_slots = draw(st.sampled_from([4, 3, 2, 1]))
    max_context = draw(st.sampled_from([33, 48, 70]))
    num_blocks = -(-max_context // BLOCK_SIZE) + draw(st.integers(0, 5))
    max_step_tokens = num_slots + draw(st.sampled_from([60, 17, 5, 1, 0]))
    return SchedulerLimits(num_slots, num_blocks, max_context, max_step_tokens, draw(st.integers(0, 6)))


@st.composite
def fairness(draw: st.DrawFn) -> FairnessSettings:
    """In steps and tokens so few that a game meets them."""
    return FairnessSettings(
        max_wait_s=draw(st.sampled_from([3.0, 0.0, 10.0, 40.0, math.inf])),
        slack_tokens=draw(st.sampled_from([10.0, 0.0, 50.0, 200.0])),
        max_active_lists=draw(st.sampled_from([0, 1, 2, 3])),
    )


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, ...]:
    """Beginnings that others share, cut around the edges of blocks, and short ends; empty and too long ones too."""
    cut = draw(st.sampled_from([0, 1, 14, 15, 16, 17, 31, 32, 33, 47, 64]))
    end = draw(st.lists(st.integers(0, 2), max_size=3))
    beginning: tuple[int, ...] = draw(st.sampled_from(SHARED_BEGINNINGS))
    return beginning[:cut] + tuple(end)


class SchedulerMachine(RuleBasedStateMachine):
    """Everything a caller may do, in any order; the harness checks after each."""

    requests = Bundle[int]("requests")

    def __init__(self) -> None:
        super().__init__()
        self.num_offered = 0
        self.harness: Harness | None = None

    @property
    def running(self) -> Harness:
        assert self.harness is not None
        return self.harness

    @property
    def is_in_flight(self) -> bool:
        return self.harness is not None and self.harness.scheduler.in_flight is not None

    @initialize(limits=small_limits(), policy=st.sampled_from(["fair", "fair", "fcfs", "drain"]), fairness=fairness())
    def start(self, limits: SchedulerLimits, policy: PolicyName, fairness: FairnessSettings) -> None:
        self.harness = Harness(limits, policy, fairness)

    @rule(
        target=requests,
        key=st.sampled_from(KEYS),
        beginning=st.sampled_from(SHARED_BEGINNINGS),
        cut=st.sampled_from([1, 15, 16, 17, 32]),
        max_new_tokens=st.integers(1, 40),
    )
    def add_plain(
        self, key: CohortKey, beginning: tuple[int, ...], cut: int, max_new_tokens: int
    ) -> int | MultipleResults[int]:
        return self.offer(make_request(self.num_offered, beginning[:cut], key=key, max_new_tokens=max_new_tokens))

    @rule(
        target=requests,
        key=st.sampled_from(KEYS),
        prompt=prompts(),
        sampling=st.sampled_from(SAMPLINGS),
        max_new_tokens=st.integers(1, 40),
        eog_ids=st.sampled_from([frozenset[int](), frozenset({VOCABULARY_SIZE - 1})]),
        slot_id_wanted=st.sampled_from([None, None, None, None, 0, 1, 4, -1]),
        reuse_prefix=st.sampled_from([True, True, False]),
        shift=st.sampled_from(SHIFTS),
    )
    def add_any(
        self,
        key: CohortKey,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        max_new_tokens: int,
        eog_ids: frozenset[int],
        slot_id_wanted: int | None,
        reuse_prefix: bool,
        shift: ContextShift | None,
    ) -> int | MultipleResults[int]:
        request = make_request(
            self.num_offered,
            prompt,
            key=key,
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            eog_ids=eog_ids,
            slot_id_wanted=slot_id_wanted,
            reuse_prefix=reuse_prefix,
            shift=shift,
        )
        return self.offer(request)

    @rule(
        target=requests,
        key=st.sampled_from(KEYS),
        prompt=prompts(),
        pooling=st.sampled_from(Pooling),
        slot_id_wanted=st.sampled_from([None, None, None, 1]),
    )
    def add_embedding(
        self, key: CohortKey, prompt: tuple[int, ...], pooling: Pooling, slot_id_wanted: int | None
    ) -> int | MultipleResults[int]:
        return self.offer(
            make_request(self.num_offered, prompt, key=key, pooling=pooling, slot_id_wanted=slot_id_wanted)
        )

    @rule(target=requests, key=st.sampled_from(KEYS), prompt=prompts(), max_new_tokens=st.integers(0, 20))
    def add_scored(self, key: CohortKey, prompt: tuple[int, ...], max_new_tokens: int) -> int | MultipleResults[int]:
        return self.offer(
            make_request(self.num_offered, prompt, key=key, max_new_tokens=max_new_tokens, prompt_logprobs=1)
        )

    def offer(self, request: Request) -> int | MultipleResults[int]:
        self.num_offered += 1
        return request.request_id if self.running.add(request) else multiple()

    @rule(request_id=requests, reason=st.sampled_from(EARLY_ENDS))
    def end(self, request_id: int, reason: FinishReason) -> None:
        self.running.end(request_id, reason)

    @rule(request_id=requests)
    def forget(self, request_id: int) -> None:
        self.running.forget(request_id)

    @precondition(lambda self: not self.is_in_flight)
    @rule(request_id=requests)
    def save(self, request_id: int) -> None:
        self.running.save(request_id)

    @precondition(lambda self: not self.is_in_flight)
    @rule()
    def restore(self) -> None:
        self.running.restore()

    @precondition(lambda self: not self.is_in_flight)
    @rule()
    def plan(self) -> None:
        self.running.plan()

    @precondition(lambda self: self.is_in_flight)
    @rule(outcome=st.sampled_from(["sound"] * 6 + ["faulty row", "failed"]))
    def land(self, outcome: str) -> None:
        if outcome == "failed":
            self.running.fail()
        else:
            self.running.commit(has_fault=outcome == "faulty row")

    @precondition(lambda self: not self.is_in_flight)
    @rule(count=st.integers(1, 40))
    def steps(self, count: int) -> None:
        for _ in range(count):
            if self.running.plan() is None:
                return
            self.running.commit()

    @invariant()
    def is_consistent(self) -> None:
        if self.harness is not None:
            self.harness.scheduler.validate()

    def teardown(self) -> None:
        if self.harness is not None:
            self.harness.drain()
            for name, count in sorted(self.harness.counts.items()):
                if count:
                    event(name)


def test_any_interleaving_keeps_every_invariant() -> None:
    run_state_machine_as_test(SchedulerMachine, settings=settings())


@pytest.mark.slow
def test_ten_minutes_of_random_search_find_no_failure() -> None:
    until_s = time.monotonic() + 600
    while time.monotonic() < until_s:
        run_state_machine_as_test(SchedulerMachine, settings=settings(settings.get_profile("long"), max_examples=200))


def play(seed: int, num_moves: int, policy: PolicyName) -> Harness:
    """A random game of the same moves under steady load: longer than Hypothesis would write it."""
    choose = random.Random(seed)
    max_context = choose.choice([33, 48, 70])
    num_blocks = -(-max_context // BLOCK_SIZE) + choose.randrange(8)
    num_slots = choose.randint(1, 5)
    if choose.random() < 0.3:
        num_blocks = num_slots * -(-max_context // BLOCK_SIZE)
    limits = SchedulerLimits(num_slots, num_blocks, max_context, num_slots + choose.randrange(30), 6)
    fairness = FairnessSettings(
        max_wait_s=choose.choice([0.0, 2.0, 5.0, 20.0, 60.0, math.inf]),
        slack_tokens=choose.choice([0.0, 10.0, 40.0, 100.0]),
        max_active_lists=choose.randrange(4),
    )
    weights = {LIST_A: choose.choice([0.5, 1.0, 3.0])}
    harness = Harness(limits, policy, fairness, lambda key: weights.get(key, 1.0))
    for request_id in range(num_moves):
        if choose.random() < 0.3:
            beginning = choose.choice(SHARED_BEGINNINGS)[: choose.choice([0, 15, 16, 17, 32, 33])]
            request = make_request(
                request_id,
                beginning + tuple(choose.choices(range(3), k=choose.randint(0, 3))),
                key=choose.choice(KEYS),
                sampling=choose.choice(SAMPLINGS),
                max_new_tokens=choose.randint(1, 60),
                eog_ids=frozenset(choose.choice([()] * 4 + [(VOCABULARY_SIZE - 1,)])),
                slot_id_wanted=choose.choice([None] * 9 + [0, 1, 9]),
                reuse_prefix=choose.random() < 0.9,
                shift=choose.choice(SHIFTS),
                prompt_logprobs=choose.choice([None] * 9 + [1]),
            )
            harness.add(request)
        if harness.requests and choose.random() < 0.03:
            harness.end(choose.choice(list(harness.requests)), choose.choice(EARLY_ENDS))
        if harness.requests and choose.random() < 0.02:
            harness.forget(choose.choice(list(harness.requests)))
        if harness.scheduler.in_flight is None:
            if harness.requests and choose.random() < 0.05:
                harness.save(choose.choice(list(harness.requests)))
            if choose.random() < 0.2:
                harness.restore()
            harness.plan()
        elif choose.random() < 0.01:
            harness.fail()
        else:
            harness.commit(has_fault=choose.random() < 0.01)
    harness.drain()
    return harness


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_long_games_on_small_pools_keep_every_invariant_and_meet_every_rare_case(policy: PolicyName) -> None:
    counts: Counter[str] = Counter()
    longest_wait = 0
    for seed in range(40):
        harness = play(seed, num_moves=400, policy=policy)
        counts += harness.counts
        longest_wait = max(longest_wait, harness.turns.longest_wait)
    rare = {
        "preemption": 5,
        "evicted block": 100,
        "shared block": 100,
        "prefix hit": 100,
        "hit after preemption": 5,
        "wait for blocks": 20,
        "several cohorts": 500,
        "chunked prompt": 50,
        "decode and prefill in one step": 20,
        "forgotten token": 500,
        "shift": 50,
        "restored block": 10,
        "failed step": 10,
        "faulty row": 10,
        "QueueFull": 20,
        "PromptEmpty": 5,
        "PromptTooLong": 1,
        "SlotUnknown": 20,
        "eos": 20,
        "word": 20,
        "limit": 100,
        "scored prompt": 20,
        "abort": 20,
        "error": 10,
    }
    rare |= {"pause": 100, "resumption": 50, "reclaimed pause": 20} if policy == "fair" else {"overtaking": 5}
    assert {name: counts[name] for name in rare if counts[name] < rare[name]} == {}, dict(counts)
    assert policy == "drain" or longest_wait == 3, "four runnable cohorts must have met"


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_very_long_games_keep_every_invariant(policy: PolicyName) -> None:
    for seed in range(1000, 1100):
        play(seed, 2000, policy)
