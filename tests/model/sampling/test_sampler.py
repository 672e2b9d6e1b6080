"""What the sampler chooses, against a reference written from the definitions over the whole vocabulary."""

import math
import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from model.sampling.random import uniform
from model.sampling.sampler import sample
from scheduler.batch import Row, RowFault, Sample, SamplingParams
from scheduler.request import Request

GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
"""No filter, no penalty: the model's own distribution."""


def row(params: SamplingParams, *, position: int = 10, history: tuple[int, ...] = (), request_id: int = 1) -> Row:
    return Row(request_id, (0,), position - 1, (0,), params, history)


def choose(logits: list[float] | npt.NDArray[np.float32], a_row: Row) -> Sample:
    [chosen] = sample(torch.tensor(np.array([logits], dtype=np.float32)), [a_row])
    assert isinstance(chosen, Sample), chosen
    return chosen


def chosen_ids(logits: torch.Tensor, rows: list[Row]) -> list[int]:
    return [chosen.token_id for chosen in sample(logits, rows) if isinstance(chosen, Sample)]


def reference(raw: npt.NDArray[np.float32], a_row: Row) -> int:
    """The chain over the whole vocabulary, sorted whole, one definition per line."""
    p = a_row.sampling
    assert p is not None
    logits = raw.copy()
    for token_id, bias in p.logit_bias:
        logits[token_id] += np.float32(bias)
    if p.uses_penalties:
        for token_id in set(a_row.history):
            x = float(logits[token_id])
            x = x / p.repeat_penalty if x > 0 else x * p.repeat_penalty
            logits[token_id] = x - a_row.history.count(token_id) * p.frequency_penalty - p.presence_penalty
    order = np.lexsort((np.arange(logits.size), -logits))
    if p.temperature == 0:
        return int(order[0])
    if not 0 < p.top_k < logits.size and p.top_p == 1 and p.min_p == 0:
        order = np.arange(logits.size)
    elif p.top_k > 0:
        order = order[: p.top_k]
    relative = logits[order].astype(np.float64) - float(logits.max())
    probabilities = np.exp(relative) / np.exp(relative).sum()
    keep = len(order)
    if p.top_p < 1:
        reached = np.flatnonzero(np.cumsum(probabilities) >= p.top_p)[:1] + 1
        keep = min([keep, *(max(int(n), p.min_keep) for n in reached)])
    if p.min_p > 0:
        likely = int((probabilities >= p.min_p * probabilities[0]).sum())
        keep = min(keep, max(likely, p.min_keep, 1))
    hot = np.exp(relative[:keep] / p.temperature)
    below = np.cumsum(hot) / hot.sum()
    return int(order[np.flatnonzero(uniform(p.seed, a_row.end) < below)[0]])


fractions = st.floats(0.013, 0.987)
params_strategy = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(0.0), st.floats(0.05, 3.0)),
    top_k=st.integers(0, 60),
    top_p=st.one_of(st.just(1.0), fractions),
    min_p=st.one_of(st.just(0.0), fractions),
    min_keep=st.integers(0, 5),
    repeat_penalty=st.floats(0.5, 2.0),
    presence_penalty=st.floats(-2.0, 2.0),
    frequency_penalty=st.floats(-2.0, 2.0),
    logit_bias=st.lists(st.tuples(st.integers(0, 49), st.one_of(st.just(-math.inf), st.floats(-9, 9))), max_size=4).map(
        tuple
    ),
    seed=st.integers(0, 2**32 - 1),
)


@settings(max_examples=600, deadline=None)
@given(
    params=params_strategy,
    noise=st.integers(0, 2**32 - 1),
    coarse=st.booleans(),
    position=st.integers(1, 10**6),
    history=st.lists(st.integers(0, 49), max_size=30).map(tuple),
)
def test_every_chain_agrees_with_its_definition(
    params: SamplingParams, noise: int, coarse: bool, position: int, history: tuple[int, ...]
) -> None:
    logits = np.random.default_rng(noise).normal(0, 3, 50).astype(np.float32)
    if coarse:  # many equal logits, as a model computed in bfloat16 has
        logits = np.round(logits)
    a_row = row(params, position=position, history=history)

    assert choose(logits, a_row).token_id == reference(logits, a_row)


def top_p_is_a_matter_of_rounding(logits: npt.NDArray[np.float32], top_k: int, top_p: float) -> bool:
    """Whether some of the most likely tokens have just about the mass that top-p asks for, as equal ones can."""
    kept = np.sort(logits.astype(np.float64))[::-1][: top_k or None]
    masses = np.cumsum(np.exp(kept - kept[0]))
    return bool(np.abs(masses / masses[-1] - top_p).min() < 1e-9)


@settings(max_examples=300, deadline=None)
@given(
    params=params_strategy,
    top_k=st.one_of(st.integers(0, 60), st.integers(61, 4000)),
    noise=st.integers(0, 2**32 - 1),
    vocab_size=st.one_of(st.integers(50, 700), st.integers(50, 5000)),
    spread=st.sampled_from([0.0, 0.1, 3.0, 30.0]),
    step=st.sampled_from([0.0, 1.0]),
    has_forbidden=st.booleans(),
)
def test_every_chain_agrees_with_its_definition_in_vocabularies_of_any_size(
    params: SamplingParams,
    top_k: int,
    noise: int,
    vocab_size: int,
    spread: float,
    step: float,
    has_forbidden: bool,
) -> None:
    random = np.random.default_rng(noise)
    logits = random.normal(0, spread, vocab_size).astype(np.float32)
    if step:
        logits = np.round(logits)
    if has_forbidden:
        logits[random.permutation(vocab_size)[: vocab_size // 2]] = -np.inf
    a_row = row(replace(params, top_k=top_k, logit_bias=()), history=(1, 2, 2))
    assume(not top_p_is_a_matter_of_rounding(logits, top_k, params.top_p))

    assert choose(logits, a_row).token_id == reference(logits, a_row)


@settings(max_examples=100, deadline=None)
@given(
    vocab_size=st.integers(1, 3000),
    place=st.integers(0, 2999),
    value=st.sampled_from([math.nan, math.inf]),
    params=params_strategy,
)
def test_what_is_no_number_is_found_wherever_it_stands(
    vocab_size: int, place: int, value: float, params: SamplingParams
) -> None:
    logits = np.random.default_rng(place).normal(0, 3, (1, vocab_size)).astype(np.float32)
    logits[0, place % vocab_size] = value

    assert isinstance(sample(torch.tensor(logits), [row(replace(params, logit_bias=()))])[0], RowFault)


def test_the_draws_of_many_seeds_have_the_models_distribution() -> None:
    probabilities = np.array([0.4, 0.25, 0.2, 0.1, 0.05])
    logits = torch.tensor(np.log(probabilities[None]), dtype=torch.float32).expand(8000, -1)
    rows = [row(replace(PLAIN, seed=seed)) for seed in range(8000)]

    counts = np.bincount(chosen_ids(logits, rows), minlength=5)

    chi_squared = ((counts - 8000 * probabilities) ** 2 / (8000 * probabilities)).sum()
    assert chi_squared < 18.5, counts  # 4 degrees of freedom: exceeded once in a thousand


def test_the_draws_of_one_seed_at_many_positions_have_the_distribution_at_that_temperature() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]]).expand(8000, -1)
    rows = [row(replace(PLAIN, temperature=2.0, seed=7), position=position) for position in range(1, 8001)]

    counts = np.bincount(chosen_ids(logits, rows), minlength=3)

    expected = 8000 * np.exp([1.0, 0.5, 0.0]) / np.exp([1.0, 0.5, 0.0]).sum()
    assert ((counts - expected) ** 2 / expected).sum() < 13.8, counts  # 2 degrees of freedom


def test_uniform_numbers_are_fixed_forever() -> None:
    # Changing the hash would change what every seeded request answers.
    assert [uniform(0, 0), uniform(1, 0), uniform(0, 1), uniform(2**32 - 1, 4096)] == [
        0.6524484863740322,
        0.36818951565166946,
        0.7012121095215252,
        0.07656319026307501,
    ]


def test_neighbouring_seeds_do_not_share_a_shifted_stream() -> None:
    streams = [[uniform(seed, position) for position in range(64)] for seed in range(64)]

    assert len({u for stream in streams for u in stream}) == 64 * 64
    assert np.abs(np.asarray(np.corrcoef(streams))[np.triu_indices(64, 1)]).max() < 0.6


@settings(max_examples=50, deadline=None)
@given(params=st.lists(params_strategy, min_size=2, max_size=6), noise=st.integers(0, 2**32 - 1))
def test_a_rows_sample_is_the_same_alone_and_among_any_neighbours(params: list[SamplingParams], noise: int) -> None:
    logits = torch.tensor(np.random.default_rng(noise).normal(0, 3, (len(params), 50)).astype(np.float32))
    rows = [
        row(replace(p, num_logprobs=3), position=i + 1, history=(i, 2 * i), request_id=i) for i, p in enumerate(params)
    ]

    together = sample(logits, rows)

    assert together == [sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(len(rows))]
    assert together[::-1] == sample(logits.flip(0), rows[::-1])


def test_rows_of_a_real_vocabulary_that_threads_share_are_chosen_for_as_alone() -> None:
    logits = torch.tensor(np.random.default_rng(1).normal(0, 3, (12, 49_152)).astype(np.float32))
    kinds = [GREEDY, SamplingParams(), PLAIN, replace(PLAIN, min_p=0.2)]
    rows = [row(replace(kinds[i % 4], seed=i), request_id=i) for i in range(12)]

    assert sample(logits, rows) == [sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(12)]


def test_the_logits_are_left_as_they_were() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    before = logits.clone()

    sample(logits, [row(replace(GREEDY, repeat_penalty=2.0, logit_bias=((0, 5.0),)), history=(2,))])

    assert torch.equal(logits, before)


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    assert choose([0.0, 3.0, 3.0, -1.0], row(GREEDY)).token_id == 1


def test_equal_logits_at_the_edge_of_top_k_are_kept_by_id() -> None:
    params = replace(PLAIN, top_k=2)

    chosen = {choose([1.0, 5.0, 1.0, 1.0], row(replace(params, seed=seed))).token_id for seed in range(300)}

    assert chosen == {0, 1}


def test_negative_zero_is_no_smaller_than_zero() -> None:
    chosen = {choose([-0.0, 0.0, -9.0], row(replace(PLAIN, top_k=1, seed=seed))).token_id for seed in range(20)}

    assert chosen == {0}


def test_min_keep_overrules_top_p_and_min_p() -> None:
    logits = [9.0, 2.0, 1.0, 0.0]
    params = replace(PLAIN, top_p=0.01, min_p=0.99, temperature=50.0)

    without = {choose(logits, row(replace(params, seed=seed))).token_id for seed in range(200)}
    with_three = {choose(logits, row(replace(params, seed=seed, min_keep=3))).token_id for seed in range(200)}

    assert (without, with_three) == ({0}, {0, 1, 2})


def test_a_forbidden_token_is_never_drawn() -> None:
    params = replace(PLAIN, temperature=100.0, min_keep=4, logit_bias=((1, -math.inf), (3, -math.inf)))

    chosen = {choose([0.0, 9.0, 0.0, 9.0], row(replace(params, seed=seed))).token_id for seed in range(200)}

    assert chosen == {0, 2}


def test_a_token_without_logit_is_never_drawn_whatever_is_added_to_it() -> None:
    # What an adapter list adds to the vocabulary without a row in the head.
    params = replace(PLAIN, temperature=100.0, min_keep=3, presence_penalty=-2.0, logit_bias=((1, 99.0),))

    chosen = {choose([0.0, -math.inf, 0.5], row(replace(params, seed=seed), history=(1,))) for seed in range(200)}

    assert {one.token_id for one in chosen} == {0, 2}


def test_tokens_beyond_the_vocabulary_are_not_penalised() -> None:
    # A prompt may hold a token that only a later list of the request knows.
    params = replace(GREEDY, repeat_penalty=2.0, presence_penalty=1.0)

    assert choose([3.0, 2.5], row(params, history=(0, 7, 7, 2))).token_id == 1
    assert choose([3.0, 2.5], row(params, history=(7, 2))).token_id == 0


def test_the_repeat_penalty_pushes_a_seen_token_down_whatever_its_sign() -> None:
    params = replace(GREEDY, repeat_penalty=2.0)

    assert choose([3.0, 2.0], row(params, history=(0,))).token_id == 1
    assert choose([-2.0, -3.0], row(params, history=(0,))).token_id == 1
    assert choose([3.0, 2.0], row(params, history=(1,))).token_id == 0


def test_presence_counts_once_and_frequency_every_time() -> None:
    history = (0, 0, 0, 1)

    assert choose([5.0, 4.5], row(replace(GREEDY, presence_penalty=1.0), history=history)).token_id == 0
    assert choose([5.0, 4.5], row(replace(GREEDY, frequency_penalty=1.0), history=history)).token_id == 1


@pytest.mark.parametrize(("last_n", "expected"), [(0, 0), (-1, 1), (1, 0), (2, 1)])
def test_penalties_look_back_as_far_as_repeat_last_n(last_n: int, expected: int) -> None:
    params = replace(GREEDY, repeat_penalty=2.0, repeat_last_n=last_n)
    request = Request(request_id=1, key=(), prompt=(2, 2, 0), sampling=params, max_new_tokens=4, output=[2])

    assert choose([3.0, 2.0, -9.0], row(params, history=request.history())).token_id == expected


def test_a_repeated_bias_counts_twice() -> None:
    assert choose([0.0, 3.0], row(replace(GREEDY, logit_bias=((0, 2.0), (0, 2.0))))).token_id == 0


def test_logprobs_are_the_models_own_before_bias_and_penalties() -> None:
    params = replace(GREEDY, num_logprobs=2, repeat_penalty=9.0, logit_bias=((0, 50.0),))
    expected = torch.log_softmax(torch.tensor([1.0, 2.0, 3.0, 3.0]), dim=0).tolist()

    chosen = choose([1.0, 2.0, 3.0, 3.0], row(params, history=(3,)))

    assert chosen.token_id == 0
    assert chosen.logprob == pytest.approx(expected[0])
    assert [top.token_id for top in chosen.top_logprobs] == [2, 3]
    assert [top.logprob for top in chosen.top_logprobs] == pytest.approx(expected[2:])


def test_zero_logprobs_still_name_the_sampled_tokens_own() -> None:
    chosen = choose([0.0, 0.0], row(replace(GREEDY, num_logprobs=0)))

    assert chosen.logprob == pytest.approx(math.log(0.5))
    assert chosen.top_logprobs == ()


def test_more_logprobs_than_tokens_are_all_tokens() -> None:
    assert len(choose([0.0, 1.0], row(replace(GREEDY, num_logprobs=20))).top_logprobs) == 2


def test_no_logprobs_are_computed_unless_wanted() -> None:
    assert choose([0.0, 1.0], row(GREEDY)) == Sample(request_id=1, token_id=1)


@pytest.mark.parametrize(
    ("logits", "bias", "fault"),
    [
        ([0.0, math.nan], (), "the logits hold NaN"),
        ([-math.inf, -math.inf], (), "every logit is -inf"),
        ([0.0, 1.0], ((0, -math.inf), (1, -math.inf)), "logit_bias forbids every token"),
        ([0.0, math.inf], (), "the largest logit is infinite"),
        ([0.0, 1.0], ((0, 1e39),), "the largest logit is infinite"),
        ([0.0, 1.0], ((2, 1.0),), "logit_bias names token 2, the vocabulary has 2"),
        ([0.0, 1.0], ((-1, 1.0),), "logit_bias names token -1, the vocabulary has 2"),
    ],
)
@pytest.mark.parametrize("params", [GREEDY, PLAIN, replace(PLAIN, top_k=1)])
def test_a_row_without_a_token_to_choose_is_at_fault(
    logits: list[float], bias: tuple[tuple[int, float], ...], fault: str, params: SamplingParams
) -> None:
    tensor = torch.tensor([logits], dtype=torch.float32)

    [outcome] = sample(tensor, [row(replace(params, logit_bias=bias), request_id=7)])

    assert isinstance(outcome, RowFault)
    assert outcome.request_id == 7
    assert re.match(fault, outcome.message)


def test_a_faulty_row_leaves_the_others_unharmed() -> None:
    logits = torch.tensor([[math.nan, 0.0], [0.0, 1.0], [0.0, math.nan]])
    rows = [row(GREEDY, request_id=4), row(GREEDY, request_id=5), row(GREEDY, request_id=6)]

    outcomes = sample(logits, rows)

    assert [type(outcome) for outcome in outcomes] == [RowFault, Sample, RowFault]
    assert outcomes[1] == Sample(5, 1)


@pytest.mark.parametrize("params", [PLAIN, replace(PLAIN, top_p=0.97), replace(PLAIN, min_p=0.001)])
def test_the_whole_vocabulary_of_a_real_model_is_sampled_exactly(params: SamplingParams) -> None:
    logits = np.random.default_rng(0).normal(0, 2, 151_936).astype(np.float32)
    for seed in range(5):
        a_row = row(replace(params, seed=seed))

        assert choose(logits, a_row).token_id == reference(logits, a_row)


@settings(max_examples=60, deadline=None)
@given(
    vocab_size=st.integers(1, 9000),
    count=st.integers(1, 300),
    noise=st.integers(0, 2**32 - 1),
    step=st.sampled_from([0.0, 0.25, 4.0]),
)
def test_the_most_likely_of_any_vocabulary_are_those_of_a_whole_sort(
    vocab_size: int, count: int, noise: int, step: float
) -> None:
    logits = np.random.default_rng(noise).normal(0, 3, vocab_size).astype(np.float32)
    if step:  # with equal logits at the edge
        logits = np.round(logits / np.float32(step)) * np.float32(step)
    logits[: vocab_size // 3] = -np.inf
    sorted_ids = np.lexsort((np.arange(vocab_size), -logits))[: min(count, vocab_size)]

    chosen = choose(logits, row(replace(GREEDY, num_logprobs=count)))

    assert [top.token_id for top in chosen.top_logprobs] == sorted_ids.tolist()
