"""Chains of any samplers in any order, against plain references; what they remember; what they cost nobody else."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.sampling.random import uniform
from model.sampling.sampler import sample
from scheduler.batch import DEFAULT_SAMPLERS, Row, RowFault, Sample, Sampler, SamplerChain, SamplingParams, TokenTexts
from scheduler.request import Request
from tests.model.sampler_reference import run

V = 40
PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def row(
    params: SamplingParams,
    *,
    position: int = 10,
    history: tuple[int, ...] = (),
    state: tuple[float, ...] = (),
    request_id: int = 1,
) -> Row:
    return Row(request_id, (0,), position - 1, (0,), params, history, state)


def choose(logits: list[float], a_row: Row) -> Sample:
    [chosen] = sample(torch.tensor([logits], dtype=torch.float32), [a_row])
    assert isinstance(chosen, Sample), chosen
    return chosen


tokens = st.integers(0, V - 1)
breakers = st.dictionaries(
    st.integers(0, 3), st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), min_size=1, max_size=2).map(tuple)
)
chains = st.builds(
    SamplerChain,
    samplers=st.one_of(
        st.just(DEFAULT_SAMPLERS),
        st.permutations(list(Sampler)).map(tuple),
        st.lists(st.sampled_from(list(Sampler)), max_size=12).map(tuple),
    ),
    dynatemp_range=st.one_of(st.just(0.0), st.floats(0.05, 1.5)),
    dynatemp_exponent=st.floats(0.2, 3.0),
    typical_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
    top_n_sigma=st.one_of(st.just(-1.0), st.floats(0.1, 3.0)),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.floats(0.01, 0.6),
    dry_multiplier=st.one_of(st.just(0.0), st.floats(-1.0, 3.0)),
    dry_base=st.floats(1.0, 3.0),
    dry_allowed_length=st.integers(0, 4),
    dry_penalty_last_n=st.integers(0, 40),
    dry_breakers=breakers,
    token_texts=st.builds(
        TokenTexts,
        pieces=st.lists(st.text("ab", max_size=3).map(str.encode), min_size=V, max_size=V),
        eog_ids=st.lists(tokens, max_size=3, unique=True).map(tuple),
        end_id=st.one_of(st.none(), tokens),
    ),
    adaptive_target=st.one_of(st.just(-1.0), st.floats(0.0, 1.0)),
    adaptive_decay=st.floats(0.0, 0.99),
)
params_strategy = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(0.0), st.floats(0.2, 2.0)),
    top_k=st.integers(0, V + 5),
    top_p=st.one_of(st.just(1.0), st.floats(0.1, 0.99)),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 0.9)),
    min_keep=st.integers(0, 4),
    repeat_last_n=st.integers(-1, 30),
    repeat_penalty=st.floats(0.7, 1.5),
    presence_penalty=st.floats(-1.0, 1.0),
    frequency_penalty=st.floats(-0.5, 0.5),
    logit_bias=st.lists(st.tuples(tokens, st.one_of(st.just(-math.inf), st.floats(-4, 4))), max_size=2).map(tuple),
    seed=st.integers(0, 2**32 - 1),
    num_logprobs=st.integers(0, V),
    post_sampling_probs=st.just(True),
)


def seen(params: SamplingParams, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """The history that a request of these tokens brings."""
    return Request(request_id=1, key=(), prompt=tokens, sampling=params, max_new_tokens=1).history()


def agrees(logits: list[float], a_row: Row) -> None:
    """Compare the token, the probabilities it was drawn from, and the state with the reference."""
    expected = run(logits, a_row)
    chosen = choose(logits, a_row)
    of = expected.probabilities
    assert chosen.token_id == expected.token_id
    assert chosen.logprob == pytest.approx(math.log(of[expected.token_id]), abs=1e-6)
    assert {top.token_id for top in chosen.top_logprobs} <= set(of)
    assert [math.exp(top.logprob) for top in chosen.top_logprobs] == pytest.approx(
        sorted(of.values(), reverse=True)[: len(chosen.top_logprobs)], abs=1e-6
    )
    assert chosen.sampler_state == pytest.approx(expected.state)


@settings(max_examples=500, deadline=None)
@given(
    params=params_strategy,
    chain=chains,
    noise=st.integers(0, 2**32 - 1),
    position=st.integers(1, 10**5),
    history=st.lists(st.integers(0, 5), max_size=45).map(tuple),
    few=st.lists(st.integers(0, 3), min_size=1, max_size=45).map(tuple),
)
def test_every_chain_is_what_its_definition_says(
    params: SamplingParams,
    chain: SamplerChain,
    noise: int,
    position: int,
    history: tuple[int, ...],
    few: tuple[int, ...],
) -> None:
    logits = np.random.default_rng(noise).normal(0, 2, V).astype(np.float32).tolist()
    with_chain = replace(params, chain=chain)
    state = (0.3, 1.2) if noise % 2 else ()

    agrees(logits, row(with_chain, position=position, history=seen(with_chain, history + few), state=state))


@settings(max_examples=300, deadline=None)
@given(
    version=st.sampled_from([1, 2]),
    tau=st.floats(0.3, 9.0),
    eta=st.floats(0.01, 1.0),
    mu=st.one_of(st.none(), st.floats(-2.0, 20.0)),
    temperature=st.one_of(st.just(0.0), st.floats(0.3, 2.0)),
    noise=st.integers(0, 2**32 - 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_mirostat_is_what_its_definition_says(
    version: int, tau: float, eta: float, mu: float | None, temperature: float, noise: int, seed: int
) -> None:
    # Vocabularies with more tokens than the law is fitted to, and filters that Mirostat does not let run.
    logits = np.random.default_rng(noise).normal(0, 2, 150).astype(np.float32).tolist()
    chain = SamplerChain(mirostat=version, mirostat_tau=tau, mirostat_eta=eta, typical_p=0.1)
    params = SamplingParams(
        temperature, top_k=1, seed=seed, num_logprobs=150, post_sampling_probs=True, chain=chain, repeat_penalty=2.0
    )

    agrees(logits, row(params, history=(1, 2), state=() if mu is None else (mu,)))


@settings(max_examples=200, deadline=None)
@given(params=params_strategy, noise=st.integers(0, 2**32 - 1), history=st.lists(st.integers(0, 9)).map(tuple))
def test_the_usual_chain_is_the_same_in_numpy_as_in_kernels(
    params: SamplingParams, noise: int, history: tuple[int, ...]
) -> None:
    # A sampler that keeps all makes the chain an unusual one.
    logits = np.random.default_rng(noise).normal(0, 2, V + 20).astype(np.float32).tolist()
    params = replace(params, top_k=params.top_k or 9)
    in_numpy = replace(params, chain=SamplerChain(top_n_sigma=1e6))

    in_kernels, by_chain = (choose(logits, row(way, history=seen(way, history))) for way in (params, in_numpy))

    assert in_kernels.token_id == by_chain.token_id
    assert in_kernels.logprob == pytest.approx(by_chain.logprob, abs=1e-5)
    assert [top.token_id for top in in_kernels.top_logprobs] == [top.token_id for top in by_chain.top_logprobs]


def test_a_chain_that_changes_nothing_is_no_chain() -> None:
    tuned = SamplerChain(dry_base=3.0, mirostat_tau=1.0, xtc_threshold=0.5, dynatemp_exponent=2.0, adaptive_decay=0.1)
    usual = (Sampler.DRY, Sampler.PENALTIES, Sampler.TOP_K, Sampler.XTC, Sampler.TOP_P, Sampler.MIN_P)

    assert tuned.is_usual
    assert SamplerChain((*usual, Sampler.TEMPERATURE)).is_usual
    assert not SamplerChain(usual).is_usual
    assert not SamplerChain((Sampler.TEMPERATURE, *usual)).is_usual


@pytest.mark.parametrize(
    "chain",
    [
        SamplerChain(dynatemp_range=0.5),
        SamplerChain(typical_p=0.5),
        SamplerChain(top_n_sigma=1.0),
        SamplerChain(xtc_probability=0.5),
        SamplerChain(dry_multiplier=1.0),
        SamplerChain(mirostat=1),
        SamplerChain((*DEFAULT_SAMPLERS, Sampler.ADAPTIVE_P), adaptive_target=0.5),
        SamplerChain(()),
    ],
)
def test_a_chain_that_changes_something_depends_on_the_seed_even_at_temperature_0(chain: SamplerChain) -> None:
    assert SamplingParams(temperature=0.0).is_greedy
    assert not SamplingParams(temperature=0.0, chain=chain).is_greedy


def test_without_a_sampler_the_models_own_distribution_is_drawn_from() -> None:
    params = SamplingParams(temperature=0.0, top_k=1, chain=SamplerChain(()), num_logprobs=9, post_sampling_probs=True)
    expected = torch.log_softmax(torch.tensor([0.0, 1.0, 2.0]), 0).tolist()

    tokens = {choose([0.0, 1.0, 2.0], row(replace(params, seed=seed))).token_id for seed in range(100)}
    tops = choose([0.0, 1.0, 2.0], row(params)).top_logprobs

    assert tokens == {0, 1, 2}
    assert [top.logprob for top in tops] == pytest.approx(expected[::-1])


def test_xtc_leaves_out_the_likely_as_often_as_it_is_told() -> None:
    chain = SamplerChain(xtc_probability=0.3, xtc_threshold=0.1)
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()

    chosen = [choose(logits, row(replace(PLAIN, seed=seed, chain=chain))).token_id for seed in range(4000)]

    # Left out are 0 and 1, in three of ten cases: then 2 comes with 0.15 / 0.2.
    shares = np.bincount(chosen, minlength=4) / 4000
    assert shares == pytest.approx([0.35, 0.21, 0.105 + 0.225, 0.035 + 0.075], abs=0.03)


def test_mirostat_comes_to_the_surprise_that_is_asked_for() -> None:
    for version in (1, 2):
        chain = SamplerChain(mirostat=version, mirostat_tau=3.0, mirostat_eta=0.1)
        params = replace(PLAIN, chain=chain, num_logprobs=0, post_sampling_probs=True)
        state: tuple[float, ...] = ()
        surprises = []
        for position in range(1, 600):
            ranks = np.random.default_rng(position).permutation(500) + 1
            chosen = choose((-1.1 * np.log(ranks)).tolist(), row(params, position=position, state=state))
            assert chosen.logprob is not None
            surprises.append(-chosen.logprob / math.log(2))
            state = chosen.sampler_state
        assert np.mean(surprises[100:]) == pytest.approx(3.0, abs=0.3), version


def test_adaptive_p_moves_against_what_it_has_drawn() -> None:
    chain = SamplerChain((Sampler.ADAPTIVE_P,), adaptive_target=0.3, adaptive_decay=0.5)
    params = replace(PLAIN, chain=chain, num_logprobs=3, post_sampling_probs=True)
    logits = np.log([0.6, 0.3, 0.1]).tolist()

    after_likely = choose(logits, row(params, state=(1.2, 2.0)))
    after_unlikely = choose(logits, row(params, state=(0.2, 2.0)))

    assert after_likely.top_logprobs[0].token_id == 2
    assert after_unlikely.top_logprobs[0].token_id == 0


@pytest.mark.parametrize(
    ("history", "penalised"),
    [
        ((1, 2, 3, 9, 1, 2), {3: 2.0}),
        ((5, 1, 2, 3, 9, 5, 1, 2), {3: 4.0}),
        ((1, 2, 3, 9, 1, 2, 4, 9, 1, 2), {3: 2.0, 4: 4.0}),
        ((2, 3, 9, 2), {}),
        ((7, 7, 7, 7), {7: 4.0}),
        ((1, 2, 3, 8, 1, 2), {3: 2.0}),
        ((1, 8, 2, 3, 9, 1, 8, 2), {}),
        ((1, 2, 8, 9, 1, 2), {}),
        ((1, 2, 6, 5, 3, 9, 1, 2, 6, 5), {}),
        ((1, 2, 6, 7, 3, 9, 1, 2, 6, 7), {3: 8.0}),
    ],
)
def test_dry_penalises_what_would_lengthen_a_repetition(history: tuple[int, ...], penalised: dict[int, float]) -> None:
    # 8 is a breaker, and so is 6 before 5.
    chain = SamplerChain(dry_multiplier=2.0, dry_base=2.0, dry_breakers={8: ((),), 6: ((5,),)})
    params = replace(PLAIN, chain=chain, num_logprobs=10, post_sampling_probs=True)

    chosen = choose([0.0] * 10, row(params, history=history))

    logits = {top.token_id: top.logprob for top in chosen.top_logprobs}
    free = max(logits.values())
    assert {token: free - logit for token, logit in logits.items() if free - logit > 1e-9} == pytest.approx(penalised)


def test_dry_takes_as_much_as_float32_holds_and_no_more() -> None:
    chain = SamplerChain(dry_multiplier=1e6, dry_base=1e6, dry_penalty_last_n=4000)
    params = replace(PLAIN, chain=replace(chain, samplers=(Sampler.DRY, Sampler.DRY, Sampler.TEMPERATURE)))

    chosen = {choose([9.0, 0.0], row(replace(params, seed=seed), history=(0,) * 4000)).token_id for seed in range(20)}

    assert chosen == {1}


@settings(max_examples=50, deadline=None)
@given(params=st.lists(params_strategy, min_size=2, max_size=5), chain=chains, noise=st.integers(0, 2**32 - 1))
def test_a_rows_sample_is_the_same_alone_and_among_any_neighbours(
    params: list[SamplingParams], chain: SamplerChain, noise: int
) -> None:
    logits = torch.tensor(np.random.default_rng(noise).normal(0, 3, (len(params), V)).astype(np.float32))
    ways = [replace(p, chain=chain if i % 2 else None) for i, p in enumerate(params)]
    rows = [row(p, position=i + 1, history=(i, 2 * i, i), request_id=i) for i, p in enumerate(ways)]

    together = sample(logits, rows)

    assert together == [sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(len(rows))]
    assert together[::-1] == sample(logits.flip(0), rows[::-1])


@pytest.mark.parametrize("chain", [SamplerChain(mirostat=2), SamplerChain(typical_p=0.5), SamplerChain(())])
@pytest.mark.parametrize("logits", [[0.0, math.nan], [-math.inf, -math.inf], [0.0, math.inf]])
def test_a_row_without_a_token_to_choose_is_at_fault(chain: SamplerChain, logits: list[float]) -> None:
    [outcome] = sample(torch.tensor([logits]), [row(replace(PLAIN, chain=chain))])

    assert isinstance(outcome, RowFault)


@pytest.mark.parametrize(
    "chain",
    [
        SamplerChain(tuple(Sampler) * 3, dynatemp_range=1e6, dynatemp_exponent=-1e6, typical_p=-1.0),
        SamplerChain(tuple(Sampler) * 3, dry_multiplier=-1e6, dry_base=1e6, top_n_sigma=1e6),
        SamplerChain(tuple(Sampler) * 3, adaptive_target=1.0, adaptive_decay=0.99, xtc_probability=1.0),
        SamplerChain(mirostat=1, mirostat_tau=1e6, mirostat_eta=-1e6),
        SamplerChain(mirostat=2, mirostat_tau=-1e6, mirostat_eta=1e6),
    ],
)
def test_the_largest_values_of_all_fields_still_yield_tokens(chain: SamplerChain) -> None:
    texts = TokenTexts([b"a" * (token_id % 3) for token_id in range(V)], (5,), 5)
    state: tuple[float, ...] = ()
    for temperature in (0.0, 1e-300, 1.0, 1e300):
        params = SamplingParams(temperature, repeat_penalty=1e-6, presence_penalty=-1e6, chain=chain, num_logprobs=V)
        for logits in ([1.0] * V, np.linspace(-30, 30, V).tolist()):
            for post in (False, True):
                asked = replace(params, post_sampling_probs=post, chain=replace(chain, token_texts=texts))
                state = choose(logits, row(asked, history=(1, 2) * 20, state=state)).sampler_state


@pytest.mark.parametrize(
    ("sampling", "history"),
    [
        (SamplingParams(chain=SamplerChain(dry_multiplier=1.0, dry_penalty_last_n=3)), (3, 4, 5)),
        (SamplingParams(chain=SamplerChain(dry_multiplier=1.0), repeat_last_n=2, repeat_penalty=2.0), (1, 2, 3, 4, 5)),
        (SamplingParams(chain=SamplerChain(dry_multiplier=1.0), repeat_last_n=-1, repeat_penalty=2.0), (1, 2, 3, 4, 5)),
        (SamplingParams(chain=SamplerChain(dry_multiplier=1.0, samplers=(Sampler.TOP_K,))), ()),
        (SamplingParams(chain=SamplerChain(dry_multiplier=1.0, mirostat=2)), ()),
        (SamplingParams(chain=SamplerChain(typical_p=0.5)), ()),
    ],
)
def test_a_row_brings_the_tokens_that_its_samplers_look_at(sampling: SamplingParams, history: tuple[int, ...]) -> None:
    request = Request(request_id=1, key=(), prompt=(1, 2, 3), sampling=sampling, max_new_tokens=4, output=[4, 5])

    assert request.history() == history


def test_numbers_of_one_position_are_unrelated() -> None:
    streams = [[uniform(seed, 7, number) for seed in range(2000)] for number in range(4)]

    assert np.abs(np.asarray(np.corrcoef(streams))[np.triu_indices(4, 1)]).max() < 0.1
