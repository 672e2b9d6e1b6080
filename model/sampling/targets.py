"""Samplers that steer towards a target and remember how far they were off: Mirostat and adaptive-p.

What they remember is a few numbers, the state. It is a function of the draws so far, comes with the row and goes back
with the sample, and so outlives a preemption, after which no token is drawn again.

Sources: Mirostat, Basu et al., arXiv 2007.14966; version 2 and adaptive-p as llama.cpp documents them.

Dimensions: C candidates.
"""

import math

import numpy as np

from model.sampling.candidates import Candidates, Drawn, draw
from scheduler.batch import SamplerChain

_MOST_FITTED = 100
"""Of the most likely tokens, those whose ranks and probabilities Mirostat fits Zipf's law to."""
_PEAK, _SHARPNESS, _WIDTH = 5.0, 10.0, 0.3
"""Adaptive-p's curve: its logit at the target, how fast it falls from there, and from which distance on linearly."""


def draw_mirostat(candidates: Candidates, chain: SamplerChain, state: tuple[float, ...], u: float) -> Drawn:
    """Draw a token whose surprise is about `mirostat_tau` bits; the state is mu, the most surprise that is let in."""
    (mu,) = state or (2 * chain.mirostat_tau,)
    if chain.mirostat == 1:
        count = _num_within(candidates, mu)
    else:
        count = max(int(np.count_nonzero(-np.log2(candidates.probabilities()) <= mu)), 1)
    left = candidates.kept(candidates.most_likely(count))
    place = draw(left, u)
    surprise = -math.log2(left.probabilities()[place])
    return Drawn(int(left.ids[place]), left, (mu - chain.mirostat_eta * (surprise - chain.mirostat_tau),))


def _num_within(candidates: Candidates, mu: float) -> int:
    """Return how many of the most likely tokens have an average surprise of mu, by the Zipf law that fits the first of
    them."""
    size, log_vocab_size = candidates.ids.size, math.log(candidates.vocab_size)
    if size == 1:
        return 1
    fitted = np.sort(candidates.logits[candidates.most_likely(min(_MOST_FITTED, size))])[::-1]
    ranks = np.arange(1, fitted.size)
    steps = np.log((ranks + 1) / ranks)
    exponent = np.float64(np.dot(steps, fitted[:-1] - fitted[1:]) / np.dot(steps, steps))
    excess = exponent - 1
    # As the excess goes to 0, excess / (1 - V^-excess) goes to 1 / ln V.
    factor = -excess / np.expm1(-excess * log_vocab_size) if excess else 1 / log_vocab_size
    count = np.power(factor * np.exp2(mu), 1 / exponent)
    return int(np.clip(np.nan_to_num(count, nan=1.0), 1, size))


def draw_adaptive(candidates: Candidates, chain: SamplerChain, state: tuple[float, ...], u: float) -> Drawn:
    """Draw a token whose probability is about the target, moved against the average of those drawn so far.

    The state is a decaying sum of their probabilities and that of their weights."""
    decay, target = chain.adaptive_decay, min(chain.adaptive_target, 1.0)
    total, weight = state or (target / (1 - decay), 1 / (1 - decay))
    moved_target = min(max(2 * target - total / weight, 0.0), 1.0)
    probabilities = candidates.probabilities()
    distances = np.abs(probabilities - moved_target) / _WIDTH
    bent = candidates.with_logits(_PEAK - _SHARPNESS * distances**2 / (1 + distances))
    place = draw(bent, u)
    new_state = float(probabilities[place]) + decay * total, 1 + decay * weight
    return Drawn(int(bent.ids[place]), bent, new_state)
