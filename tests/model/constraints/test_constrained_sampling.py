"""Constrained rows: the sampler takes a filter for forbidden tokens, and a model's tokens don't depend on company."""

import json
import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.backend import choose_backend
from model.checkpoint.weights import load_checkpoint
from model.constraints.constraint import Constraint, ConstraintText, Syntax
from model.constraints.filter import ConstraintFilter, MaskThreads
from model.language_model import LanguageModel, load_language_model
from model.lora_cache import LoraCache
from model.sampling.sampler import sample
from model.tokens.tokenizer import Tokenizer, load_tokenizer
from scheduler.batch import BLOCK_SIZE, Row, RowFault, RowLate, Sample, SamplerChain, SamplingParams
from scheduler.cohort import BASE
from scheduler.core import SchedulerLimits
from scheduler.events import Event, Finished, FinishReason, Preempted
from scheduler.request import Request
from tests.model.constraint_parts import compile_text
from tests.model.served import samples_of, serve
from tests.model.tiny import make_model

V = 40
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "usual": SamplingParams(),
    "no filter": SamplingParams(top_k=0, top_p=1.0, min_p=0.0),
    "penalties and bias": SamplingParams(repeat_penalty=1.5, logit_bias=((3, 2.0), (4, -math.inf))),
    "mirostat": SamplingParams(chain=SamplerChain(mirostat=2)),
    "unusual": SamplingParams(chain=SamplerChain(typical_p=0.7, xtc_probability=0.5, dry_multiplier=1.0)),
    "log-probabilities": SamplingParams(num_logprobs=5),
    "after the samplers": SamplingParams(num_logprobs=5, post_sampling_probs=True),
}


@dataclass
class FixedFilter:
    """Allows some tokens, always the same."""

    allowed_ids: frozenset[int]
    is_complete: bool = False
    accepted: list[int] = field(default_factory=list)
    num_late: int = 0
    """How often it is not ready."""
    num_asked: int = 0

    def is_ready(self, wait_s: float) -> bool:
        self.num_asked += 1
        return self.num_asked > self.num_late

    def allowed(self) -> bytes:
        return bytes(token_id in self.allowed_ids for token_id in range(V))

    def can_end(self) -> bool:
        return self.is_complete

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)


def row(params: SamplingParams, token_filter: FixedFilter | None = None) -> Row:
    return Row(1, (0,), 9, (0,), params, history=tuple(range(0, 20, 2)), token_filter=token_filter)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_what_a_filter_forbids_is_as_if_it_had_a_bias_of_minus_infinity(name: str) -> None:
    @settings(deadline=None, max_examples=40)
    @given(
        seed=st.integers(0, 10**6), allowed=st.frozensets(st.sampled_from([n for n in range(V) if n != 4]), min_size=1)
    )
    def check(seed: int, allowed: frozenset[int]) -> None:
        params = replace(SAMPLINGS[name], seed=seed)
        forbidden = tuple((token_id, -math.inf) for token_id in range(V) if token_id not in allowed)
        logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (1, V)).astype(np.float32))
        token_filter = FixedFilter(allowed)
        [filtered] = sample(logits, [row(params, token_filter)])
        [biased] = sample(logits, [row(replace(params, logit_bias=params.logit_bias + forbidden))])
        assert filtered == biased
        assert isinstance(filtered, Sample)
        assert token_filter.accepted == [filtered.token_id]

    check()


@pytest.mark.parametrize("width", [V - 10, V, V + 10])
def test_a_filter_and_logits_may_know_different_numbers_of_tokens(width: int) -> None:
    token_filter = FixedFilter(frozenset({5, V - 1}))
    logits = torch.arange(width, dtype=torch.float32)[None]
    [chosen] = sample(logits, [row(SamplingParams(temperature=0.0), token_filter)])
    assert isinstance(chosen, Sample)
    assert chosen.token_id == (V - 1 if width >= V else 5)


def test_where_nothing_may_follow_the_request_ends_or_fails() -> None:
    params, logits = SamplingParams(logit_bias=((7, -math.inf),)), torch.zeros(1, V)
    [end] = sample(logits, [row(params, FixedFilter(frozenset({7}), is_complete=True))])
    [fault] = sample(logits, [row(params, FixedFilter(frozenset({7})))])
    assert end == RowFault(1, "", is_end=True)
    assert fault == RowFault(1, "logit_bias and the constraint forbid every token", is_asked_for=True)


def test_a_decode_row_whose_filter_is_not_ready_is_late_and_no_other() -> None:
    logits, params = torch.zeros(3, V), SamplingParams(temperature=0.0)
    late = replace(row(params, FixedFilter(frozenset({7}), num_late=1)), is_decode=True)
    prompt = row(params, FixedFilter(frozenset({8}), num_late=1))
    rows = [late, prompt, row(params)]
    first, of_prompt, plain = sample(logits, rows)
    assert first == RowLate(1)
    assert isinstance(of_prompt, Sample)
    assert isinstance(plain, Sample)
    assert (of_prompt.token_id, plain.token_id) == (8, 0)
    [again] = sample(logits[:1], rows[:1])
    assert again == Sample(1, 7)


class HeldExecutor(Executor):
    """Runs its work when it is told to."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.held.append(lambda: future.set_result(fn(*args, **kwargs)))
        return future


def begin(tiny: "Tiny", threads: MaskThreads) -> ConstraintFilter:
    constraint = tiny.constraints[3]
    assert constraint is not None
    return Constraint(constraint.compiled, "", threads).begin()


def test_a_request_whose_masks_are_slow_delays_its_like_alone(tiny: "Tiny") -> None:
    usual, slow = HeldExecutor(), HeldExecutor()
    ticks = iter([0.0, 1.0, 2.0, 2.01, 3.0, 3.01])
    token_filter = begin(tiny, MaskThreads(usual, slow, clock=lambda: next(ticks)))
    [token_id] = tiny.tokenizer.encode("a")
    for executor in (usual, slow, usual):
        token_filter.accept(token_id)
        executor.held.pop()()
    assert not usual.held
    assert not slow.held


def test_a_constraint_is_ready_when_its_mask_is_there(tiny: "Tiny") -> None:
    executor = HeldExecutor()
    token_filter = begin(tiny, MaskThreads(executor, executor))
    assert token_filter.is_ready(0.0)
    [token_id] = tiny.tokenizer.encode("a")
    token_filter.accept(token_id)
    assert not token_filter.is_ready(0.0)
    executor.held.pop()()
    assert token_filter.is_ready(0.0)
    assert token_filter.allowed()[token_id]


# A whole model.

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TEXTS = [
    None,
    ConstraintText(Syntax.GBNF, 'root ::= item{30,60}\nitem ::= "a" | "(" item* ")"'),
    ConstraintText(Syntax.JSON_SCHEMA, json.dumps(SCHEMA)),
    ConstraintText(Syntax.REGEX, "[a-f]{30,60}"),
]


@dataclass
class LateFilter:
    """A filter that is not ready until it was asked some times, at each token."""

    inner: ConstraintFilter
    num_late: int
    num_asked: int = 0

    def is_ready(self, wait_s: float) -> bool:
        self.num_asked += 1
        return self.num_asked > self.num_late

    def allowed(self) -> bytes:
        return self.inner.allowed()

    def can_end(self) -> bool:
        return self.inner.can_end()

    def accept(self, token_id: int) -> None:
        self.num_asked = 0
        self.inner.accept(token_id)


@dataclass(frozen=True)
class Tiny:
    """A random model and its tokenizer."""

    model: LanguageModel
    tokenizer: Tokenizer
    stacks: LoraCache
    constraints: Sequence[Constraint | None]

    def request(self, number: int, *, is_late: bool = False) -> Request:
        """Request `number`: a constraint or none, some greedy, some beginning alike."""
        constraint = self.constraints[number % len(TEXTS)]
        prompt = [(5 * i) % 250 + 10 for i in range(20)] * (number % 3) + [30 + number]
        return Request(
            number,
            BASE,
            tuple(prompt),
            SamplingParams(temperature=float(number % 2), seed=number, num_logprobs=2),
            max_new_tokens=40,
            eog_ids=self.tokenizer.eog_ids,
            token_filter=None if constraint is None else LateFilter(constraint.begin(), 3 * is_late),
        )

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_id for token_id in ids if not self.tokenizer.is_control(token_id))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    path: Path = tmp_path_factory.mktemp("tiny")
    make_model("llama", path)
    checkpoint = load_checkpoint(path)
    backend = choose_backend("cpu", "float32", checkpoint)
    model = load_language_model(checkpoint.config, checkpoint.tensors, backend)
    tokenizer = load_tokenizer(checkpoint)
    constraints = [None if text is None else compile_text(tokenizer, text) for text in TEXTS]
    return Tiny(model, tokenizer, LoraCache((), model.adaptable, backend, max_bytes=2**20), constraints)


def run(
    tiny: Tiny,
    numbers: Sequence[int],
    num_slots: int,
    num_blocks: int,
    max_step_tokens: int,
    late: Collection[int] = (),
) -> list[Event]:
    limits = SchedulerLimits(num_slots, num_blocks, 6 * BLOCK_SIZE, max_step_tokens, max_waiting=64)
    requests = [tiny.request(number, is_late=number in late) for number in numbers]
    return serve(tiny.model, tiny.stacks, requests, limits)


@pytest.mark.parametrize(
    ("num_slots", "num_blocks", "max_step_tokens"), [(12, 100, 64), (4, 100, 7), (6, 8, 32)], ids=str
)
def test_constrained_tokens_in_any_company_are_those_alone(
    tiny: Tiny, num_slots: int, num_blocks: int, max_step_tokens: int
) -> None:
    numbers = range(12)
    events = run(tiny, numbers, num_slots, num_blocks, max_step_tokens, late=numbers[::3])
    together = samples_of(events)
    for number in numbers:
        assert together[number] == samples_of(run(tiny, [number], 1, 6, 64))[number], number
    assert any(isinstance(event, Preempted) for event in events) == (num_blocks == 8)
    reasons = {event.request_id: event.reason for event in events if isinstance(event, Finished)}
    for number in numbers:
        check_text(number % len(TEXTS), tiny.text([each.token_id for each in together[number]]), reasons[number])


def check_text(kind: int, text: str, reason: FinishReason) -> None:
    """Check that the text of a request is one that its constraint allows, as far as it came."""
    assert reason in (FinishReason.EOS, FinishReason.LIMIT)
    if kind == 1:
        assert set(text) <= set("(a)")
        assert reason is FinishReason.LIMIT or text.count("(") == text.count(")")
    elif kind == 2 and reason is FinishReason.EOS:
        value = json.loads(text)
        assert isinstance(value["a"], int)
        assert all(isinstance(item, bool) for item in value["b"])
    elif kind == 3:
        assert set(text) <= set("abcdef")
