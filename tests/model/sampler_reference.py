"""Chains of samplers written from their definitions, in plain Python over a list of (token, probability): slow, and
without any of the code they are compared with.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from model.sampling.random import uniform
from scheduler.batch import Row, Sampler, SamplerChain, SamplingParams

Weights = dict[int, float]
"""The logit of each token that is left."""


@dataclass
class Outcome:
    """The token, the probabilities it was drawn from, and the state afterwards."""

    token_id: int
    probabilities: Weights
    state: tuple[float, ...] = ()


def softmax(left: Weights) -> Weights:
    largest = max(left.values())
    masses = {token: math.exp(logit - largest) for token, logit in left.items()}
    total = math.fsum(masses.values())
    return {token: mass / total for token, mass in masses.items()}


def ranked(left: Weights) -> list[int]:
    return sorted(left, key=lambda token: (-left[token], token))


def only(left: Weights, tokens: list[int]) -> Weights:
    return {token: left[token] for token in left if token in set(tokens)}


def surprises(left: Weights) -> Weights:
    """How unexpected each token is, in nats."""
    largest = max(left.values())
    log_total = math.log(math.fsum(math.exp(logit - largest) for logit in left.values()))
    return {token: log_total + largest - logit for token, logit in left.items()}


def entropy(left: Weights) -> float:
    of, unexpected = softmax(left), surprises(left)
    return math.fsum(of[token] * unexpected[token] for token in left)


def penalties(left: Weights, p: SamplingParams, chain: SamplerChain, row: Row, number: int) -> Weights:
    if p.repeat_last_n == 0:
        return left
    recent = row.history if p.repeat_last_n < 0 else row.history[-p.repeat_last_n :]
    changed = dict(left)
    for token in set(recent) & set(left):
        logit = left[token]
        logit = logit / p.repeat_penalty if logit > 0 else logit * p.repeat_penalty
        changed[token] = logit - recent.count(token) * p.frequency_penalty - p.presence_penalty
    return changed


def dry(left: Weights, p: SamplingParams, chain: SamplerChain, row: Row, number: int) -> Weights:
    """For each token: the longest end of the history that, somewhere before, it has followed."""
    if chain.dry_multiplier == 0 or chain.dry_penalty_last_n == 0:
        return left
    recent = list(row.history[-chain.dry_penalty_last_n :])
    longest_allowed = since_breaker(recent, chain)
    if len(recent) <= chain.dry_allowed_length or longest_allowed < chain.dry_allowed_length:
        return left
    changed = dict(left)
    for token in left:
        lengths = [
            length
            for place in range(1, len(recent))
            if recent[place] == token
            for length in range(place + 1)
            if recent[place - length : place] == recent[len(recent) - length :]
        ]
        if not lengths or min(max(lengths), longest_allowed) < chain.dry_allowed_length:
            continue
        if () in chain.dry_breakers.get(token, ()):
            continue
        excess = min(max(lengths), longest_allowed) - chain.dry_allowed_length
        changed[token] -= chain.dry_multiplier * chain.dry_base**excess
    return changed


def since_breaker(recent: list[int], chain: SamplerChain) -> int:
    """How many tokens follow the last breaker in the history."""
    for start in range(len(recent) - 1, -1, -1):
        ends = [
            start + 1 + len(tail)
            for tail in chain.dry_breakers.get(recent[start], ())
            if tuple(recent[start + 1 : start + 1 + len(tail)]) == tail
        ]
        if ends:
            return len(recent) - max(ends)
    return len(recent)


def top_n_sigma(left: Weights, p: SamplingParams, chain: SamplerChain, row: Row, number: int) -> Weights:
    if chain.top_n_sigma <= 0:
        return left
    mean = math.fsum(left.values()) / len(left)
    sigma = math.sqrt(math.fsum((logit - mean) ** 2 for logit in left.values()) / len(left))
    bound = max(left.values()) - chain.top_n_sigma * sigma
    return only(left, [token for token, logit in left.items() if logit >= bound])


def top_k(left: Weights, p: SamplingParams, chain: SamplerChain, row: Row, number: int) -> Weights:
    return only(left, ranked(left)[: p.top_k]) if p.top_k > 0 else left


def typical_p(left: Weights, p: SamplingParams, chain: SamplerChain, row: Row, number: int) -> Weights:
    if chain.typical_p >= 1:
        return left
    of, expected, unexpected = softmax(left), entropy(left), surprises(left)
    kept: list[int] = []
    for token in sorted(left, key=lambda token: (abs(unexpected[token] - expected), token)):
        kept.append(token)
        if math.fsum(of[one] for one in kept) > chain.typical_p and len(kept) >= p.min_keep:
            break
    return only(left, kept)


def top_p(left: Weights, p: SamplingParams, chain: SamplerChain, row: Row, number: int) -> Weights:
    if p.top_p >= 1:
        return left
    of = softmax(left)
    kept: list[int] = []
    for token in ranked(left):
        kept.append(token)
        if math.fsum(of[one] for one in kept) >= p.top_p and len(kept) >= p.min_keep:
            break
    return only(left, kept)


def min_p(left: Weights, p: SamplingParams, chain: SamplerChain, row: Row, number: int) -> Weights:
    if p.min_p <= 0:
        return left
    of = softmax(left)
    likely = [token for token in left if of[token] >= p.min_p * max(of.values())]
    return only(left, ranked(left)[: max(len(likely), p.min_keep)])


def xtc(left: Weights, p: SamplingParams, chain: SamplerChain, row: Row, number: int) -> Weights:
    if chain.xtc_threshold > 0.5 or uniform(p.seed, row.end, number) >= chain.xtc_probability:
        return left
    of = softmax(left)
    top = [token for token in ranked(left) if of[token] >= chain.xtc_threshold]
    without = [token for token in left if token not in top[:-1]]
    return only(left, without) if len(without) >= p.min_keep else left


def temperature(left: Weights, p: SamplingParams, chain: SamplerChain, row: Row, number: int) -> Weights:
    if chain.dynatemp_range <= 0:
        return heated(left, p.temperature)
    if len(left) == 1:
        return left
    lowest, highest = max(0.0, p.temperature - chain.dynatemp_range), p.temperature + chain.dynatemp_range
    part = max(entropy(left), 0.0) / math.log(len(left))
    return heated(left, lowest + (highest - lowest) * part**chain.dynatemp_exponent)


def heated(left: Weights, by: float) -> Weights:
    return only(left, ranked(left)[:1]) if by <= 0 else {token: logit / by for token, logit in left.items()}


def infill(left: Weights, p: SamplingParams, chain: SamplerChain, row: Row, number: int) -> Weights:
    """Two tokens after the other, in order of likelihood, and what becomes of the pair."""
    texts = chain.token_texts
    assert texts is not None
    of = softmax(left)
    ends = [token for token in left if token in texts.eog_ids]
    p_end = math.fsum(of[token] for token in ends)
    if 3 * p_end * len(left) > 1 - p_end:
        return only(left, ends)
    order, gone = ranked(left), set[int]()
    for one in order:
        for other in order:
            if one == other or one in gone or other in gone:
                continue
            if texts.pieces[one] and texts.pieces[other].startswith(texts.pieces[one]):
                kept, lost = (other, one) if of[other] > of[one] else (one, other)
                of[kept] += of[lost]
                of[lost] = 0.0
                gone.add(lost)
    likely = [token for token in left if of[token] >= 0.2 and token not in ends]
    if not likely:
        may_end = texts.end_id is not None and (texts.end_id, -math.inf) not in p.logit_bias
        return {texts.end_id: 1.0} if may_end and texts.end_id is not None else only(left, order[:1])
    kept_ends = [token for token in ends if token not in gone]
    total = math.fsum(of[token] for token in [*likely, *kept_ends])
    return only(left, [*kept_ends, *(token for token in likely if of[token] / total >= 1 / (len(likely) + 1))])


LINKS: dict[Sampler, Callable[[Weights, SamplingParams, SamplerChain, Row, int], Weights]] = {
    Sampler.PENALTIES: penalties,
    Sampler.DRY: dry,
    Sampler.TOP_N_SIGMA: top_n_sigma,
    Sampler.TOP_K: top_k,
    Sampler.TYPICAL_P: typical_p,
    Sampler.TOP_P: top_p,
    Sampler.MIN_P: min_p,
    Sampler.XTC: xtc,
    Sampler.TEMPERATURE: temperature,
    Sampler.INFILL: infill,
    Sampler.ADAPTIVE_P: lambda left, p, chain, row, number: left,
}


def run(raw: list[float], row: Row) -> Outcome:
    """Choose a token for the logits of a whole vocabulary."""
    p = row.sampling
    assert p is not None
    chain = p.chain or SamplerChain()
    left = {token: logit for token, logit in enumerate(raw) if logit > -math.inf}
    for token, bias in p.logit_bias:
        if token in left:
            left[token] = float(np.float32(left[token]) + np.float32(bias))
    left = {token: logit for token, logit in left.items() if logit > -math.inf}
    u = uniform(p.seed, row.end)
    num_drawn_by_id = len(left) if chain.is_usual else len(raw)  # the usual chain keeps what is forbidden in its order
    if chain.mirostat:
        return mirostat(heated(left, p.temperature), len(raw), chain, row.sampler_state, u)
    for number, sampler in enumerate(chain.samplers, 1):
        left = LINKS[sampler](left, p, chain, row, number)
    if Sampler.ADAPTIVE_P in chain.samplers and chain.adaptive_target >= 0:
        return adaptive(left, len(raw), chain, row.sampler_state, u)
    return Outcome(drawn(left, num_drawn_by_id, u), softmax(left))


def drawn(left: Weights, vocab_size: int, u: float) -> int:
    of = softmax(left)
    order = sorted(left) if len(left) == vocab_size else ranked(left)
    below = 0.0
    for token in order:
        below += of[token]
        if below > u:
            return token
    return order[-1]


def mirostat(left: Weights, vocab_size: int, chain: SamplerChain, state: tuple[float, ...], u: float) -> Outcome:
    mu = state[0] if state else 2 * chain.mirostat_tau
    of, order = softmax(left), ranked(left)
    if chain.mirostat == 2:
        kept = [token for token in order if -math.log2(of[token]) <= mu] or order[:1]
    elif len(order) == 1:
        kept = order
    else:
        pairs = list(pairwise(order))[:99]
        t = [math.log((rank + 1) / rank) for rank in range(1, len(pairs) + 1)]
        b = [math.log(of[one] / of[other]) for one, other in pairs]
        s = math.fsum(x * y for x, y in zip(t, b, strict=True)) / math.fsum(x * x for x in t)
        k = ((s - 1) * 2**mu / (1 - vocab_size ** -(s - 1))) ** (1 / s)
        kept = order[: max(int(k), 1)]
    left = only(left, kept)
    token = drawn(left, vocab_size, u)
    surprise = -math.log2(softmax(left)[token])
    return Outcome(token, softmax(left), (mu - chain.mirostat_eta * (surprise - chain.mirostat_tau),))


def adaptive(left: Weights, vocab_size: int, chain: SamplerChain, state: tuple[float, ...], u: float) -> Outcome:
    decay = chain.adaptive_decay
    total, weight = state or (chain.adaptive_target / (1 - decay), 1 / (1 - decay))
    target = min(max(2 * chain.adaptive_target - total / weight, 0.0), 1.0)
    of = softmax(left)
    bent = {}
    for token in left:
        distance = abs(of[token] - target) / 0.3
        bent[token] = 5 - 10 * distance * distance / (1 + distance)
    token = drawn(bent, vocab_size, u)
    return Outcome(token, softmax(bent), (of[token] + decay * total, 1 + decay * weight))
