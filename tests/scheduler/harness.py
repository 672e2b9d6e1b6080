"""A scheduler under observation: every transition is followed by every check that docs/scheduling.md promises.

I1 … I7 through `Scheduler.validate`, and again from outside where that is possible; I8 through `TurnWatch`; I9 by the
fake model's KV and by running each finished request once more, alone; I10 … I12 through `ListWatch`. The observer draws
its conclusions from events and batches, so that a scheduler which deceives itself is found out."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler.batch import BLOCK_SIZE, Batch, Pooling, RowFault
from scheduler.cohort import CohortKey, cache_seed
from scheduler.core import Scheduler, SchedulerLimits
from scheduler.errors import PromptEmpty, PromptTooLong, QueueFull, Refusal, SlotUnknown
from scheduler.events import (
    Admitted,
    Event,
    Finished,
    FinishReason,
    Paused,
    Preempted,
    Resumed,
    Shifted,
    StepDone,
    TokenSampled,
)
from scheduler.fairness import DEFAULT_FAIRNESS, FairnessSettings
from scheduler.kv_space import block_content, blocks_for, num_to_grow
from scheduler.policy import PolicyName, make_policy
from scheduler.request import Request, State
from tests.scheduler.alone import answer_alone
from tests.scheduler.fake_model import Cell, FakeModel
from tests.scheduler.list_watch import Bounds, ListWatch
from tests.scheduler.turn_watch import TurnWatch


class Harness:
    """Adds, ends, plans, commits and fails on a real scheduler with a fake model, and checks everything each time."""

    def __init__(
        self,
        limits: SchedulerLimits,
        policy: PolicyName = "fcfs",
        fairness: FairnessSettings = DEFAULT_FAIRNESS,
        weight_of: Callable[[CohortKey], float] = lambda key: 1.0,
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.scheduler = Scheduler(limits, make_policy(policy, limits.num_slots, fairness, weight_of))
        self.model = FakeModel()
        self.turns = TurnWatch()
        self.lists = ListWatch(Bounds(limits, fairness), weight_of)
        self.counts: Counter[str] = Counter()
        """How often the rare things happened, for tests that must know that they did."""
        self.requests: dict[int, Request] = {}
        """Every accepted request, by id: in order of arrival."""
        self.outputs: dict[int, list[int]] = {}
        self.finished: dict[int, Finished] = {}
        self._running: list[int] = []
        """In order of admission."""
        self._preempted: list[int] = []
        """Waiting after a preemption, in the order in which they are to come back under `fcfs`."""
        self._paused: list[int] = []
        """Waiting with their KV, in the order in which they were paused."""
        self._admitted: set[int] = set()
        self._saved: tuple[Request, list[list[Cell]]] | None = None
        self._now = 0.0

    # What a caller can do.

    def add(self, request: Request) -> bool:
        """Offer a request; whether it was accepted."""
        expected, before = self._expected_refusal(request), self._snapshot()
        if expected is not None:
            with pytest.raises(expected):
                self.scheduler.add(request, self._now)
            assert self._snapshot() == before, "a refusal changed something"
            self.counts[expected.__name__] += 1
            return False
        self.scheduler.add(request, self._now)
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []
        self.model.expect(request)
        self.lists.arrive(request, self._now)
        self._observe()
        return True

    def end(self, request_id: int, reason: FinishReason) -> None:
        """End a request that may be waiting, running, in flight or finished."""
        before = self._snapshot() if request_id in self.finished else None
        self.scheduler.end(request_id, reason, self._now)
        assert before is None or self._snapshot() == before, "ending a finished request changed something"
        self._observe()
        assert request_id in self.finished

    def forget(self, request_id: int) -> None:
        """Erase what others may find of a request that may be anywhere."""
        self.counts["forgotten token"] += self.scheduler.kv.forget(self.requests[request_id])

    def save(self, request_id: int) -> None:
        """Keep what can be found of a request, between two steps."""
        request = self.requests[request_id]
        block_ids = self.scheduler.kv.find(request)
        self._saved = request.beginning(len(block_ids) * BLOCK_SIZE), self.model.read(block_ids)

    def restore(self) -> None:
        """Put back what was kept last, between two steps."""
        if self._saved is not None:
            request, contents = self._saved
            placed = self.scheduler.kv.adopt(request, 0, len(contents))
            if placed is not None:
                self.model.write(placed[1], contents[placed[0] :])
                self.counts["restored block"] += len(placed[1])

    def plan(self) -> Batch | None:
        """Begin a step. Time passes here: a second for each."""
        cached = self._cached_blocks()
        self._now += 1.0
        batch = self.scheduler.plan(self._now)
        events = self._observe()
        self.counts["evicted block"] += len(cached - self._cached_blocks())
        if batch is None:
            assert self.scheduler.num_requests == 0, "nothing runs although requests are there"
            return None
        if self.policy != "drain":
            self.turns.turn(batch.key)
        if self.policy == "fair":
            self.lists.planned(self._now)
        self._check_batch(batch)
        if not any(isinstance(event, Preempted) for event in events):
            self._check_no_slot_idles()
        self.counts["several cohorts"] += self.turns.num_runnable > 1
        return batch

    def commit(self, *, has_fault: bool = False) -> None:
        """Compute the step in flight, as late as possible, and commit it; perhaps with a fault in its last row."""
        batch = self.scheduler.in_flight
        assert batch is not None
        output = self.model.execute(batch)
        samples = output.samples
        faults = [RowFault(sample.request_id, "no token") for sample in samples[-1:] if has_fault]
        harmed = {fault.request_id for fault in faults} - self.finished.keys()
        ended = set(self.finished)
        outcomes = (*samples[: len(samples) - len(faults)], *faults)
        self.scheduler.commit(replace(output, samples=outcomes), self._now)
        self._observe()
        if self.policy == "fair":
            self.lists.computed(batch, self.requests)
        failed = {other for other in self.finished.keys() - ended if self.finished[other].reason is FinishReason.ERROR}
        assert failed == harmed, "a fault in one row must end its own request and no other"
        self.counts["faulty row"] += len(harmed)

    def fail(self) -> None:
        """Let the step in flight fail after it has written everything."""
        batch = self.scheduler.in_flight
        assert batch is not None
        self.model.execute(batch)
        alive = {row.request_id for row in batch.rows} - self.finished.keys()
        others = self.requests.keys() - self.finished.keys() - alive
        self.scheduler.fail("out of order", self._now)
        self._observe()
        assert all(self.finished[request_id].reason is FinishReason.ERROR for request_id in alive)
        assert not others & self.finished.keys(), "a failing step ended a request that was not in it"
        self.counts["failed step"] += 1

    def drain(self) -> None:
        """Run until every request has finished, within the bound of docs/scheduling.md, and check what is left."""
        if self.scheduler.in_flight is not None:
            self.commit()
        alive = [request for request in self.requests.values() if request.request_id not in self.finished]
        num_steps_left = len(alive) * self.limits.max_context * self._num_steps_to_token(alive)
        while self.plan() is not None:
            self.commit()
            num_steps_left -= 1
            assert num_steps_left >= 0, "no progress"
        self._check_empty()

    # What must hold.

    def _num_steps_to_token(self, alive: list[Request]) -> int:
        """Steps in which some request has sampled or finished."""
        if self.policy == "fcfs":
            return len({request.key for request in alive})
        return self.limits.num_slots * (self.limits.num_slots + self.lists.bounds.num_prefill_turns)

    def _observe(self) -> list[Event]:
        self.scheduler.validate()
        events = self.scheduler.take_events()
        for event in events:
            self._check_event(event)
            self.turns.see(event)
            if self.policy != "drain":
                self.lists.see(event, None if isinstance(event, StepDone) else self.requests[event.request_id])
        shared = range(self.limits.num_blocks)
        self.counts["shared block"] += any(self.scheduler.kv.blocks.num_references(block) > 1 for block in shared)
        return events

    def _check_event(self, event: Event) -> None:
        if not isinstance(event, StepDone):
            assert event.request_id not in self.finished, "an event after Finished"
            assert event.key == self.requests[event.request_id].key
        if isinstance(event, Admitted):
            self._check_admission(event)
        elif isinstance(event, TokenSampled):
            assert event.index == len(self.outputs[event.request_id])
            self.outputs[event.request_id].append(event.sample.token_id)
        elif isinstance(event, Paused):
            assert self.policy == "fair"
            self._running.remove(event.request_id)
            self._paused.append(event.request_id)
            self.counts["pause"] += 1
        elif isinstance(event, Resumed):
            self._paused.remove(event.request_id)
            self._begin_running(event)
            self.counts["resumption"] += 1
        elif isinstance(event, Preempted):
            self._check_preemption(event.request_id)
        elif isinstance(event, Shifted):
            self._running.remove(event.request_id)
            self._preempted.insert(0, event.request_id)
            self.counts["shift"] += 1
        elif isinstance(event, Finished):
            self._check_finish(event)
        elif isinstance(event, StepDone):
            assert event.num_lists == 1, "a step held two lists (I1)"

    def _check_preemption(self, request_id: int) -> None:
        """The blocks of paused requests go first, then the newest admission is preempted; the oldest never is."""
        if request_id in self._paused:
            later = self._paused[self._paused.index(request_id) + 1 :]
            assert len(later) <= 1, "another than the latest paused lost its blocks, and not to one that is seated"
            self._paused.remove(request_id)
            self.counts["reclaimed pause"] += 1
        else:
            assert not self._paused, "a running request was preempted although a paused one held blocks"
            assert self._running.pop() == request_id, "another than the newest admission was preempted"
            assert self._running, "the oldest admission was preempted"
            self.counts["preemption"] += 1
        self._preempted.insert(0, request_id)

    def _check_admission(self, event: Admitted) -> None:
        if self.policy != "fair":
            self._check_arrival_order(event)
        assert event.is_first == (event.request_id not in self._admitted)
        self._admitted.add(event.request_id)
        self.counts["prefix hit"] += event.num_cached > 0
        self.counts["hit after preemption"] += event.num_cached > 0 and event.request_id in self._preempted
        self._forget_preemption(event.request_id)
        self._begin_running(event)

    def _check_arrival_order(self, event: Admitted) -> None:
        """First come first served; preempted before new; only who names a slot may be overtaken."""
        overtaken = [self.requests[other] for other in self._ahead_of(event.request_id)]
        assert all(request.slot_id_wanted is not None for request in overtaken), "overtaken without reason"
        self.counts["overtaking"] += len(overtaken)

    def _begin_running(self, event: Admitted | Resumed) -> None:
        wanted = self.requests[event.request_id].slot_id_wanted
        assert wanted is None or wanted == event.slot_id
        self._running.append(event.request_id)
        assert len(self._running) <= self.limits.num_slots

    def _ahead_of(self, request_id: int) -> list[int]:
        """Requests that wait and come before this one."""
        if request_id in self._preempted:
            return self._preempted[: self._preempted.index(request_id)]
        waiting = self.requests.keys() - self.finished.keys() - set(self._running)
        return self._preempted + [other for other in waiting - self._admitted if other < request_id]

    def _forget_preemption(self, request_id: int) -> None:
        if request_id in self._preempted:
            self._preempted.remove(request_id)

    def _check_finish(self, event: Finished) -> None:
        request = self.requests[event.request_id]
        self.finished[event.request_id] = event
        self._forget_preemption(event.request_id)
        for among in (self._running, self._paused):
            if event.request_id in among:
                among.remove(event.request_id)
        assert request.state is State.FINISHED
        assert not request.blocks
        output = self.outputs[event.request_id]
        assert event.num_generated == len(output)
        self.counts[event.reason.value] += 1
        if request.pooling is not None:
            self._check_embedding(request, event)
            return
        self._check_scores(request, event)
        alone, reason = answer_alone(request, self.limits.max_context)
        if event.reason in (FinishReason.EOS, FinishReason.LIMIT):
            assert (output, event.reason) == (alone, reason), "another answer than alone (I9)"
        else:
            assert output == alone[: len(output)], "another beginning than alone (I9)"

    def _check_embedding(self, request: Request, event: Finished) -> None:
        assert event.num_generated == 0
        if event.reason is FinishReason.EMBEDDED:
            assert request.pooled == self.model.embedding(request), "another embedding than alone (I9)"
            assert event.num_cached == 0 or request.pooling is Pooling.LAST
            self.counts["cached start of an embedding"] += event.num_cached > 0
        else:
            assert event.reason not in (FinishReason.EOS, FinishReason.LIMIT)

    def _check_scores(self, request: Request, event: Finished) -> None:
        scores = () if request.prompt_logprobs is None else self.model.scores(request)
        assert request.prompt_scores == list(scores[: len(request.prompt_scores)]), "other scores than alone (I9)"
        if event.reason in (FinishReason.EOS, FinishReason.LIMIT):
            assert len(request.prompt_scores) == len(scores)
            self.counts["scored prompt"] += bool(scores)

    def _check_batch(self, batch: Batch) -> None:
        """The step serves its whole cohort: all that decode, then prompts, oldest first, as far as the budget goes."""
        decoding: list[int] = []
        prefilling: list[int] = []
        for request_id in self._running:
            request = self.requests[request_id]
            if request.key == batch.key:
                (decoding if request.is_decoding else prefilling).append(request_id)
        rows = [row.request_id for row in batch.rows]
        num_chunks = len(rows) - len(decoding)
        assert rows == decoding + prefilling[:num_chunks]
        assert [row.is_decode for row in batch.rows] == [True] * len(decoding) + [False] * num_chunks
        ends = [row.end == self.requests[row.request_id].num_tokens for row in batch.rows]
        unfinished = [other for other, ends_here in zip(rows, ends, strict=True) if not ends_here]
        unfinished += prefilling[num_chunks:]
        if unfinished:
            assert batch.num_tokens == self.limits.max_step_tokens, "a prompt waits although the step has room"
            assert all(ends[:-1]), "a younger prompt went ahead"
        assert batch.num_tokens <= self.limits.max_step_tokens
        self.counts["decode and prefill in one step"] += bool(decoding) and num_chunks > 0
        self.counts["chunked prompt"] += bool(unfinished)

    def _check_no_slot_idles(self) -> None:
        """Nobody waits for whom there are a slot and blocks."""
        scheduler = self.scheduler
        if len(scheduler.running) == self.limits.num_slots:
            return
        candidates = [waiting for waiting in scheduler.queue if waiting.slot_id_wanted not in scheduler.running]
        first = scheduler.queue.first(self._now, lambda waiting: waiting.slot_id_wanted not in scheduler.running)
        assert (first is None) == (not candidates)
        if first is not None:
            assert not self._blocks_fit(first), "a slot idles although the first in the queue fits"
            self.counts["wait for blocks"] += 1

    def _blocks_fit(self, request: Request) -> bool:
        """Whether blocks suffice for it and for what the running ones grow by until it has sampled."""
        running = self.scheduler.running.values()
        num_left = sum(other.num_uncomputed for other in running if not other.is_decoding) + request.num_uncomputed
        num_turns = -(-num_left // (self.limits.max_step_tokens - self.limits.num_slots + 1)) + len(request.activations)
        spare = num_to_grow(running, num_turns, self.limits.max_context)
        num_reclaimable = sum(len(self.requests[other].blocks) for other in self._paused if other != request.request_id)
        return self._num_available_for(request) + num_reclaimable >= spare

    def _num_available_for(self, request: Request) -> int:
        """Blocks that would be left if it was seated now; negative where they do not suffice."""
        blocks = self.scheduler.kv.blocks
        if request.blocks:
            return blocks.num_available - blocks_for(request.num_tokens) + len(request.blocks)
        num_full = (request.num_tokens - 1) // BLOCK_SIZE if request.can_reuse_prefix else 0
        content = (block_content(request, i) for i in range(num_full))
        hits = self.scheduler.kv.cache.match(cache_seed(request.key_at(0)), content)
        num_idle_hits = sum(blocks.is_idle(node.block_id) for node in hits)
        return blocks.num_available - num_idle_hits - blocks_for(request.num_tokens) + len(hits)

    def _check_empty(self) -> None:
        """I7: every accepted request has finished. I3: nothing holds a block any more."""
        assert self.finished.keys() == self.requests.keys()
        assert self.scheduler.num_requests == len(self.scheduler.running) == len(self.scheduler.queue) == 0
        assert len(self.scheduler.turns) == self.turns.num_runnable == len(self.scheduler.paused) == 0
        assert self.scheduler.kv.blocks.num_held == 0
        assert self.scheduler.kv.blocks.num_available == self.limits.num_blocks

    def _expected_refusal(self, request: Request) -> type[Refusal] | None:
        num_alive = len(self.requests) - len(self.finished)
        if not request.prompt:
            return PromptEmpty
        if len(request.prompt) >= self.limits.max_context:
            return PromptTooLong
        if request.slot_id_wanted is not None and not 0 <= request.slot_id_wanted < self.limits.num_slots:
            return SlotUnknown
        return QueueFull if num_alive >= self.limits.max_waiting + self.limits.num_slots else None

    def _cached_blocks(self) -> set[int]:
        return {block for block in range(self.limits.num_blocks) if block in self.scheduler.kv.cache}

    def _snapshot(self) -> tuple[object, ...]:
        scheduler, blocks = self.scheduler, range(self.limits.num_blocks)
        return (
            {slot_id: request.request_id for slot_id, request in scheduler.running.items()},
            [request.request_id for request in scheduler.queue],
            [(key, [request.request_id for request in scheduler.turns.members(key)]) for key in scheduler.turns],
            [(scheduler.kv.blocks.num_references(block), scheduler.kv.blocks.is_idle(block)) for block in blocks],
            self._cached_blocks(),
            scheduler.in_flight,
            scheduler.num_requests,
        )
