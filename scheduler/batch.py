"""The contract between scheduler and model: what one step computes, and what comes back. Plain ints and tuples, no
tensors."""

from dataclasses import dataclass

from scheduler.cohort import CohortKey

BLOCK_SIZE = 16
"""Tokens per KV block. One value everywhere: vllm-flash-attn wants a multiple of 16, and small blocks waste least."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen. Defaults are llama-server's.

    Sampling is a function of these, the logits, the history and the position: never of the other rows of the batch.
    """

    temperature: float = 0.8
    """0 takes the most likely token."""
    top_k: int = 40
    """0 keeps the whole vocabulary."""
    top_p: float = 0.95
    min_p: float = 0.05
    min_keep: int = 0
    """top-p and min-p leave at least this many candidates."""
    repeat_last_n: int = 64
    """How many of the last tokens (prompt included) the penalties look at; 0 none, -1 all."""
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, added logit); -inf forbids the token."""
    seed: int = 0
    """Resolved: a request that asked for a random seed has been given one."""
    num_logprobs: int | None = None
    """None: no log-probabilities wanted. n: of the sampled token and of the n most likely ones."""

    @property
    def uses_penalties(self) -> bool:
        """Whether the tokens so far change the logits of the next."""
        neutral = self.repeat_penalty == 1.0 and self.presence_penalty == 0.0 and self.frequency_penalty == 0.0
        return self.repeat_last_n != 0 and not neutral


@dataclass(frozen=True, slots=True)
class Row:
    """One request's share of a step: consecutive tokens to compute, the KV blocks they live in, and what to sample."""

    request_id: int
    token_ids: tuple[int, ...]
    """The tokens to compute, at positions start, start + 1, …; one in decode, a chunk of the prompt in prefill."""
    start: int
    block_table: tuple[int, ...]
    """The request's KV blocks in order; position p lives in block_table[p // BLOCK_SIZE] at p % BLOCK_SIZE."""
    sampling: SamplingParams | None
    """None where the chunk does not reach the end of the prompt: its logits are not needed."""
    history: tuple[int, ...] = ()
    """The last `repeat_last_n` tokens up to and including this row's; empty where no penalty needs them."""
    is_decode: bool = False
    """Whether the row computes just the newest sampled token."""

    @property
    def end(self) -> int:
        """The position after the last computed token: where a sampled token will stand."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes: rows of one cohort (I1), decode rows first."""

    step_id: int
    key: CohortKey
    rows: tuple[Row, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens to compute in this step, over all rows."""
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A candidate and its natural-log probability under the model, before any sampler."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The token chosen for one row, and the log-probabilities it asked for."""

    request_id: int
    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()
    """Most likely first."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row for which no token can be chosen. Its request ends; the other rows of the batch are unharmed."""

    request_id: int
    message: str


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One outcome for each row of the batch that has `sampling`, in the order of the rows."""

    samples: tuple[Sample | RowFault, ...]
