"""Choose one token per row from its logits. It must not know of batches, devices or adapters.

The chain, in llama.cpp's order: logit bias, penalties, top-k, top-p, min-p, temperature, draw. A sample is a function
of the row's logits, its history, its parameters, its seed and the position where the token will stand, of nothing else:
every row is computed alone, on the host, in numpy, and the random number is a hash of (seed, position). So a token
never depends on its neighbours, and a preempted request that is computed again draws the same tokens again.

Sources: top-p, Holtzman et al., arXiv 1904.09751; min-p, Nguyen et al., arXiv 2407.01082; repeat penalty, Keskar et
al., arXiv 1909.05858; SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

Dimensions: S rows, V vocabulary of their adapter list (the base model's or larger), C candidates.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from scheduler.batch import Row, RowFault, Sample, SamplingParams, TokenLogprob

Floats: TypeAlias = npt.NDArray[np.floating]
Ids: TypeAlias = npt.NDArray[np.int64]

_MASK64 = 2**64 - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_GROUPS = 1024
"""Columns of the vocabulary among whose maxima the largest logits are looked for."""
_GROUPS_PER_CANDIDATE = 8
"""With so many groups for each, few of the candidates share one, and few others come with them."""


class _NoToken(Exception):
    """There is no token to choose for this row; says why."""


def sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[Sample | RowFault]:
    """Choose a token for each row: `logits` (S, V) float32 on any device, `rows` S rows with `sampling`.

    Modifies nothing. A row is at fault where its logits hold NaN, all are -inf (a `logit_bias` can do that), the
    largest is infinite, or `logit_bias` names a token outside the vocabulary; it says nothing of the other rows."""
    assert logits.dtype == torch.float32, logits.dtype
    assert logits.dim() == 2, logits.shape
    host = logits.detach().cpu().numpy()  # (S, V)
    # Overflow and NaN are looked for where they matter, in `_fault_of`.
    with np.errstate(all="ignore"):
        return [_outcome(row_logits, row) for row_logits, row in zip(host, rows, strict=True)]


def _outcome(logits: Floats, row: Row) -> Sample | RowFault:
    try:
        return _sample_row(logits, row)
    except _NoToken as fault:
        return RowFault(row.request_id, str(fault))


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1), a multiple of 2^-53, that decides the token at `position` of a request with `seed`.

    SplitMix64's stream of a seed that was mixed first, read at `position`: neighbouring seeds give unrelated streams.
    """
    bits = _mix64(_mix64(seed + _GOLDEN_GAMMA) + (position + 1) * _GOLDEN_GAMMA)
    return (bits >> 11) * 2.0**-53


def _mix64(value: int) -> int:
    value &= _MASK64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK64
    return value ^ (value >> 31)


def _sample_row(logits: Floats, row: Row) -> Sample:
    params = row.sampling
    assert params is not None, f"request {row.request_id}: a row without sampling has no logits to choose from"
    adjusted = _penalised(_biased(logits, row), row)
    best = int(adjusted.argmax())  # the lowest id of the largest; of a NaN, if there is one
    if not math.isfinite(adjusted[best]):
        raise _NoToken(_fault_of(logits, float(adjusted[best])))
    token_id = best if params.temperature <= 0 else _draw(adjusted, params, uniform(params.seed, row.end))
    if params.num_logprobs is None:
        return Sample(row.request_id, token_id)
    logprobs = _log_softmax(logits)
    top_ids = _most_likely(logits, min(params.num_logprobs, logits.size))
    top = tuple(TokenLogprob(int(top_id), float(logprobs[top_id])) for top_id in top_ids)
    return Sample(row.request_id, token_id, float(logprobs[token_id]), top)


def _fault_of(logits: Floats, largest: float) -> str:
    if math.isnan(largest):
        return "the logits hold NaN"
    if largest > 0:
        return "the largest logit is infinite"
    if np.isneginf(logits).all():
        return "every logit is -inf"
    return "logit_bias forbids every token"


def _biased(logits: Floats, row: Row) -> Floats:
    assert row.sampling is not None
    if not row.sampling.logit_bias:
        return logits
    ids, biases = zip(*row.sampling.logit_bias, strict=True)
    for token_id in ids:
        if not 0 <= token_id < logits.size:
            raise _NoToken(f"logit_bias names token {token_id}, the vocabulary has {logits.size}")
    biased = logits.copy()
    np.add.at(
        biased, np.array(ids), np.array(biases, dtype=np.float64).astype(np.float32)
    )  # a repeated id counts twice
    return biased


def _penalised(logits: Floats, row: Row) -> Floats:
    params = row.sampling
    assert params is not None
    if not params.uses_penalties or not row.history:
        return logits
    ids, counts = np.unique(np.array(row.history), return_counts=True)
    known = ids < logits.size  # a prompt may hold tokens that only an adapter knows which is not in the list yet
    ids, counts = ids[known], counts[known]
    seen = logits[ids].astype(np.float64)
    seen = np.where(seen > 0, seen / params.repeat_penalty, seen * params.repeat_penalty)
    penalised = logits.copy()
    penalised[ids] = seen - counts * params.frequency_penalty - params.presence_penalty
    return penalised


def _draw(logits: Floats, params: SamplingParams, u: float) -> int:
    """Inverse CDF over the candidates that top-k, top-p and min-p leave; the first candidate is the most likely."""
    ids, mass = _candidates(logits, params)
    relative = logits[ids].astype(np.float64)  # (C,)
    relative -= relative[0]
    keep = ids.size
    if params.top_p < 1.0:
        nucleus = 1 + int(np.searchsorted(np.cumsum(np.exp(relative)), params.top_p * mass))
        keep = min(keep, max(nucleus, params.min_keep))
    if params.min_p > 0.0:
        keep = min(keep, max(int(np.count_nonzero(relative >= math.log(params.min_p))), params.min_keep))
    cdf = np.cumsum(np.exp(relative[: max(keep, 1)] / params.temperature))
    # u ≤ 1 - 2^-53, so u * cdf[-1] rounds to less than cdf[-1]; and a candidate at -inf adds nothing to the cdf.
    return int(ids[np.searchsorted(cdf, u * cdf[-1], side="right")])


def _candidates(logits: Floats, params: SamplingParams) -> tuple[Ids, float]:
    """Return what top-k keeps, most likely first, and its mass: Σ exp(logit - largest).

    Over the whole vocabulary, candidates that min-p will drop are left out (not out of the mass): sorting is the cost.
    """
    if 0 < params.top_k < logits.size:
        ids = _most_likely(logits, params.top_k)
        return ids, float(np.exp(logits[ids].astype(np.float64) - logits[ids[0]]).sum())
    relative = logits.astype(np.float64) - logits.max()  # (V,)
    needed = logits.size
    if params.min_p > 0.0:
        needed = max(int(np.count_nonzero(relative >= math.log(params.min_p))), params.min_keep, 1)
    return _most_likely(logits, min(needed, logits.size)), float(np.exp(relative).sum())


def _most_likely(logits: Floats, count: int) -> Ids:
    """Return the ids of the `count` largest logits, largest first, equal ones by id."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    ids = np.flatnonzero(logits >= _reached_by(logits, count))
    # One integer key per candidate, for numpy sorts integers many times faster than it sorts floats stably: the
    # float32's bits as an ordered integer, descending, then the id. Adding 0.0 turns -0.0 into 0.0, its equal.
    bits = (logits[ids] + np.float32(0.0)).view(np.int32)
    ordered = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)
    keys = (~ordered << 32) | ids
    keys.sort()
    most_likely: Ids = keys[:count] & 0xFFFFFFFF
    return most_likely


def _reached_by(logits: Floats, count: int) -> np.floating:
    """Return a value that at least `count` logits reach, and few more unless many are equal.

    That is the `count`-th largest of the maxima of disjoint groups, found without partitioning the vocabulary.
    """
    peaks = logits
    if count * _GROUPS_PER_CANDIDATE <= _GROUPS and logits.size >= 2 * _GROUPS:
        peaks = logits[: logits.size // _GROUPS * _GROUPS].reshape(-1, _GROUPS).max(axis=0)  # (groups,)
    smallest: np.floating = np.partition(peaks, peaks.size - count)[peaks.size - count]
    return smallest


def _log_softmax(logits: Floats) -> Floats:
    relative = logits.astype(np.float64) - logits.max()
    log_probabilities: Floats = relative - math.log(np.exp(relative).sum())
    return log_probabilities
