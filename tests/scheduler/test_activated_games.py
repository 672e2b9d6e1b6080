"""Games at random in which adapters act from positions of the prompt on: under every policy, with aborts, failures,
pauses and preemptions, each request gets the tokens it would get alone, and no running one is passed over."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.batch import BLOCK_SIZE, Batch
from scheduler.cohort import BASE, Activation, CohortKey, cohort_key
from scheduler.core import Scheduler, SchedulerLimits
from scheduler.errors import Refusal
from scheduler.events import Admitted, Event, Finished, FinishReason, Paused, Preempted, StepDone, TokenSampled
from scheduler.fairness import FairnessSettings
from scheduler.policy import PolicyName, make_policy
from scheduler.request import Request
from tests.scheduler.alone import answer_alone
from tests.scheduler.builders import LIST_A, LIST_B, PIRATE, PIRATE_AGAIN, SHOUT, make_request
from tests.scheduler.fake_model import FakeModel

KEYS = (BASE, LIST_A, LIST_B, cohort_key([(SHOUT, 1.0)]), cohort_key([(PIRATE_AGAIN, 1.0)]))
BEGINNINGS = ((1,) * 64, (1,) * 16 + (2,) * 48)
POLICIES: tuple[PolicyName, ...] = ("fair", "fcfs", "drain")


class Game:
    """A scheduler with a fake model; every transition is followed by checks."""

    def __init__(self, limits: SchedulerLimits, policy: PolicyName) -> None:
        self.limits = limits
        self.takes_turns = policy != "drain"
        fairness = FairnessSettings(max_wait_s=8.0, slack_tokens=60)
        self.scheduler = Scheduler(limits, make_policy(policy, limits.num_slots, fairness))
        self.model = FakeModel()
        self.requests: dict[int, Request] = {}
        self.outputs: dict[int, list[int]] = {}
        self.counts: Counter[str] = Counter()
        self._now = 0.0
        self._stands: dict[tuple[int, int], CohortKey] = {}
        """The cohort of each running request; one that is seated again is another."""
        self._passed: dict[tuple[int, int], set[CohortKey]] = {}
        """The other cohorts that had a turn since its cohort's last one, or since it joined."""
        self._bounds: dict[tuple[int, int], int] = {}

    def add(self, request: Request) -> None:
        self._now += 1.0
        try:
            self.scheduler.add(request, self._now)
        except Refusal:
            return
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []
        self.model.expect(request)
        self._observe()

    def end(self, request_id: int) -> None:
        self.scheduler.end(request_id, FinishReason.ABORT, self._now)
        self._observe()

    def plan(self) -> Batch | None:
        self._now += 1.0
        batch = self.scheduler.plan(self._now)
        self._observe()
        if batch is not None:
            self._check_batch(batch)
            self._turn(batch.key)
        return batch

    def land(self, *, fails: bool = False) -> None:
        batch = self.scheduler.in_flight
        assert batch is not None
        output = self.model.execute(batch)
        if fails:
            self.scheduler.fail("out of order", self._now)
        else:
            self.scheduler.commit(output, self._now)
        self._observe()

    def drain(self) -> None:
        if self.scheduler.in_flight is not None:
            self.land()
        num_steps = 10 * len(self.requests) * self.limits.max_context
        while self.plan() is not None:
            self.land()
            num_steps -= 1
            assert num_steps > 0, "no progress"
        assert self.scheduler.num_requests == len(self.scheduler.turns) == self.scheduler.kv.blocks.num_held == 0

    def _observe(self) -> None:
        self.scheduler.validate()
        for event in self.scheduler.take_events():
            self._see(event)
        self._follow_running()

    def _see(self, event: Event) -> None:
        match event:
            case TokenSampled():
                self.outputs[event.request_id].append(event.sample.token_id)
            case StepDone():
                assert event.num_lists == 1, "a step held two lists (I1)"
            case Admitted():
                self._count_hit(self.requests[event.request_id], event.num_cached)
            case Preempted() | Paused():
                activations = self.requests[event.request_id].activations
                self.counts[type(event).__name__] += bool(activations)
            case Finished():
                self._check_answer(event)

    def _count_hit(self, request: Request, num_cached: int) -> None:
        boundaries = [start for start, _ in request.activations if start]
        if boundaries and num_cached:
            self.counts["hit before the boundary"] += num_cached <= min(boundaries)
            self.counts["hit beyond the boundary"] += num_cached > max(boundaries)
            straddles = any(start % BLOCK_SIZE and start < num_cached for start in boundaries)
            self.counts["hit of a block with a boundary inside"] += straddles

    def _check_answer(self, event: Finished) -> None:
        output = self.outputs[event.request_id]
        alone, reason = answer_alone(self.requests[event.request_id], self.limits.max_context)
        if event.reason in (FinishReason.EOS, FinishReason.LIMIT):
            assert (output, event.reason) == (alone, reason), "another answer than alone (I9)"
            self.counts["complete answer"] += bool(self.requests[event.request_id].activations)
        else:
            assert output == alone[: len(output)], "another beginning than alone (I9)"

    def _check_batch(self, batch: Batch) -> None:
        """A prompt ends its chunk only at its boundary, at its end or with the budget; older ones come first."""
        wanted = {self.requests[row.request_id].key for row in batch.rows}
        self.counts["several lists in one step"] += len(wanted) > 1
        running = sorted(self.scheduler.running.values(), key=lambda request: request.admission_id)
        cohort = [request for request in running if request.key_now == batch.key]
        rows = {row.request_id: row for row in batch.rows}
        prompts = [request for request in cohort if not request.is_decoding]
        present = [request.request_id in rows for request in prompts]
        assert present == sorted(present, reverse=True), "a younger prompt went ahead"
        cut = [r for r in prompts if r.request_id in rows and rows[r.request_id].end < r.num_tokens]
        at_boundary = [r for r in cut if rows[r.request_id].end in {start for start, _ in r.activations}]
        self.counts["chunk up to a boundary"] += len(at_boundary)
        if not all(present) or len(at_boundary) < len(cut):
            assert batch.num_tokens == self.limits.max_step_tokens, "a prompt waits although the step has room"

    def _follow_running(self) -> None:
        running = {(r.request_id, r.admission_id): r.key_now for r in self.scheduler.running.values()}
        for seat, key in running.items():
            if self._stands.get(seat) != key:
                self.counts["change of cohort"] += seat in self._stands
                self._wait(seat, set(running.values()))
        self._stands = running

    def _turn(self, key: CohortKey) -> None:
        if not self.takes_turns:
            return
        for seat, own in self._stands.items():
            if own == key:
                self._wait(seat, set(self._stands.values()))
            else:
                assert key not in self._passed[seat], "a cohort had a second turn before one that waited longer (I8)"
                self._passed[seat].add(key)
                assert len(self._passed[seat]) <= self._bounds[seat]

    def _wait(self, seat: tuple[int, int], runnable: set[CohortKey]) -> None:
        self._passed[seat] = set()
        self._bounds[seat] = len(runnable) - 1


def random_request(choose: random.Random, request_id: int) -> Request:
    prompt = choose.choice(BEGINNINGS)[: choose.randint(1, 60)] + tuple(
        choose.choices(range(3), k=choose.randint(0, 3))
    )
    key = choose.choice(KEYS)
    boundaries = [0, 1, 15, 16, 17, 31, 32, 33, len(prompt) - 1, choose.randrange(64)]
    activations = tuple(
        Activation(choose.choice([start for start in boundaries if start < len(prompt)]), adapter)
        for adapter, _ in key
        if choose.random() < 0.8
    )
    return make_request(
        request_id,
        prompt,
        key=key,
        activations=activations,
        max_new_tokens=choose.choice([1, 3, 20, 40]),
        reuse_prefix=choose.random() < 0.9,
    )


def play(seed: int, num_moves: int) -> Game:
    choose = random.Random(seed)
    max_context = choose.choice([48, 70])
    num_slots = choose.randint(1, 5)
    num_blocks = -(-max_context // BLOCK_SIZE) + choose.randrange(10)
    limits = SchedulerLimits(num_slots, num_blocks, max_context, num_slots + choose.randrange(40), 6)
    game = Game(limits, POLICIES[seed % len(POLICIES)])
    for request_id in range(num_moves):
        if choose.random() < 0.3:
            game.add(random_request(choose, request_id))
        if game.requests and choose.random() < 0.03:
            game.end(choose.choice(list(game.requests)))
        if game.scheduler.in_flight is None:
            game.plan()
        else:
            game.land(fails=choose.random() < 0.01)
    game.drain()
    return game


def test_long_games_meet_every_rare_case() -> None:
    counts: Counter[str] = Counter()
    for seed in range(45):
        counts += play(seed, num_moves=300).counts
    rare = {
        "complete answer": 200,
        "change of cohort": 200,
        "chunk up to a boundary": 200,
        "several lists in one step": 50,
        "hit before the boundary": 50,
        "hit beyond the boundary": 20,
        "hit of a block with a boundary inside": 20,
        "Preempted": 20,
        "Paused": 20,
    }
    assert {name: counts[name] for name in rare if counts[name] < rare[name]} == {}, dict(counts)


@pytest.mark.slow
def test_very_long_games() -> None:
    for seed in range(2000, 2120):
        play(seed, num_moves=2000)


@st.composite
def requests(draw: st.DrawFn, request_id: int) -> Request:
    beginning = draw(st.sampled_from(BEGINNINGS))[: draw(st.integers(1, 50))]
    prompt = (*beginning, draw(st.integers(0, 2)))
    key = draw(st.sampled_from(KEYS))
    late = [adapter for adapter, _ in key if draw(st.booleans())]
    activations = tuple(Activation(draw(st.integers(0, len(prompt) - 1)), adapter) for adapter in late)
    return make_request(request_id, prompt, key=key, activations=activations, max_new_tokens=draw(st.integers(1, 20)))


@given(st.data(), st.sampled_from(POLICIES), st.integers(1, 4), st.integers(0, 20), st.integers(0, 5))
def test_any_few_requests_get_what_they_get_alone(
    data: st.DataObject, policy: PolicyName, num_slots: int, more_tokens: int, more_blocks: int
) -> None:
    game = Game(SchedulerLimits(num_slots, 5 + more_blocks, 80, num_slots + more_tokens, 6), policy)
    for request_id in range(data.draw(st.integers(1, 5))):
        game.add(data.draw(requests(request_id)))
        for _ in range(data.draw(st.integers(0, 6))):
            if game.plan() is not None:
                game.land()
    game.drain()


def test_the_adapters_of_the_games_are_three() -> None:
    """Two of one content, so that lists that differ may share blocks."""
    assert PIRATE.digest == PIRATE_AGAIN.digest != SHOUT.digest
