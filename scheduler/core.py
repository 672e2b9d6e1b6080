"""The scheduler: a state machine from requests to batches. It is called and never calls out; time comes in as an
argument.

The cycle: `plan` chooses the cohort whose turn it is, its rows and their blocks; the model computes; `commit` takes the
tokens (`fail`, where the model could not). `add` and `end` may come at any time, between `plan` and `commit` too, for
what a step in flight reads is its own copy, and blocks freed meanwhile are given out by the next `plan` at the
earliest. What happened is kept as events until `take_events`. Invariants I1 … I12, and what `validate` checks of them:
docs/scheduling.md."""

from dataclasses import dataclass

from scheduler.batch import BLOCK_SIZE, Batch, Row, RowFault, RowLate, Sample, StepOutput
from scheduler.cohort import CohortKey
from scheduler.errors import PromptEmpty, PromptTooLong, QueueFull, SlotUnknown
from scheduler.events import (
    Event,
    FinishReason,
    Paused,
    Preempted,
    PromptComputed,
    Resumed,
    Shifted,
    TokenSampled,
    reason_of,
)
from scheduler.kv_space import KVSpace, blocks_for, num_to_grow
from scheduler.policy import Policy, make_policy
from scheduler.request import Request, State
from scheduler.step_account import StepAccount


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

    def __init__(self, limits: SchedulerLimits, policy: Policy | None = None) -> None:
        """`policy` is a new one of the same number of slots; None is the policy `fair` with its defaults."""
        policy = policy or make_policy("fair", limits.num_slots)
        self.limits = limits
        self.kv = KVSpace(limits.num_blocks)
        self.queue = policy.queue
        self.turns = policy.turns
        self.running: dict[int, Request] = {}
        """Slot id → the request in it."""
        self.last_in_slot: dict[int, Request] = {}
        """Slot id → the latest request in it, which may be somewhere else now, or have ended."""
        self.paused: dict[int, Request] = {}
        """Requests that wait with their KV, by id, the latest paused last."""
        self.in_flight: Batch | None = None
        self._account: StepAccount | None = None
        self._requests: dict[int, Request] = {}
        self._events: list[Event] = []
        self._num_steps = 0
        self._num_admissions = 0
        self._last_key: CohortKey | None = None

    # The door.

    def add(self, request: Request, now: float) -> None:
        """Accept a request. Raises a `Refusal`, and changes nothing, where it cannot be served or the queue is full."""
        assert request.request_id not in self._requests, f"request id {request.request_id} is in use"
        assert request.max_new_tokens >= 0
        self.check(request)
        num_free_slots = self.limits.num_slots - len(self.running)
        if len(self.queue) >= self.limits.max_waiting + num_free_slots:
            raise QueueFull(len(self.queue), self.limits.max_waiting)
        request.arrived_s = request.queued_s = now
        self._requests[request.request_id] = request
        self.queue.push(request, now)

    def check(self, request: Request) -> None:
        """Raise PromptRefused where a request can never be served."""
        if not request.prompt:
            raise PromptEmpty
        if len(request.prompt) >= self.limits.max_context:
            raise PromptTooLong(len(request.prompt), self.limits.max_context)
        if request.slot_id_wanted is not None and not 0 <= request.slot_id_wanted < self.limits.num_slots:
            raise SlotUnknown(request.slot_id_wanted, self.limits.num_slots)

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
        num_cohorts = len(self.turns)
        for key in tuple(self.turns):
            rows = self._decode_rows(key, now)
            rows += self._prefill_rows(key, self.limits.max_step_tokens - len(rows))
            if rows:
                self.turns.end_turn(key)
                self.in_flight = Batch(self._num_steps, key, tuple(rows))
                self._num_steps += 1
                requests = [self._requests[row.request_id] for row in rows]
                self._account = StepAccount.of(self.in_flight, requests, num_cohorts, now)
                return self.in_flight
        return None

    def commit(self, output: StepOutput, now: float) -> None:
        """Take the result of the step in flight: advance its requests, and finish those that are done."""
        account = self._land(now)
        batch = account.batch
        num_wanted = sum(row.sampling is not None for row in batch.rows)
        assert len(output.samples) == num_wanted, f"{len(output.samples)} samples for {num_wanted} rows that sample"
        for pooled in output.pooled:
            if pooled.request_id in self._requests:
                self._requests[pooled.request_id].pooled = pooled.content
        for scores in output.scores:
            if scores.request_id in self._requests:
                self._requests[scores.request_id].take_scores(scores)
        for key, (num_prompt, num_sampled) in account.service.items():
            self.queue.served(key, num_prompt, num_sampled, now)
        samples = iter(output.samples)
        for row in batch.rows:
            sample = next(samples) if row.sampling is not None else None
            request = self._requests.get(row.request_id)
            if isinstance(sample, RowFault):
                self.end(row.request_id, reason_of(sample), now, sample.message)
            elif request is not None and not isinstance(sample, RowLate):
                self._advance(request, row, sample, now)

    def fail(self, message: str, now: float) -> None:
        """End the requests of the step in flight, which could not be computed, and no other."""
        for row in self._land(now).batch.rows:
            self.end(row.request_id, FinishReason.ERROR, now, message)

    def validate(self) -> None:
        """Check every invariant. For tests: takes time in proportion to everything the scheduler holds."""
        from scheduler.invariants import check

        check(self)

    # Seats.

    def _admit(self, now: float) -> None:
        """Fill free slots, then let seats change hands where the queue asks for it, then fill what that has freed."""
        self._fill_slots(now)
        swap = self.queue.swap(now, self._has_slot) if len(self.queue) else None
        if swap is not None:
            for request in swap.paused:
                self._pause(request, now)
            for request in swap.seated:
                if self._has_slot(request) and not self._seat(request, now):
                    break
            self._fill_slots(now)

    def _fill_slots(self, now: float) -> None:
        lacking: Request | None = None
        while len(self.running) < self.limits.num_slots:
            request = self.queue.first(now, self._has_slot)
            if request is None or request is lacking:
                return
            if not self._seat(request, now):
                lacking = request  # the queue knows, and may prefer another now

    def _has_slot(self, request: Request) -> bool:
        return request.slot_id_wanted not in self.running

    def _seat(self, request: Request, now: float) -> bool:
        """Give a waiting request a slot. False where it lacks blocks: then the queue keeps its turn for it."""
        if not self._hold_blocks(request, now):
            self.queue.lacks_blocks(request)
            return False
        is_resumed = request.state is State.PAUSED
        if is_resumed:
            del self.paused[request.request_id]
        self.queue.seat(request, now)
        request.move_to(State.RUNNING)
        request.slot_id = self._slot_for(request)
        request.num_output_at_seat = len(request.output)
        self.running[request.slot_id] = self.last_in_slot[request.slot_id] = request
        request.admission_id = self._num_admissions
        self._num_admissions += 1
        self.turns.join(request)
        self._note_seat(request, is_resumed, now)
        return True

    def _note_seat(self, request: Request, is_resumed: bool, now: float) -> None:
        assert request.slot_id is not None
        queue_s = now - request.queued_s
        if is_resumed:
            self._events.append(Resumed(request.request_id, request.key, request.slot_id, queue_s, now))
            return
        is_first = request.admitted_s is None
        if is_first:
            request.admitted_s = now
            request.num_cached = request.num_computed
        self._events.append(request.admitted(is_first=is_first, queue_s=queue_s, now=now))
        self._note_progress(request, now)

    def _note_progress(self, request: Request, now: float) -> None:
        if request.reports_progress and not request.output:
            self._events.append(PromptComputed(request.request_id, request.key, request.num_computed, now))

    def _slot_for(self, request: Request) -> int:
        if request.slot_id_wanted is not None:
            return request.slot_id_wanted
        return next(slot_id for slot_id in range(self.limits.num_slots) if slot_id not in self.running)

    def _hold_blocks(self, request: Request, now: float) -> bool:
        """Hold blocks for a request, those of paused requests too if need be; False where even they do not suffice.

        What the running ones grow by until its first token is left to them: so it is not preempted before (I12)."""
        spare = num_to_grow(self.running.values(), self._num_turns_to_token(request), self.limits.max_context)
        while missing := self.kv.hold(request, spare):
            if not self._reclaim(missing, now, keep=request):
                return False
        return True

    def _num_turns_to_token(self, request: Request) -> int:
        """Bound the turns of its cohorts until a request that is seated now samples: prompts before its own come
        first, decode rows of others leave a part of the step, and a change of cohort may cut a turn short."""
        ahead = sum(other.num_uncomputed for other in self.running.values() if not other.is_decoding)
        num_tokens_per_turn = self.limits.max_step_tokens - self.limits.num_slots + 1
        return -(-(ahead + request.num_uncomputed) // num_tokens_per_turn) + len(request.activations)

    # The rows of a step.

    def _decode_rows(self, key: CohortKey, now: float) -> list[Row]:
        rows = []
        for request in self.turns.members(key):
            if request.state is State.RUNNING and request.is_decoding and self._extend(request, now):
                rows.append(request.decode_row())
        return rows

    def _extend(self, request: Request, now: float) -> bool:
        """Give a decoding request the block of its next position. Under pressure paused requests lose theirs, then the
        newest admissions are preempted, perhaps this one itself: then False."""
        while len(request.blocks) < blocks_for(request.num_tokens):
            if self.kv.grow(request) or self._reclaim(1, now):
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
                rows.append(request.prefill_row(min(budget, request.num_before_switch)))
                budget -= len(rows[-1].token_ids)
        return rows

    # How a seat is lost.

    def _pause(self, request: Request, now: float) -> None:
        self._leave_slot(request)
        request.move_to(State.PAUSED)
        request.queued_s = now
        self.queue.unseat(request, now)
        self.paused[request.request_id] = request
        self._events.append(Paused(request.request_id, request.key, now))

    def _preempt(self, request: Request, now: float) -> None:
        self._give_back(request, now)
        self._events.append(Preempted(request.request_id, request.key, now))

    def _shift(self, request: Request, now: float) -> None:
        self._give_back(request, now)
        request.give_up(self.limits.max_context)
        self._events.append(Shifted(request.request_id, request.key, request.num_dropped, now))

    def _give_back(self, request: Request, now: float) -> None:
        """Let a running request wait, without its slot and its KV."""
        self._leave_slot(request)
        self.kv.release(request)
        request.move_to(State.WAITING)
        request.queued_s = now
        self.queue.unseat(request, now)

    def _reclaim(self, num_blocks: int, now: float, keep: Request | None = None) -> bool:
        """Take the blocks of paused requests, but for `keep`, the latest paused first, until so many are let go. False,
        and none taken, where they hold less."""
        victims = []
        for request in reversed(self.paused.values()):
            if num_blocks <= 0:
                break
            if request is not keep:
                victims.append(request)
                num_blocks -= len(request.blocks)
        if num_blocks > 0:
            return False
        for request in victims:
            del self.paused[request.request_id]
            self.kv.release(request)
            request.move_to(State.WAITING)
            self._events.append(Preempted(request.request_id, request.key, now))
        return True

    def _leave_slot(self, request: Request) -> None:
        assert request.slot_id is not None
        del self.running[request.slot_id]
        request.slot_id = None
        self.turns.leave(request)

    # What a step did.

    def _land(self, now: float) -> StepAccount:
        account, self._account, self.in_flight = self._account, None, None
        assert account is not None, "no step is in flight"
        self._events.append(account.done(self._last_key, now))
        self._last_key = account.batch.key
        return account

    def _advance(self, request: Request, row: Row, sample: Sample | None, now: float) -> None:
        if not request.activations or request.key_at(row.end) == request.key_now:
            request.num_computed = row.end
        else:
            self.turns.leave(request)
            request.num_computed = row.end
            self.turns.join(request)
        self.kv.register(request)
        self._note_progress(request, now)
        if request.is_computed:
            self._finish(request, FinishReason.LIMIT if request.pooling is None else FinishReason.EMBEDDED, now)
        if sample is None:
            return
        assert sample.request_id == request.request_id
        since = request.arrived_s if request.last_token_s is None else request.last_token_s
        request.output.append(sample.token_id)
        request.sampler_state = sample.sampler_state
        request.last_token_s = now
        index = len(request.output) - 1
        self._events.append(TokenSampled(request.request_id, request.key, index, sample, now - since, now))
        if sample.token_id in request.eog_ids:
            self._finish(request, FinishReason.EOS, now)
        elif len(request.output) >= request.max_new_tokens:
            self._finish(request, FinishReason.LIMIT, now)
        elif request.num_tokens >= self.limits.max_context:
            if request.shift is None:
                self._finish(request, FinishReason.LIMIT, now)
            else:
                self._shift(request, now)

    def _finish(self, request: Request, reason: FinishReason, now: float, message: str = "") -> None:
        if request.state is State.RUNNING:
            self._leave_slot(request)
        self.paused.pop(request.request_id, None)
        self.kv.release(request)
        self.queue.leave(request, now)
        request.move_to(State.FINISHED)
        del self._requests[request.request_id]
        self._events.append(request.finished(reason, message, now))
