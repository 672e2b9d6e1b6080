"""One request: what was asked, how far it is, and which state changes are legal."""

from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.batch import Pooling, Row, Sample, SamplingParams, Scores, Scoring, TokenFilter
from scheduler.cohort import Activations, CohortKey, key_at, next_switch
from scheduler.context_shift import ContextShift, shifted
from scheduler.events import Admitted, Finished, FinishReason
from scheduler.prefix_cache import PrefixNode


class State(StrEnum):
    """Where a request is in its life."""

    WAITING = "waiting"
    """Accepted, without a slot: new, or preempted."""
    RUNNING = "running"
    """Has a slot and KV blocks."""
    PAUSED = "paused"
    """Gave up its slot to another list; keeps its KV blocks until they are needed, and waits."""
    FINISHED = "finished"


_LEGAL = {
    (State.WAITING, State.RUNNING),  # admission
    (State.RUNNING, State.WAITING),  # preemption
    (State.RUNNING, State.PAUSED),
    (State.PAUSED, State.RUNNING),  # resumption
    (State.PAUSED, State.WAITING),  # preemption of what is paused
    (State.PAUSED, State.FINISHED),
    (State.WAITING, State.FINISHED),  # abort in the queue
    (State.RUNNING, State.FINISHED),
}


@dataclass(slots=True, eq=False)
class Request:
    """A request for tokens, or for what its prompt comes to. The caller sets the first block of fields once; the
    scheduler alone changes the second."""

    request_id: int
    """Unique among the requests of a process."""
    key: CohortKey
    """Its adapter list, complete: what its last tokens are computed under, and whom its service is counted for."""
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    """0 where nothing is wanted but what its prompt comes to, as an embedding; generation also ends where the context
    does."""
    eog_ids: frozenset[int] = frozenset()
    """Tokens that end generation; such a token is the last one of the output. Empty where they are ignored."""
    min_new_tokens: int = 0
    """Before so many tokens none that ends generation is sampled."""
    slot_id_wanted: int | None = None
    """Run in this slot and no other (llama-server's `id_slot`)."""
    reuse_prefix: bool = True
    """Whether KV blocks of earlier requests may be used (llama-server's `cache_prompt`)."""
    reports_progress: bool = False
    """Whether there is an event for each part of its prompt that is computed."""
    activations: Activations = ()
    """Which adapters of `key` act from a position of the prompt on; fixed, whatever is generated."""
    shift: ContextShift | None = None
    """How it goes on when its context is full; None: it ends."""
    token_filter: TokenFilter | None = None
    """Which tokens may be generated, for this request alone; None: all."""
    pooling: Pooling | None = None
    """Its prompt's hidden states are wanted, pooled so, and no token: it ends when the prompt is computed. Each of them
    is needed, but for the last token's alone, and so no KV of earlier requests is used."""
    prompt_logprobs: int | None = None
    """The log-probabilities of its prompt's tokens are wanted, from the second on, each with so many of the most likely
    ones; None: they are not. Until they are there no KV of earlier requests is used."""

    state: State = State.WAITING
    output: list[int] = field(default_factory=list)
    sampler_state: tuple[float, ...] = ()
    """What its samplers remember beside its tokens, as of the last of them."""
    pooled: bytes = b""
    """The hidden states of its computed tokens, pooled; what it asked for when it has ended as EMBEDDED."""
    prompt_scores: list[Sample] = field(default_factory=list)
    """The log-probabilities of its prompt's tokens, from the second on, as far as they are there."""
    slot_id: int | None = None
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Leading tokens of its context whose KV is in `blocks`."""
    num_kept: int = 0
    num_dropped: int = 0
    """So many tokens after the first `num_kept` of prompt + output are not in its context any more."""
    prefix: PrefixNode | None = None
    """Where its chain of registered full blocks ends in the prefix cache; None before the first."""
    num_registered: int = 0
    """Leading full blocks that the prefix cache has been told of."""
    num_cached: int = 0
    """Tokens taken from the prefix cache at the first admission."""
    arrived_s: float = 0.0
    queued_s: float = 0.0
    """When it last began to wait."""
    admitted_s: float | None = None
    """When it was first admitted."""
    last_token_s: float | None = None
    admission_id: int = -1
    """Rank among all admissions; the newest is preempted first."""
    num_output_at_seat: int = 0
    """Tokens it had generated when it last got a slot."""
    _endless: SamplingParams = field(init=False)
    """How the tokens are sampled that may not end it."""

    def __post_init__(self) -> None:
        self._endless = self.sampling.without(self.eog_ids) if self.min_new_tokens else self.sampling

    @property
    def sampling_now(self) -> SamplingParams:
        """How its next token is sampled."""
        return self.sampling if len(self.output) >= self.min_new_tokens else self._endless

    def key_at(self, position: int) -> CohortKey:
        """The key under which its token at `position` is computed."""
        return key_at(self.key, self.activations_now, position) if self.activations else self.key

    @property
    def activations_now(self) -> Activations:
        """Where in its context its adapters begin to act."""
        return shifted(self.activations, self.num_kept, self.num_dropped)

    @property
    def key_now(self) -> CohortKey:
        """The key of the next token to compute: that of the cohort it runs in."""
        return self.key_at(self.num_computed) if self.activations else self.key

    @property
    def num_before_switch(self) -> int:
        """Tokens still to compute under `key_now`: all, or those before another list takes over."""
        end = next_switch(self.activations_now, self.num_computed)
        return self.num_uncomputed if end is None else end - self.num_computed

    @property
    def num_tokens(self) -> int:
        """Tokens in its context: prompt and output together, but for those that were given up."""
        return len(self.prompt) + len(self.output) - self.num_dropped

    @property
    def num_uncomputed(self) -> int:
        """Tokens still to compute before the next one can be sampled: 1 in decode, more in prefill."""
        return self.num_tokens - self.num_computed

    @property
    def can_reuse_prefix(self) -> bool:
        """Whether it can do without computing tokens whose KV is there."""
        return self.reuse_prefix and self.pooling in (None, Pooling.LAST) and not self._lacks_scores

    @property
    def _lacks_scores(self) -> bool:
        return self.prompt_logprobs is not None and len(self.prompt_scores) < len(self.prompt) - 1

    @property
    def is_computed(self) -> bool:
        """Whether it is done without a token."""
        return self.max_new_tokens == 0 and self.num_uncomputed == 0

    @property
    def is_decoding(self) -> bool:
        """Whether the next step of this request computes just its newest sampled token."""
        return bool(self.output) and self.num_tokens == self.num_computed + 1

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Tokens at positions start … stop - 1 of its context, in time proportional to their number."""
        if not self.num_dropped or stop <= self.num_kept:
            return self._generated_so_far(start, stop)
        kept = self._generated_so_far(start, self.num_kept) if start < self.num_kept else ()
        rest = max(start, self.num_kept) + self.num_dropped, stop + self.num_dropped
        return kept + self._generated_so_far(*rest)

    def _generated_so_far(self, start: int, stop: int) -> tuple[int, ...]:
        """The same of prompt + output."""
        split = len(self.prompt)
        if stop <= split:
            return self.prompt[start:stop]
        generated = tuple(self.output[max(start - split, 0) : stop - split])
        return self.prompt[start:split] + generated if start < split else generated

    def beginning(self, num_tokens: int) -> "Request":
        """Return a request that is nobody's, of the first tokens of this one's context as it is now."""
        return Request(
            request_id=self.request_id,
            key=self.key,
            prompt=self.tokens(0, num_tokens),
            sampling=self.sampling,
            max_new_tokens=1,
            activations=self.activations_now,
        )

    def history(self) -> tuple[int, ...]:
        """The tokens that the samplers of the next token look at; empty where none does."""
        last_n = self.sampling.history_len
        if last_n == 0:
            return ()
        num_so_far = len(self.prompt) + len(self.output)
        return self._generated_so_far(0 if last_n < 0 else max(num_so_far - last_n, 0), num_so_far)

    def give_up(self, max_context: int) -> None:
        """Shift its context, which is full, and of which nothing is computed then."""
        assert self.shift is not None
        assert self.num_tokens == max_context
        assert not self.blocks
        self.num_kept = self.shift.kept(max_context)
        self.num_dropped += self.shift.discarded(max_context)

    def prefill_row(self, count: int) -> Row:
        """Its share of a step that computes its next `count` tokens; it samples where they are its last."""
        assert not self.is_decoding
        samples = count == self.num_uncomputed and self.max_new_tokens > 0
        return Row(
            request_id=self.request_id,
            token_ids=self.tokens(self.num_computed, self.num_computed + count),
            start=self.num_computed,
            block_table=tuple(self.blocks),
            sampling=self.sampling_now if samples else None,
            history=self.history() if samples else (),
            sampler_state=self.sampler_state,
            token_filter=self.token_filter,
            pooling=self.pooling,
            pooled=self.pooled if self.num_computed else b"",
            scoring=self._scoring(count),
            num_dropped=self.num_dropped,
        )

    def _scoring(self, count: int) -> Scoring | None:
        if self.prompt_logprobs is None or not self._lacks_scores:
            return None
        following = self.prompt[self.num_computed + 1 : self.num_computed + count + 1]
        return Scoring(following, self.prompt_logprobs) if following else None

    def take_scores(self, scores: Scores) -> None:
        """Keep what a row's scoring came to, in place of what came of the same tokens before a preemption."""
        self.prompt_scores[scores.start :] = scores.tokens

    def decode_row(self) -> Row:
        """Its share of a step that computes its newest sampled token, which is all that it has to compute."""
        assert self.is_decoding
        return Row(
            request_id=self.request_id,
            token_ids=(self.output[-1],),
            start=self.num_computed,
            block_table=tuple(self.blocks),
            sampling=self.sampling_now,
            history=self.history(),
            sampler_state=self.sampler_state,
            token_filter=self.token_filter,
            num_dropped=self.num_dropped,
            is_decode=True,
        )

    def admitted(self, *, is_first: bool, queue_s: float, now: float) -> Admitted:
        """The event of its seat, where it was not paused before."""
        assert self.slot_id is not None
        return Admitted(
            request_id=self.request_id,
            key=self.key,
            slot_id=self.slot_id,
            num_tokens=self.num_tokens,
            num_cached=self.num_computed,
            is_first=is_first,
            queue_s=queue_s,
            now=now,
        )

    def finished(self, reason: FinishReason, message: str, now: float) -> Finished:
        """Its last event."""
        return Finished(
            request_id=self.request_id,
            key=self.key,
            reason=reason,
            message=message,
            num_prompt=len(self.prompt),
            num_generated=len(self.output),
            num_cached=self.num_cached,
            arrived_s=self.arrived_s,
            now=now,
        )

    def move_to(self, state: State) -> None:
        """Change state; an illegal change is a bug of ours."""
        assert (self.state, state) in _LEGAL, f"request {self.request_id}: {self.state} -> {state}"
        self.state = state
