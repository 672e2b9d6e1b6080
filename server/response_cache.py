"""Answers that can be given again: which requests are asked for in the cache, what makes two of them the same, and how
a stored answer is replayed.

A request is deterministic where its tokens are a function of what it asks for: at temperature 0, or with a seed that
the client or the operator chose. The key holds everything that such tokens depend on; the part of the adapter list
comes from scheduler/cohort.py, so that contents count and names do not. A cache belongs to one loaded model. What is
stored is tokens: text, stop strings and the form of the answer are made again, by the code that makes new answers.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

from model.tokens.tokenizer import Tokenizer
from scheduler.batch import Sample, SamplingParams
from scheduler.cohort import ListSeed, list_seed
from scheduler.context_shift import ContextShift
from scheduler.events import FinishReason, TokenSampled
from scheduler.loop import TokenStream
from scheduler.request import Request
from server.text_rules import TextRules

_TOKEN_BYTES = 40
"""An integer in a tuple."""
_SAMPLE_BYTES = 120
_LOGPROB_BYTES = 130


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """Everything that the tokens of a deterministic answer depend on, but for the model."""

    adapters: ListSeed
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    min_new_tokens: int
    eog_ids: frozenset[int]
    shift: ContextShift | None
    prompt_logprobs: int | None
    rules: TextRules
    tokenizer: str
    """Its digest: it says where the text reaches a stop string."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The tokens of an answer that ended by itself, and why it did."""

    samples: tuple[Sample, ...]
    reason: FinishReason
    prompt_scores: tuple[Sample, ...] = ()


def is_deterministic(request: Request, *, is_seeded: bool, has_time_limit: bool) -> bool:
    """Whether a request's tokens are a function of what it asks for. `is_seeded`: somebody chose its seed."""
    return not has_time_limit and (is_seeded or request.sampling.is_greedy)


def answer_key(request: Request, rules: TextRules, tokenizer: Tokenizer) -> AnswerKey:
    """Return the key of a deterministic request. Where the most likely token is taken the seed means nothing."""
    sampling = request.sampling
    return AnswerKey(
        adapters=list_seed(request.key, request.activations),
        prompt=request.prompt,
        sampling=replace(sampling, seed=0) if sampling.is_greedy else sampling,
        max_new_tokens=request.max_new_tokens,
        min_new_tokens=request.min_new_tokens,
        eog_ids=request.eog_ids,
        shift=request.shift,
        prompt_logprobs=request.prompt_logprobs,
        rules=rules,
        tokenizer=tokenizer.digest,
    )


class ResponseCache:
    """The answers that were asked for last, within bounds of number and memory."""

    def __init__(self, max_answers: int, max_bytes: int) -> None:
        """`max_answers` 0 stores nothing."""
        self._max_answers = max_answers
        self._max_bytes = max_bytes
        self._answers: OrderedDict[AnswerKey, StoredAnswer] = OrderedDict()
        self.num_bytes = 0
        """An estimate of what the answers and their keys take; at most `max_bytes`."""

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def is_on(self) -> bool:
        """Whether anything can be stored."""
        return self._max_answers > 0

    def get(self, key: AnswerKey) -> StoredAnswer | None:
        """Return a stored answer, which is now the one used last."""
        if key not in self._answers:
            return None
        self._answers.move_to_end(key)
        return self._answers[key]

    def put(self, key: AnswerKey, answer: StoredAnswer) -> None:
        """Store an answer in place of those that were used longest ago; nothing where it is larger than the cache."""
        size = _num_bytes(key, answer)
        if not self.is_on or size > self._max_bytes:
            return
        if key in self._answers:
            self.num_bytes -= _num_bytes(key, self._answers.pop(key))
        self._answers[key] = answer
        self.num_bytes += size
        while len(self._answers) > self._max_answers or self.num_bytes > self._max_bytes:
            self.num_bytes -= _num_bytes(*self._answers.popitem(last=False))


def _num_bytes(key: AnswerKey, answer: StoredAnswer) -> int:
    samples = answer.prompt_scores + answer.samples
    num_logprobs = sum(len(sample.top_logprobs) for sample in samples)
    num_characters = sum(map(len, key.rules.stop))
    num_tokens = len(key.prompt) + len(key.eog_ids) + 4 * len(key.sampling.logit_bias)
    return (
        _TOKEN_BYTES * num_tokens
        + _SAMPLE_BYTES * (len(samples) + 8)
        + _LOGPROB_BYTES * num_logprobs
        + 4 * num_characters
    )


def replay(request: Request, answer: StoredAnswer, now: float) -> TokenStream:
    """Return the stream of a request whose answer is stored: all its tokens at once. It never gets a slot.

    Plays the scheduler's part: what it would have set on the request is set, with the whole prompt from a cache.
    """
    request.arrived_s = request.admitted_s = request.last_token_s = now
    request.num_cached = len(request.prompt)
    request.prompt_scores += answer.prompt_scores
    stream = TokenStream(request)
    for index, sample in enumerate(answer.samples):
        own = replace(sample, request_id=request.request_id)
        request.output.append(sample.token_id)
        stream.push(TokenSampled(request.request_id, request.key, index, own, 0.0, now))
    stream.push(request.finished(answer.reason, "", now))
    return stream
