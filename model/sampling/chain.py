"""A chain of samplers in any order, over candidates in numpy: slower than what sampler.py does with the usual chain,
and the same where both apply.

Each link takes the candidates that are left, drops some or changes their logits; probabilities are always those among
the candidates that are left. At the end one is drawn, by Mirostat or adaptive-p where the chain says so.

Sources: locally typical sampling, Meister et al., arXiv 2202.00666; top-nσ, Tang et al., arXiv 2411.07641; XTC, p-e-w,
text-generation-webui pull request 6335; dynamic temperature, kalomaze, llama.cpp pull request 4972.

Dimensions: V vocabulary, C candidates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.sampling.candidates import Candidates, Drawn, Floats, Ids, ascending, draw
from model.sampling.dry import dry_penalties
from model.sampling.infill import infill
from model.sampling.penalties import penalised
from model.sampling.random import uniform
from model.sampling.targets import draw_adaptive, draw_mirostat
from scheduler.batch import Row, Sampler, SamplerChain, SamplingParams

_LEAST_TEMPERATURE = 1e-30
"""Above 0; so that what is divided by it stays finite."""
_LARGEST_PART = 1e30
"""What becomes of an entropy of 0 where the exponent is negative."""


@dataclass(frozen=True, slots=True)
class _Link:
    """What a sampler may look at beside the candidates."""

    params: SamplingParams
    chain: SamplerChain
    row: Row
    number: int
    """Its place in the chain, from 1 on."""


def draw_by_chain(candidates: Candidates, row: Row) -> Drawn:
    """Choose one of the candidates by the row's chain."""
    params = row.sampling
    assert params is not None
    chain = params.chain or SamplerChain()
    u = uniform(params.seed, row.draw)
    if chain.mirostat:
        return draw_mirostat(_cooled(candidates, params.temperature), chain, row.sampler_state, u)
    for number, sampler in enumerate(chain.samplers, 1):
        candidates = _APPLY[sampler](candidates, _Link(params, chain, row, number))
    if Sampler.ADAPTIVE_P in chain.samplers and chain.adaptive_target >= 0:
        return draw_adaptive(candidates, chain, row.sampler_state, u)
    return Drawn(int(candidates.ids[draw(candidates, u)]), candidates)


def _penalties(candidates: Candidates, link: _Link) -> Candidates:
    params, history = link.params, link.row.history
    if not params.uses_penalties or not history:
        return candidates
    recent = history if params.repeat_last_n < 0 else history[-params.repeat_last_n :]
    ids, counts = np.unique(np.array(recent), return_counts=True)
    places, is_candidate = _places(candidates, ids)
    logits = candidates.logits.copy()
    logits[places] = penalised(logits[places], counts[is_candidate], params)
    return candidates.with_logits(logits)


def _dry(candidates: Candidates, link: _Link) -> Candidates:
    penalties = dry_penalties(link.row.history, link.chain)
    if not penalties:
        return candidates
    places, is_candidate = _places(candidates, np.array(list(penalties), np.int64))
    logits = candidates.logits.copy()
    logits[places] -= np.array(list(penalties.values()))[is_candidate]
    return candidates.with_logits(logits)


def _places(candidates: Candidates, ids: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Return where those of `ids` that are candidates stand, and which of them are."""
    places = np.minimum(np.searchsorted(candidates.ids, ids), candidates.ids.size - 1)
    is_candidate = candidates.ids[places] == ids
    return places[is_candidate], is_candidate


def _top_n_sigma(candidates: Candidates, link: _Link) -> Candidates:
    if link.chain.top_n_sigma <= 0:
        return candidates
    logits = candidates.logits
    return candidates.kept(logits >= logits.max() - link.chain.top_n_sigma * logits.std())


def _top_k(candidates: Candidates, link: _Link) -> Candidates:
    count = link.params.top_k
    return candidates.kept(candidates.most_likely(count)) if 0 < count < candidates.ids.size else candidates


def _typical_p(candidates: Candidates, link: _Link) -> Candidates:
    if link.chain.typical_p >= 1:
        return candidates
    probabilities = candidates.probabilities()
    surprises = _surprises(candidates)
    entropy = float(np.dot(probabilities, surprises))
    order = ascending(np.abs(surprises - entropy))
    count = 1 + int(np.searchsorted(np.cumsum(probabilities[order]), link.chain.typical_p, side="right"))
    return _first(candidates, order, max(count, link.params.min_keep))


def _top_p(candidates: Candidates, link: _Link) -> Candidates:
    if link.params.top_p >= 1:
        return candidates
    order = candidates.order()
    count = 1 + int(np.searchsorted(np.cumsum(candidates.probabilities()[order]), link.params.top_p))
    return _first(candidates, order, max(count, link.params.min_keep))


def _min_p(candidates: Candidates, link: _Link) -> Candidates:
    if link.params.min_p <= 0:
        return candidates
    logits = candidates.logits
    is_likely = logits - logits.max() >= math.log(link.params.min_p)
    min_keep = min(link.params.min_keep, logits.size)
    return candidates.kept(is_likely if is_likely.sum() >= min_keep else candidates.most_likely(min_keep))


def _xtc(candidates: Candidates, link: _Link) -> Candidates:
    """With some probability, leave out the most likely of those above the threshold, all but the last."""
    chain, size = link.chain, candidates.ids.size
    if chain.xtc_probability <= 0 or chain.xtc_threshold > 0.5:
        return candidates
    if uniform(link.params.seed, link.row.draw, link.number) >= chain.xtc_probability:
        return candidates
    num_out = int(np.count_nonzero(candidates.probabilities() >= chain.xtc_threshold)) - 1
    if num_out < 1 or size - num_out < link.params.min_keep:
        return candidates
    is_kept = np.ones(size, np.bool_)
    is_kept[candidates.order()[:num_out]] = False
    return candidates.kept(is_kept)


def _temperature(candidates: Candidates, link: _Link) -> Candidates:
    """Divide by the temperature, which may follow the entropy of the candidates, as a part of the largest possible."""
    temperature, spread = link.params.temperature, link.chain.dynatemp_range
    if spread <= 0:
        return _cooled(candidates, temperature)
    size = candidates.ids.size
    if size == 1:
        return candidates
    entropy = float(np.dot(candidates.probabilities(), _surprises(candidates)))
    lowest, highest = max(temperature - spread, 0.0), temperature + spread
    part = np.power(np.clip(entropy / math.log(size), 0.0, 1.0), link.chain.dynatemp_exponent)
    return _cooled(candidates, lowest + (highest - lowest) * min(float(part), _LARGEST_PART))


def _cooled(candidates: Candidates, temperature: float) -> Candidates:
    logits = candidates.logits
    if temperature <= 0:
        return _first(candidates, np.array([int(logits.argmax())]), 1)
    return candidates.with_logits(logits / max(temperature, _LEAST_TEMPERATURE))


def _surprises(candidates: Candidates) -> Floats:
    """Return -ln of the candidates' probabilities (C,), finite even where these round to 0."""
    relative = candidates.logits - candidates.logits.max()
    surprises: Floats = math.log(np.exp(relative).sum()) - relative
    return surprises


def _first(candidates: Candidates, order: Ids, count: int) -> Candidates:
    """Return the first `count` of the candidates in an order of places (C,)."""
    is_kept = np.zeros(candidates.ids.size, np.bool_)
    is_kept[order[:count]] = True
    return candidates.kept(is_kept)


def _infill(candidates: Candidates, link: _Link) -> Candidates:
    assert link.chain.token_texts is not None
    return infill(candidates, link.chain.token_texts, link.row)


def _unchanged(candidates: Candidates, link: _Link) -> Candidates:
    return candidates


_APPLY: dict[Sampler, Callable[[Candidates, _Link], Candidates]] = {
    Sampler.PENALTIES: _penalties,
    Sampler.DRY: _dry,
    Sampler.TOP_N_SIGMA: _top_n_sigma,
    Sampler.TOP_K: _top_k,
    Sampler.TYPICAL_P: _typical_p,
    Sampler.TOP_P: _top_p,
    Sampler.MIN_P: _min_p,
    Sampler.XTC: _xtc,
    Sampler.TEMPERATURE: _temperature,
    Sampler.INFILL: _infill,
    Sampler.ADAPTIVE_P: _unchanged,
}
