"""The response cache without HTTP: what makes two requests the same, and its bounds."""

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.batch import Pooling, Sample, SamplingParams, TokenLogprob
from scheduler.cohort import Activation, AdapterId, cohort_key
from scheduler.context_shift import ContextShift
from scheduler.events import FinishReason
from scheduler.request import Request
from server.response_cache import AnswerKey, ResponseCache, StoredAnswer, answer_key
from server.text_rules import TextRules
from tests.server.fakes import (
    byte_tokenizer,
)

TOKENIZER = byte_tokenizer()
TONE, FACTS = AdapterId(0, "tone"), AdapterId(1, "facts")
SAMPLING = SamplingParams(temperature=0.7, seed=5)
REQUEST = Request(0, cohort_key([(TONE, 0.5), (FACTS, 1.0)]), (1, 2, 3), SAMPLING, 8, frozenset({257}))


def key_of(request: Request, stop: tuple[str, ...] = ()) -> AnswerKey:
    return answer_key(request, TextRules(stop), TOKENIZER)


# What makes two requests the same.

OTHER_VALUES: dict[str, object] = {
    "key": cohort_key([(TONE, 0.5), (FACTS, -1.0)]),
    "prompt": (1, 2, 4),
    "sampling": replace(SAMPLING, top_k=3),
    "max_new_tokens": 9,
    "min_new_tokens": 2,
    "shift": ContextShift(0, 5),
    "eog_ids": frozenset({257, 258}),
    "activations": (Activation(1, TONE),),
    "prompt_logprobs": 1,
}
IRRELEVANT: dict[str, object] = {
    "request_id": 7,
    "slot_id_wanted": 2,
    "reuse_prefix": False,
    "reports_progress": True,
    "pooling": Pooling.LAST,  # such a request has no tokens that could be stored
    "token_filter": object(),  # what it allows is told by the name in the sampling
}


def changed(request: Request, name: str, value: Any) -> Request:
    """A request with another value in one field."""
    return replace(request, **{name: value})


def caller_fields() -> list[str]:
    """The fields of a request that its caller sets."""
    names = [field.name for field in dataclasses.fields(Request)]
    return names[: names.index("state")]


def test_every_field_of_a_request_counts_or_is_known_not_to() -> None:
    assert sorted(caller_fields()) == sorted([*OTHER_VALUES, *IRRELEVANT])
    for name, value in OTHER_VALUES.items():
        assert key_of(changed(REQUEST, name, value)) != key_of(REQUEST), name
    for name, value in IRRELEVANT.items():
        assert key_of(changed(REQUEST, name, value)) == key_of(REQUEST), name


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(SamplingParams)])
def test_every_field_of_the_sampling_counts(field: str) -> None:
    value = getattr(SAMPLING, field)
    other: Any = 3 if value is None else ((1, 0.5),) if value == () else "x" if value == "" else value + 1
    assert key_of(replace(REQUEST, sampling=replace(SAMPLING, **{field: other}))) != key_of(REQUEST)


def test_stop_strings_and_what_tokens_stand_for_count() -> None:
    assert key_of(REQUEST, ("a",)) != key_of(REQUEST) != answer_key(REQUEST, TextRules(), replace_piece())
    assert key_of(REQUEST, ("a",)) != key_of(REQUEST, ("b",))


def replace_piece() -> Any:
    vocabulary = TOKENIZER.vocabulary
    return type(TOKENIZER)(replace(vocabulary, pieces=(b"!", *vocabulary.pieces[1:])), TOKENIZER.vocab_size)


def test_at_temperature_0_the_seed_does_not_count() -> None:
    greedy = replace(SAMPLING, temperature=0.0)
    one, other = (replace(REQUEST, sampling=replace(greedy, seed=seed)) for seed in (1, 2))
    assert key_of(one) == key_of(other)


def test_the_same_content_under_another_name_is_the_same_and_another_content_is_not() -> None:
    loaded_again = cohort_key([(AdapterId(8, "tone"), 0.5), (AdapterId(9, "facts"), 1.0)])
    changed = cohort_key([(TONE._replace(digest="new"), 0.5), (FACTS, 1.0)])
    assert key_of(replace(REQUEST, key=loaded_again)) == key_of(REQUEST)
    assert key_of(replace(REQUEST, key=changed)) != key_of(REQUEST)


def test_an_activated_adapter_counts_from_where_it_acts() -> None:
    acting = [replace(REQUEST, activations=(Activation(start, TONE),)) for start in range(3)]
    assert key_of(acting[0]) == key_of(REQUEST)
    assert len({key_of(request) for request in acting}) == 3


digests = st.sampled_from(["a", "b"])
scales = st.sampled_from([0.0, 0.5, 1.0])
asks = st.fixed_dictionaries(
    {
        "adapters": st.tuples(st.tuples(digests, scales), st.tuples(digests, scales)),
        "start": st.integers(0, 2),
        "prompt": st.lists(st.integers(0, 1), min_size=3, max_size=4).map(tuple),
        "temperature": st.sampled_from([0.0, 0.5]),
        "seed": st.integers(0, 1),
        "num_logprobs": st.sampled_from([None, 0, 2]),
        "prompt_logprobs": st.sampled_from([None, 0, 2]),
        "bias": st.sampled_from([(), ((1, 1.0),)]),
        "max_new_tokens": st.integers(1, 2),
        "eog_ids": st.sampled_from([frozenset(), frozenset({257})]),
        "stop": st.sampled_from([(), ("a",), ("a", "b")]),
        "load_id": st.integers(0, 3),
        "slot_id_wanted": st.sampled_from([None, 1]),
    }
)


def request_of(ask: dict[str, Any]) -> Request:
    """A request; adapter ids are of some load, so the same content has many."""
    ids = [AdapterId(2 * ask["load_id"] + place, digest) for place, (digest, _) in enumerate(ask["adapters"])]
    key = cohort_key((adapter, scale) for adapter, (_, scale) in zip(ids, ask["adapters"], strict=True))
    sampling = SamplingParams(
        temperature=ask["temperature"], seed=ask["seed"], num_logprobs=ask["num_logprobs"], logit_bias=ask["bias"]
    )
    activations = (Activation(ask["start"], ids[0]),) if key and key[0][0] == ids[0] else ()
    return Request(
        0,
        key,
        ask["prompt"],
        sampling,
        ask["max_new_tokens"],
        ask["eog_ids"],
        slot_id_wanted=ask["slot_id_wanted"],
        prompt_logprobs=ask["prompt_logprobs"],
        activations=activations,
    )


def meaning(ask: dict[str, Any]) -> object:
    """What decides the tokens, said in another way than the key says it: the list at each position of the prompt."""
    lists = []
    for position in range(3):
        acting = [
            pair for place, pair in enumerate(ask["adapters"]) if pair[1] and (place == 1 or ask["start"] <= position)
        ]
        lists.append(tuple(acting))
    seed = 0 if ask["temperature"] == 0 else ask["seed"]
    names = ("prompt", "temperature", "num_logprobs", "prompt_logprobs", "bias", "max_new_tokens", "eog_ids", "stop")
    rest = [ask[name] for name in names]
    return (lists, seed, rest)


@settings(deadline=None, max_examples=300)
@given(asks, asks)
def test_two_requests_have_one_key_exactly_where_they_mean_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    # Most pairs differ in much: compare with a neighbour too, which differs in one field.
    for name in one:
        neighbour = one | {name: other[name]}
        are_same = key_of(request_of(one), one["stop"]) == key_of(request_of(neighbour), neighbour["stop"])
        assert are_same == (meaning(one) == meaning(neighbour)), name


# The bounds.


def stored(num_tokens: int, num_logprobs: int = 0) -> StoredAnswer:
    top = tuple(TokenLogprob(i, -1.0) for i in range(num_logprobs))
    return StoredAnswer(tuple(Sample(0, i, -1.0, top) for i in range(num_tokens)), FinishReason.LIMIT)


def test_the_answer_used_longest_ago_goes_first() -> None:
    cache = ResponseCache(2, 2**20)
    keys = [key_of(replace(REQUEST, prompt=(number,))) for number in range(3)]
    for key in keys[:2]:
        cache.put(key, stored(1))
    assert cache.get(keys[0]) is not None
    cache.put(keys[2], stored(1))
    assert [cache.get(key) is not None for key in keys] == [True, False, True]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(0, 5)), max_size=40))
def test_number_and_memory_stay_within_their_bounds(puts: list[tuple[int, int, int]]) -> None:
    cache = ResponseCache(3, 20_000)
    for put in puts:
        key = key_of(replace(REQUEST, prompt=put))
        cache.put(key, stored(*put[1:]))
        assert len(cache) <= 3
        assert 0 <= cache.num_bytes <= 20_000
        found = cache.get(key)
        assert found is None or len(found.samples) == put[1]
    for _ in range(2):  # whatever was there has gone, and its bytes with it
        for number in range(3):
            cache.put(key_of(replace(REQUEST, prompt=(number, 99))), stored(0))
        sizes = cache.num_bytes
    assert sizes == 3 * single_bytes((0, 99))


def single_bytes(prompt: tuple[int, ...]) -> int:
    cache = ResponseCache(1, 20_000)
    cache.put(key_of(replace(REQUEST, prompt=prompt)), stored(0))
    return cache.num_bytes


def test_an_answer_larger_than_the_cache_is_not_stored() -> None:
    cache = ResponseCache(3, 2_000)
    cache.put(key_of(REQUEST), stored(1))
    cache.put(key_of(replace(REQUEST, prompt=(9,))), stored(1000))
    assert len(cache) == 1


def test_a_cache_of_no_answers_is_off() -> None:
    cache = ResponseCache(0, 2**20)
    cache.put(key_of(REQUEST), stored(1))
    assert not cache.is_on
    assert len(cache) == 0
