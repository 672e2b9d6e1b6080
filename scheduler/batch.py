"""The contract between scheduler and model: what one step computes, and what comes back. Plain ints and tuples, no
tensors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from scheduler.cohort import CohortKey

BLOCK_SIZE = 16
"""Tokens per KV block. One value everywhere: vllm-flash-attn wants a multiple of 16, and small blocks waste least."""


class Sampler(StrEnum):
    """A link of a chain of samplers, under llama-server's name."""

    PENALTIES = "penalties"
    DRY = "dry"
    TOP_N_SIGMA = "top_n_sigma"
    TOP_K = "top_k"
    TYPICAL_P = "typ_p"
    TOP_P = "top_p"
    MIN_P = "min_p"
    XTC = "xtc"
    TEMPERATURE = "temperature"
    INFILL = "infill"
    ADAPTIVE_P = "adaptive_p"
    """Chooses the token, wherever it stands; the others change or drop candidates."""


DEFAULT_SAMPLERS = tuple(sampler for sampler in Sampler if sampler not in (Sampler.INFILL, Sampler.ADAPTIVE_P))
"""llama-server's order."""
_USUAL_SAMPLERS = (Sampler.PENALTIES, Sampler.TOP_K, Sampler.TOP_P, Sampler.MIN_P, Sampler.TEMPERATURE)
"""Those that do something by default."""


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """What tokens stand for."""

    pieces: Sequence[bytes]
    """By id; empty where a token has no text."""
    eog_ids: tuple[int, ...]
    """Those that end a text."""
    end_id: int | None
    """The one that does so where none is among the candidates."""


@dataclass(frozen=True, slots=True)
class SamplerChain:
    """Samplers beyond the usual ones, and the order of all. Defaults are llama-server's, and leave the usual chain."""

    samplers: tuple[Sampler, ...] = DEFAULT_SAMPLERS
    """Those that are not in it do nothing."""
    dynatemp_range: float = 0.0
    """The temperature varies by as much, with the candidates' entropy; 0 and less: it does not."""
    dynatemp_exponent: float = 1.0
    typical_p: float = 1.0
    """1 and more keep all candidates."""
    top_n_sigma: float = -1.0
    """0 and less keep all candidates."""
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    """Above 0.5 nothing is excluded."""
    dry_multiplier: float = 0.0
    """0 penalises nothing."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    """How many of the last tokens (prompt included) are searched for repetitions; 0 none."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    dry_breakers: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict, compare=False)
    """The same as tokens: what may follow each that begins one; nothing where it is a whole one. A function of the
    texts and the tokenizer. Empty where nothing is penalised."""
    token_texts: TokenTexts | None = field(default=None, compare=False, repr=False)
    """A function of the tokenizer. None where INFILL is not among the samplers."""
    mirostat: int = 0
    """1 and 2: that version of Mirostat chooses the token, after the temperature and no other sampler."""
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    """Below 0 `adaptive_p` draws as usual."""
    adaptive_decay: float = 0.9

    @property
    def is_usual(self) -> bool:
        """Whether it does no more than SamplerChain()."""
        is_bent = self.mirostat != 0 or self.dynatemp_range > 0 or self.adaptive_target >= 0
        is_cut = self.typical_p < 1 or self.top_n_sigma > 0 or self.xtc_probability > 0
        if is_bent or is_cut or self.uses_dry or self.uses_texts:
            return False
        return tuple(sampler for sampler in self.samplers if sampler in _USUAL_SAMPLERS) == _USUAL_SAMPLERS

    @property
    def uses_dry(self) -> bool:
        """Whether earlier repetitions change the logits."""
        is_on = self.dry_multiplier != 0 and self.dry_penalty_last_n != 0
        return is_on and self.mirostat == 0 and Sampler.DRY in self.samplers

    @property
    def uses_texts(self) -> bool:
        """Whether it looks at what tokens stand for."""
        return self.mirostat == 0 and Sampler.INFILL in self.samplers


class TokenFilter(Protocol):
    """Which tokens one request may generate next, as far as it has come. The sampler alone advances it.

    What it says is a function of the tokens it has accepted, so it stays with the request however often that is
    computed again.
    """

    def is_ready(self, wait_s: float) -> bool:
        """Whether what may come next is known now, or within `wait_s` seconds."""
        ...

    def allowed(self) -> bytes:
        """Return one byte for each token of the vocabulary, 0 where it may not come next."""
        ...

    def can_end(self) -> bool:
        """Return whether the text may end here."""
        ...

    def accept(self, token_id: int) -> None:
        """Take the token that was chosen among those allowed."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen. Defaults are llama-server's.

    Sampling is a function of these, the logits, the history, the position and, for samplers that remember, of what the
    request's last sample left: never of the other rows of the batch.
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
    post_sampling_probs: bool = False
    """Log-probabilities are those after all samplers, not the model's."""
    chain: SamplerChain | None = None
    """None: as SamplerChain()."""
    constraint: str = ""
    """Names what the request's token filter allows: equal names, equal filters. Empty without one."""

    @property
    def uses_penalties(self) -> bool:
        """Whether the tokens so far change the logits of the next."""
        neutral = self.repeat_penalty == 1.0 and self.presence_penalty == 0.0 and self.frequency_penalty == 0.0
        return self.repeat_last_n != 0 and not neutral

    @property
    def history_len(self) -> int:
        """How many of the last tokens (prompt included) a sample depends on; -1 all."""
        num_penalised = self.repeat_last_n if self.uses_penalties else 0
        if self.chain is None or not self.chain.uses_dry or num_penalised < 0:
            return num_penalised
        return max(num_penalised, self.chain.dry_penalty_last_n)

    def without(self, token_ids: frozenset[int]) -> "SamplingParams":
        """Return the same, but for tokens that are not to be chosen."""
        forbidden = tuple((token_id, -math.inf) for token_id in sorted(token_ids))
        return replace(self, logit_bias=self.logit_bias + forbidden)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken, whatever the seed."""
        return self.temperature == 0 and not self.uses_chain

    @property
    def uses_chain(self) -> bool:
        """Whether the other parameters do not say all."""
        return self.chain is not None and not self.chain.is_usual


class Pooling(StrEnum):
    """How the hidden states of a prompt become an embedding, under llama-server's name."""

    NONE = "none"
    """They are not pooled: one for each token."""
    MEAN = "mean"
    CLS = "cls"
    """The first token's."""
    LAST = "last"
    """The last token's."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """Tokens of a prompt whose log-probabilities are wanted: those that follow a row's first tokens, one each."""

    token_ids: tuple[int, ...]
    """At least one. The row's last token has none to score where it is the prompt's."""
    num_logprobs: int
    """How many of the most likely tokens at its place each is to be listed with."""


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
    """None where the chunk does not reach the end of the prompt, or no token is wanted: its logits are not needed."""
    history: tuple[int, ...] = ()
    """The last `history_len` tokens up to and including this row's; empty where no sampler needs them."""
    sampler_state: tuple[float, ...] = ()
    """What the request's last sample left for its next; empty before the first."""
    token_filter: TokenFilter | None = None
    """Which tokens may be sampled; None: all."""
    num_dropped: int = 0
    """Tokens that the request had before, and that are not in its context any more."""
    is_decode: bool = False
    """Whether the row computes just the newest sampled token."""
    pooling: Pooling | None = None
    """How the hidden states of its tokens are wanted; None: they are not, which is so of every row that samples."""
    pooled: bytes = b""
    """What the request's rows before have left for this one; empty at the first, and where computing begins again."""
    scoring: Scoring | None = None
    """Whose log-probabilities are wanted; None: nobody's."""

    @property
    def end(self) -> int:
        """The position after the last computed token: where a sampled token will stand."""
        return self.start + len(self.token_ids)

    @property
    def draw(self) -> int:
        """What its sample is drawn by, with the seed: how many tokens the request has had. No other of its samples has
        the same."""
        return self.end + self.num_dropped


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
    """A candidate and its natural-log probability: under the model, before any sampler, or after all of them."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The token chosen for one row, and the log-probabilities it asked for."""

    request_id: int
    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()
    """Most likely first. After the samplers, only those that are possible."""
    sampler_state: tuple[float, ...] = ()
    """For the row of the request's next sample. Kept with the request, whether or not its KV is computed again."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """The hidden states of a request so far, pooled: what the model makes of them, and nobody else reads."""

    request_id: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Scores:
    """The log-probabilities, under the model, of the prompt's tokens after position `start`: what a row's scoring came
    to."""

    request_id: int
    start: int
    """Of the row."""
    tokens: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row for which no token can be chosen. Its request ends; the other rows of the batch are unharmed."""

    request_id: int
    message: str
    is_end: bool = False
    """Nothing may follow, and the text may end here: the request ends as at an end token."""
    is_asked_for: bool = False
    """It is what the request asks for that leaves no token."""


@dataclass(frozen=True, slots=True)
class RowLate:
    """A decode row for which it is not known yet what may come next. It is as if it had not been computed: the request
    has the same row in its next step, and the other rows of this one do not wait."""

    request_id: int


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One outcome for each row of the batch that has `sampling`, in the order of the rows."""

    samples: tuple[Sample | RowFault | RowLate, ...]
    pooled: tuple[Pooled, ...] = ()
    """One for each row that has `pooling`, in the order of the rows."""
    scores: tuple[Scores, ...] = ()
    """One for each row that has `scoring`, in the order of the rows."""
