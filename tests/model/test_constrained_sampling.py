"""Constrained rows: the sampler takes a filter for forbidden tokens, and a model's tokens don't depend on company."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.backend import choose_backend
from model.constraint import Constraint, ConstraintText, Syntax
from model.kv_cache import KVCache
from model.language_model import LanguageModel, load_language_model
from model.lora_cache import LoraCache
from model.runner import ModelRunner
from model.sampler import sample
from model.tokenizer import Tokenizer, load_tokenizer
from model.weights import load_checkpoint
from scheduler.batch import BLOCK_SIZE, Row, RowFault, Sample, SamplerChain, SamplingParams
from scheduler.cohort import BASE
from scheduler.core import Scheduler, SchedulerLimits
from scheduler.events import Event, Finished, FinishReason, Preempted, TokenSampled
from scheduler.request import Request
from tests.model.constraint_parts import compile_text
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


@dataclass(frozen=True)
class Tiny:
    """A random model and its tokenizer."""

    model: LanguageModel
    tokenizer: Tokenizer
    stacks: LoraCache
    constraints: Sequence[Constraint | None]

    def request(self, number: int) -> Request:
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
            token_filter=None if constraint is None else constraint.begin(),
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


def run(tiny: Tiny, numbers: Sequence[int], num_slots: int, num_blocks: int, max_step_tokens: int) -> list[Event]:
    runner = ModelRunner(tiny.model, KVCache(tiny.model.config, num_blocks, tiny.model.backend), tiny.stacks)
    limits = SchedulerLimits(num_slots, num_blocks, 6 * BLOCK_SIZE, max_step_tokens, max_waiting=64)
    scheduler, waiting, now = Scheduler(limits), [tiny.request(number) for number in numbers], 0.0
    while waiting or scheduler.num_requests:
        for arriving in waiting[:2]:
            scheduler.add(arriving, now)
        del waiting[:2]
        batch = scheduler.plan(now)
        assert batch is not None
        scheduler.commit(runner.execute(batch), now)
        now += 0.01
    return scheduler.take_events()


def samples_of(events: Sequence[Event]) -> dict[int, list[Sample]]:
    samples: dict[int, list[Sample]] = {}
    for event in events:
        if isinstance(event, TokenSampled):
            samples.setdefault(event.request_id, []).append(event.sample)
    return samples


@pytest.mark.parametrize(
    ("num_slots", "num_blocks", "max_step_tokens"), [(12, 100, 64), (4, 100, 7), (6, 8, 32)], ids=str
)
def test_constrained_tokens_in_any_company_are_those_alone(
    tiny: Tiny, num_slots: int, num_blocks: int, max_step_tokens: int
) -> None:
    numbers = range(12)
    events = run(tiny, numbers, num_slots, num_blocks, max_step_tokens)
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
