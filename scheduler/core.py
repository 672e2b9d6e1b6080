"""The scheduler: a state machine from requests to batches. It is called and never calls out; time comes in as an
argument.

The cycle: `plan` chooses the cohort whose turn it is, its rows and their blocks; the model computes; `commit` takes the
tokens (`fail`, where the model could not). `add` and `end` may come at any time, between `plan` and `commit` too, for
what a step in flight reads is its own copy, and blocks freed meanwhile are given out by the next `plan` at the
earliest. What happened is kept as events until `take_events`. Invariants I1 … I9: docs/scheduling.md; `validate` checks
them."""

from dataclasses import dataclass

from scheduler.batch import BLOCK_SIZE, Batch, Row, RowFault, Sample, StepOutput
from scheduler.blocks import BlockPool
from scheduler.cohort import CohortKey, cache_seed
from scheduler.errors import PromptEmpty, PromptTooLong, QueueFull, SlotUnknown
from scheduler.events import Admitted, Event, Finished, FinishReason, Preempted, StepDone, TokenSampled
from scheduler.fairness import AdmissionQueue, TurnOrder
from scheduler.prefix_cache import PrefixCache, PrefixNode
from scheduler.request import Request, State


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The bounds within which the scheduler works. Raises ValueError where they contradict each other."""

    num_slots: int
    """Requests that run at once."""
    num_blocks: int
    """KV blocks of BLOCK_SIZE tokens."""
    max_context: int
    """Tokens of one request, prompt and output together."""
    max_step_tokens: int
    """Tokens computed in one step: bounds how long a step, and so everybody's inter-token latency, can get."""
    max_waiting: int
    """Requests that may wait beyond those for which a slot is free."""

    def __post_init__(self) -> None:
        if self.num_slots < 1:
            raise ValueError(f"{self.num_slots} slots, at least 1 is needed")
        if self.max_context < 2:
            raise ValueError(f"a context of {self.max_context} tokens, at least 2 are needed")
        if self.max_step_tokens < self.num_slots:
            raise ValueError(f"a step of {self.max_step_tokens} tokens cannot advance {self.num_slots} slots")
        if self.max_context > self.num_blocks * BLOCK_SIZE:
            raise ValueError(f"{self.num_blocks} KV blocks cannot hold a context of {self.max_context} tokens")
        if self.max_waiting < 0:
            raise ValueError(f"a queue of {self.max_waiting} requests, at least 0 is needed")


class Scheduler:
    """Requests in, batches out. One caller owns it; nothing here is thread-safe."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.prefix_cache = PrefixCache()
        self.blocks = BlockPool(limits.num_blocks, self.prefix_cache)
        self.queue = AdmissionQueue()
        self.turns = TurnOrder()
        self.running: dict[int, Request] = {}
        """Slot id → the request in it."""
        self.in_flight: Batch | None = None
        self._lists_in_flight = 0
        self._requests: dict[int, Request] = {}
        self._events: list[Event] = []
        self._planned_s = 0.0
        self._num_steps = 0
        self._num_admissions = 0
        self._last_key: CohortKey | None = None
        self._num_cohorts = 0

    # The door.

    def add(self, request: Request, now: float) -> None:
        """Accept a request. Raises a `Refusal`, and changes nothing, where it cannot be served or the queue is full."""
        assert request.request_id not in self._requests, f"request id {request.request_id} is in use"
        assert request.max_new_tokens >= 1
        if not request.prompt:
            raise PromptEmpty
        if len(request.prompt) >= self.limits.max_context:
            raise PromptTooLong(len(request.prompt), self.limits.max_context)
        if request.slot_id_wanted is not None and not 0 <= request.slot_id_wanted < self.limits.num_slots:
            raise SlotUnknown(request.slot_id_wanted, self.limits.num_slots)
        num_free_slots = self.limits.num_slots - len(self.running)
        if len(self.queue) >= self.limits.max_waiting + num_free_slots:
            raise QueueFull(len(self.queue), self.limits.max_waiting)
        request.arrived_s = request.queued_s = now
        self._requests[request.request_id] = request
        self.queue.push(request)

    def end(self, request_id: int, reason: FinishReason, now: float, message: str = "") -> None:
        """End a request early, waiting or running. One that has ended already, or was never accepted, is left alone."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, reason, now, message)

    def take_events(self) -> list[Event]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    @property
    def num_requests(self) -> int:
        """Accepted requests that have not finished."""
        return len(self._requests)

    def get(self, request_id: int) -> Request | None:
        """Return an accepted, unfinished request."""
        return self._requests.get(request_id)

    # The cycle.

    def plan(self, now: float) -> Batch | None:
        """Choose the next step, or return None where nothing is runnable.

        The first cohort in turn order gets it: one row for each of its decoding requests, then chunks of its prompts,
        oldest admission first, up to `max_step_tokens` tokens."""
        assert self.in_flight is None, "plan before the step in flight was committed"
        self._admit(now)
        self._num_cohorts = len(self.turns)
        for key in tuple(self.turns):
            rows = self._decode_rows(key, now)
            rows += self._prefill_rows(key, self.limits.max_step_tokens - len(rows))
            if rows:
                self.turns.end_turn(key)
                self.in_flight = Batch(self._num_steps, key, tuple(rows))
                self._num_steps += 1
                self._planned_s = now
                self._lists_in_flight = len({self._requests[row.request_id].key for row in rows})
                return self.in_flight
        return None

    def commit(self, output: StepOutput, now: float) -> None:
        """Take the result of the step in flight: advance its requests, and finish those that are done."""
        batch = self._land(now)
        num_wanted = sum(row.sampling is not None for row in batch.rows)
        assert len(output.samples) == num_wanted, f"{len(output.samples)} samples for {num_wanted} rows that sample"
        samples = iter(output.samples)
        for row in batch.rows:
            sample = next(samples) if row.sampling is not None else None
            request = self._requests.get(row.request_id)
            if isinstance(sample, RowFault):
                self.end(row.request_id, FinishReason.ERROR, now, sample.message)
            elif request is not None:
                self._advance(request, row, sample, now)

    def fail(self, message: str, now: float) -> None:
        """End the requests of the step in flight, which could not be computed, and no other."""
        batch = self._land(now)
        for row in batch.rows:
            self.end(row.request_id, FinishReason.ERROR, now, message)

    def validate(self) -> None:
        """Check every invariant. For tests: takes time in proportion to everything the scheduler holds."""
        from scheduler.invariants import check

        check(self)

    # Admission.

    def _admit(self, now: float) -> None:
        while len(self.running) < self.limits.num_slots:
            request = self.queue.first(lambda candidate: candidate.slot_id_wanted not in self.running)
            if request is None or not self._give_blocks(request):
                return
            self.queue.remove(request)
            request.move_to(State.RUNNING)
            request.slot_id = self._slot_for(request)
            self.running[request.slot_id] = request
            request.admission_id = self._num_admissions
            self._num_admissions += 1
            self.turns.join(request)
            is_first = request.admitted_s is None
            if is_first:
                request.admitted_s = now
                request.num_cached = request.num_computed
            self._events.append(
                Admitted(
                    request_id=request.request_id,
                    key=request.key,
                    slot_id=request.slot_id,
                    num_tokens=request.num_tokens,
                    num_cached=request.num_computed,
                    is_first=is_first,
                    queue_s=now - request.queued_s,
                    now=now,
                )
            )

    def _slot_for(self, request: Request) -> int:
        if request.slot_id_wanted is not None:
            return request.slot_id_wanted
        return next(slot_id for slot_id in range(self.limits.num_slots) if slot_id not in self.running)

    def _give_blocks(self, request: Request) -> bool:
        """Hold blocks for all tokens of a request, cached ones first; False, and nothing held, where too few are
        left."""
        hits = self._prefix_hits(request)
        for node in hits:
            self.blocks.share(node.block_id)
        num_fresh = _blocks_for(request.num_tokens) - len(hits)
        # One block to grow for each running request: else the newcomer would be preempted at once.
        fits = self.blocks.num_available >= num_fresh + len(self.running)
        fresh = self.blocks.allocate(num_fresh) if fits else None
        if fresh is None:
            self.blocks.release([node.block_id for node in hits])
            return False
        request.blocks = [node.block_id for node in hits] + fresh
        request.num_computed = len(hits) * BLOCK_SIZE
        request.num_registered = len(hits)
        request.prefix = hits[-1] if hits else None
        return True

    def _prefix_hits(self, request: Request) -> list[PrefixNode]:
        """Cached blocks for the start of a request; its last token is always computed, for its logits are wanted."""
        if not request.reuse_prefix:
            return []
        num_full = (request.num_tokens - 1) // BLOCK_SIZE
        return self.prefix_cache.match(cache_seed(request.key), (_block_tokens(request, i) for i in range(num_full)))

    # The rows of a step.

    def _decode_rows(self, key: CohortKey, now: float) -> list[Row]:
        rows = []
        for request in self.turns.members(key):
            if request.state is State.RUNNING and request.is_decoding and self._extend(request, now):
                rows.append(_row(request, 1))
        return rows

    def _extend(self, request: Request, now: float) -> bool:
        """Give a decoding request the block of its next position. Under pressure the newest admissions are preempted,
        perhaps this one itself: then False."""
        while len(request.blocks) < _blocks_for(request.num_tokens):
            fresh = self.blocks.allocate(1)
            if fresh is not None:
                request.blocks += fresh
                continue
            newest = max(self.running.values(), key=lambda running: running.admission_id)
            self._preempt(newest, now)
            if newest is request:
                return False
        return True

    def _prefill_rows(self, key: CohortKey, budget: int) -> list[Row]:
        rows = []
        for request in self.turns.members(key):
            if budget > 0 and not request.is_decoding:
                rows.append(_row(request, min(budget, request.num_uncomputed)))
                budget -= len(rows[-1].token_ids)
        return rows

    def _preempt(self, request: Request, now: float) -> None:
        self._leave_slot(request)
        request.move_to(State.WAITING)
        request.queued_s = now
        self.queue.push_preempted(request)
        self._events.append(Preempted(request.request_id, request.key, now))

    # What a step did.

    def _land(self, now: float) -> Batch:
        batch, self.in_flight = self.in_flight, None
        assert batch is not None, "no step is in flight"
        self._events.append(
            StepDone(
                step_id=batch.step_id,
                key=batch.key,
                num_rows=len(batch.rows),
                num_decode=sum(row.is_decode for row in batch.rows),
                num_tokens=batch.num_tokens,
                num_cohorts=self._num_cohorts,
                num_lists=self._lists_in_flight,
                is_switch=self._last_key is not None and self._last_key != batch.key,
                duration_s=now - self._planned_s,
                now=now,
            )
        )
        self._last_key = batch.key
        return batch

    def _advance(self, request: Request, row: Row, sample: Sample | None, now: float) -> None:
        request.num_computed = row.end
        self._register_full_blocks(request)
        if sample is None:
            return
        assert sample.request_id == request.request_id
        since = request.arrived_s if request.last_token_s is None else request.last_token_s
        request.output.append(sample.token_id)
        request.last_token_s = now
        index = len(request.output) - 1
        self._events.append(TokenSampled(request.request_id, request.key, index, sample, now - since, now))
        if sample.token_id in request.eog_ids:
            self._finish(request, FinishReason.EOS, now)
        elif len(request.output) >= request.max_new_tokens or request.num_tokens >= self.limits.max_context:
            self._finish(request, FinishReason.LIMIT, now)

    def _register_full_blocks(self, request: Request) -> None:
        seed = cache_seed(request.key)
        for i in range(request.num_registered, request.num_computed // BLOCK_SIZE):
            tokens = _block_tokens(request, i)
            request.prefix = self.prefix_cache.register(seed, request.prefix, tokens, request.blocks[i])
            request.num_registered = i + 1

    def _finish(self, request: Request, reason: FinishReason, now: float, message: str = "") -> None:
        if request.state is State.RUNNING:
            self._leave_slot(request)
        else:
            self.queue.remove(request)
        request.move_to(State.FINISHED)
        del self._requests[request.request_id]
        self._events.append(
            Finished(
                request_id=request.request_id,
                key=request.key,
                reason=reason,
                message=message,
                num_prompt=len(request.prompt),
                num_generated=len(request.output),
                num_cached=request.num_cached,
                arrived_s=request.arrived_s,
                now=now,
            )
        )

    def _leave_slot(self, request: Request) -> None:
        assert request.slot_id is not None
        del self.running[request.slot_id]
        self.turns.leave(request)
        self.blocks.release(request.blocks)
        request.blocks = []
        request.slot_id = request.prefix = None
        request.num_computed = request.num_registered = 0


def _blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


def _block_tokens(request: Request, index: int) -> tuple[int, ...]:
    return request.tokens(index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE)


def _row(request: Request, count: int) -> Row:
    """The next `count` tokens of a request; it samples where they are its last."""
    samples = count == request.num_uncomputed
    return Row(
        request_id=request.request_id,
        token_ids=request.tokens(request.num_computed, request.num_computed + count),
        start=request.num_computed,
        block_table=tuple(request.blocks),
        sampling=request.sampling if samples else None,
        history=request.history() if samples else (),
        is_decode=request.is_decoding,
    )
