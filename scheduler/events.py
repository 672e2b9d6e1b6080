"""What happened to requests, as values. The scheduler returns them; streams and metrics read them.

Every accepted request gets exactly one `Finished`, and it is the request's last event (I7).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from scheduler.batch import RowFault, Sample
from scheduler.cohort import CohortKey


class FinishReason(StrEnum):
    """Why a request ended."""

    EOS = "eos"
    """The model chose a token that ends generation."""
    WORD = "word"
    """The text reached one of the request's stop strings."""
    LIMIT = "limit"
    """The token limit or the context is used up."""
    ABORT = "abort"
    """The client went away or took the request back."""
    EMBEDDED = "embedded"
    """Its prompt is computed, and nothing more was wanted than the prompt's hidden states."""
    TIMEOUT = "timeout"
    """Its time was up before it had generated anything."""
    UNANSWERABLE = "unanswerable"
    """What it asks for leaves no token to choose."""
    ERROR = "error"
    """The step that computed it failed, or the server shut down before it was done."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A waiting request got a slot. `num_cached` of its tokens need not be computed: a prefix hit."""

    request_id: int
    key: CohortKey
    slot_id: int
    num_tokens: int
    """Tokens it has: its prompt, and what it had generated before a preemption."""
    num_cached: int
    is_first: bool
    """False where it is admitted again, after a preemption."""
    queue_s: float
    """Seconds since arrival, or since preemption where it is admitted again."""
    now: float


@dataclass(frozen=True, slots=True)
class PromptComputed:
    """The first `num_computed` tokens of a request that wants to know have their KV, cached ones included. The first of
    these events comes with its admission, the last before its first token. After a preemption the number may fall."""

    request_id: int
    key: CohortKey
    num_computed: int
    now: float


@dataclass(frozen=True, slots=True)
class TokenSampled:
    """A request advanced by one token. `index` counts its generated tokens from 0."""

    request_id: int
    key: CohortKey
    index: int
    sample: Sample
    gap_s: float
    """Seconds since the previous token, or since arrival for the first (TTFT)."""
    now: float


@dataclass(frozen=True, slots=True)
class Paused:
    """A running request gave up its slot to another list. It waits, and keeps its KV while blocks last."""

    request_id: int
    key: CohortKey
    now: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """A paused request got a slot again, and goes on where it was."""

    request_id: int
    key: CohortKey
    slot_id: int
    queue_s: float
    """Seconds since it was paused."""
    now: float


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running or paused request lost its blocks (and slot) to KV pressure; it waits, and is recomputed later."""

    request_id: int
    key: CohortKey
    now: float


@dataclass(frozen=True, slots=True)
class Shifted:
    """A running request gave up a part of its full context, its blocks and its slot. It waits, and the rest is computed
    again."""

    request_id: int
    key: CohortKey
    num_dropped: int
    now: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The one terminal event of an accepted request."""

    request_id: int
    key: CohortKey
    reason: FinishReason
    message: str
    """For `ERROR` what went wrong, else empty."""
    num_prompt: int
    num_generated: int
    num_cached: int
    arrived_s: float
    now: float


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step was computed and committed (or failed, with no token committed)."""

    step_id: int
    key: CohortKey
    num_rows: int
    num_decode: int
    """Rows that computed one sampled token; the others computed chunks of prompts."""
    num_tokens: int
    num_cohorts: int
    """Cohorts that were runnable when the step was planned, this one included."""
    num_lists: int
    """Distinct adapter lists among the requests of the batch: 1, or Rule 1 is broken."""
    is_switch: bool
    """Whether the step before it ran under another adapter list."""
    duration_s: float
    now: float


Event: TypeAlias = (
    Admitted | PromptComputed | TokenSampled | Paused | Resumed | Preempted | Shifted | Finished | StepDone
)


def reason_of(fault: RowFault) -> FinishReason:
    """Return why the request of a row ends for which no token can be chosen."""
    if fault.is_end:
        return FinishReason.EOS
    return FinishReason.UNANSWERABLE if fault.is_asked_for else FinishReason.ERROR
