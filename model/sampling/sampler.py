"""Choose one token per row from its logits. It must not know of batches, devices or adapters.

The usual chain, in llama.cpp's order: logit bias, what a constraint forbids, penalties, top-k, top-p, min-p,
temperature, draw; others are in chain.py. A sample is a function of the row's logits, its history, its
parameters, its seed and the position where the token will stand, and, for samplers that remember, of the state that the
request's last sample has left; of nothing else: every row is computed alone, on the host, and the random number is a
hash of (seed, position). So a token never depends on its neighbours, and a preempted request that is computed again
goes on with the same tokens.

The draw is an inverse CDF. Candidates that a filter has left stand in order of likelihood; where no filter applies
(top-k 0, top-p 1, min-p 0) the whole vocabulary stands in order of ids. Most rows are chosen for by kernels
(kernels.py); what they leave undecided, a draw among many candidates, is done here in numpy.

Sources: top-p, Holtzman et al., arXiv 1904.09751; min-p, Nguyen et al., arXiv 2407.01082.

Dimensions: S rows, V vocabulary of their adapter list (the base model's or larger), C candidates.
"""

import math
import time
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from model.constraints.vocabulary import ConstraintFailed
from model.sampling.candidates import Candidates, Drawn
from model.sampling.chain import draw_by_chain
from model.sampling.kernels import MAX_CANDIDATES, NO_TOKEN, UNDECIDED, choose, mass, most_likely
from model.sampling.penalties import penalised
from model.sampling.random import uniform
from scheduler.batch import Row, RowFault, RowLate, Sample, SamplingParams, TokenLogprob

Floats: TypeAlias = npt.NDArray[np.floating]
Ids: TypeAlias = npt.NDArray[np.int64]

_MAX_WAIT_S = 0.02
"""That a step waits for what constraints allow, over all rows: some grammars take twenty times as long."""
_PARALLEL_SIZE = 100_000
"""Logits from which several threads are worth while."""
_DEPTHS = (4.0, 8.0, 12.0, 16.0, math.inf)
"""How far below the largest logit candidates are looked for, until enough of the mass is found."""


class _NoToken(Exception):
    """There is no token to choose for this row; says why."""


class _AskedFor(_NoToken):
    """There is none, because the request forbids all."""


class _End(_NoToken):
    """There is none, because the text is complete."""


def sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[Sample | RowFault | RowLate]:
    """Choose a token for each row: `logits` (S, V) float32 on any device, `rows` S rows with `sampling`.

    Modifies nothing. A row is at fault where its logits hold NaN, all are -inf (a `logit_bias` can do that), the
    largest is infinite, or `logit_bias` names a token outside the vocabulary; it says nothing of the other rows. A
    decode row is late whose constraint takes longer to say what may come next than others are made to wait."""
    assert logits.dtype == torch.float32, logits.dtype
    assert logits.dim() == 2, logits.shape
    host = logits.detach().cpu().contiguous().numpy()  # (S, V)
    assert len(rows) == len(host), f"{len(rows)} rows for logits of {len(host)}"
    as_they_are = [number for number, row in enumerate(rows) if not _is_adjusted(row)]
    chosen = dict(zip(as_they_are, _choose(host, as_they_are, rows), strict=True))
    # Overflow and NaN are looked for where they matter, in `_fault_of`.
    with np.errstate(all="ignore"):
        deadline_s = time.monotonic() + _MAX_WAIT_S
        return [
            RowLate(row.request_id) if _is_late(row, deadline_s) else _outcome(host[number], row, chosen.get(number))
            for number, row in enumerate(rows)
        ]


def _is_late(row: Row, deadline_s: float) -> bool:
    if row.token_filter is None or not row.is_decode:
        return False
    return not row.token_filter.is_ready(max(deadline_s - time.monotonic(), 0.0))


def _choose(host: Floats, numbers: Sequence[int], rows: Sequence[Row]) -> list[int]:
    """Return what the kernel says of the rows `numbers` of logits (S, V)."""
    if not numbers:
        return []
    chains = np.array([_chain(rows[number]) for number in numbers], np.float64)  # (n, 6)
    num_threads = 1 if len(numbers) * host.shape[1] < _PARALLEL_SIZE else torch.get_num_threads()
    chosen: list[int] = choose(host, np.array(numbers), chains, num_threads).tolist()
    return chosen


def _chain(row: Row) -> tuple[float, ...]:
    params = row.sampling
    assert params is not None, f"request {row.request_id}: a row without sampling has no logits to choose from"
    u = uniform(params.seed, row.draw) if params.temperature > 0 else 0.0
    return params.temperature, params.top_k, params.top_p, params.min_p, params.min_keep, u


def _is_adjusted(row: Row) -> bool:
    params = row.sampling
    if params is None:
        return False
    is_biased = bool(params.logit_bias) or row.token_filter is not None
    return params.uses_chain or is_biased or (bool(row.history) and params.uses_penalties)


def _outcome(logits: Floats, row: Row, chosen: int | None) -> Sample | RowFault:
    """Return what becomes of a row, for which the kernel has chosen already, or not yet."""
    params = row.sampling
    assert params is not None
    try:
        drawn = _by_chain(logits, row) if params.uses_chain else None
        token_id = _usual_choice(logits, row, chosen) if drawn is None else drawn.token_id
        told = _told(logits, row, token_id, drawn)
    except (_NoToken, ConstraintFailed) as fault:
        is_asked_for = isinstance(fault, _AskedFor | ConstraintFailed)
        return RowFault(row.request_id, str(fault), is_end=isinstance(fault, _End), is_asked_for=is_asked_for)
    if row.token_filter is not None:
        row.token_filter.accept(token_id)
    return told


def _told(logits: Floats, row: Row, token_id: int, drawn: Drawn | None) -> Sample:
    """Return the sample of a token, which a chain has drawn or none, with the log-probabilities that its row wants."""
    params = row.sampling
    assert params is not None
    state = () if drawn is None else drawn.state
    if params.num_logprobs is None:
        return Sample(row.request_id, token_id, sampler_state=state)
    if params.post_sampling_probs:
        logprob, top = _drawn_logprobs(drawn or _by_chain(logits, row), token_id, params.num_logprobs)
    else:
        logprob, top = model_logprobs(logits, token_id, params.num_logprobs)
    return Sample(row.request_id, token_id, logprob, top, state)


def _by_chain(logits: Floats, row: Row) -> Drawn:
    """Choose by numpy, with every sampler of the row's chain. Raises _NoToken."""
    biased = _biased(logits, row)
    largest = float(biased.max())
    if not math.isfinite(largest):
        raise _no_token(logits, row, largest)
    ids = np.flatnonzero(biased > -np.inf)
    return draw_by_chain(Candidates(ids, biased[ids].astype(np.float64), logits.size), row)


def _drawn_logprobs(drawn: Drawn, token_id: int, count: int) -> tuple[float, tuple[TokenLogprob, ...]]:
    """Return the log-probabilities, among the candidates that the samplers have left, of a token and of the most
    likely ones."""
    candidates = drawn.candidates
    order = candidates.order()[:count]
    logprobs = np.log(candidates.probabilities())
    own = logprobs[candidates.ids == token_id].tolist() or [-math.inf]
    top = zip(candidates.ids[order].tolist(), logprobs[order].tolist(), strict=True)
    return own[0], tuple(TokenLogprob(top_id, logprob) for top_id, logprob in top if logprob > -math.inf)


def _usual_choice(logits: Floats, row: Row, chosen: int | None) -> int:
    """Return what the kernel has chosen, or choose from adjusted logits. Raises _NoToken."""
    if chosen is not None:
        return _checked(chosen, logits, logits, row)
    adjusted = _penalised(_biased(logits, row), row)
    return _checked(_choose(adjusted[None], [0], [row])[0], adjusted, logits, row)


def _checked(chosen: int, adjusted: Floats, logits: Floats, row: Row) -> int:
    """Return the token that the kernel has chosen, or draw where it could not. Raises _NoToken."""
    if chosen == NO_TOKEN or (chosen == UNDECIDED and not math.isfinite(adjusted[adjusted.argmax()])):
        raise _no_token(logits, row, float(adjusted[adjusted.argmax()]))  # of a NaN, if there is one
    if chosen == UNDECIDED:
        assert row.sampling is not None
        return _draw(adjusted, row.sampling, uniform(row.sampling.seed, row.draw))
    return chosen


def model_logprobs(logits: Floats, token_id: int, count: int) -> tuple[float, tuple[TokenLogprob, ...]]:
    """Return the log-probabilities, under the model, of a token and of the most likely ones, given logits (V,)."""
    top_ids = _most_likely(logits, min(count, logits.size))
    largest = float(logits.max())
    log_mass = largest + math.log(mass(logits, largest))
    top = tuple(TokenLogprob(top_id, float(logits[top_id]) - log_mass) for top_id in top_ids.tolist())
    return float(logits[token_id]) - log_mass, top


def _no_token(logits: Floats, row: Row, largest: float) -> _NoToken:
    """Return why none can be chosen, where the largest of the adjusted logits is not finite."""
    if math.isnan(largest):
        return _NoToken("the logits hold NaN")
    if largest > 0:
        return _NoToken("the largest logit is infinite")
    if np.isneginf(logits).all():
        return _NoToken("every logit is -inf")
    if row.token_filter is None:
        return _AskedFor("logit_bias forbids every token")
    if row.token_filter.can_end():
        return _End("")
    return _AskedFor("logit_bias and the constraint forbid every token")


def _biased(logits: Floats, row: Row) -> Floats:
    """Return the logits with what the request adds to them, and without the tokens that may not come: what all
    samplers begin with. Raises _NoToken and ConstraintFailed."""
    biased = _with_bias(logits, row)
    if row.token_filter is None:
        return biased
    allowed = np.frombuffer(row.token_filter.allowed(), np.uint8)[: logits.size]
    if biased is logits:
        biased = logits.copy()
    biased[: allowed.size][allowed == 0] = -np.inf
    biased[allowed.size :] = -np.inf
    return biased


def _with_bias(logits: Floats, row: Row) -> Floats:
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
    adjusted = logits.copy()
    adjusted[ids] = penalised(logits[ids].astype(np.float64), counts, params)
    return adjusted


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

    Over the whole vocabulary, candidates that top-p or min-p will drop may be left out (not out of the mass): sorting
    is the cost.
    """
    largest = float(logits.max())
    if 0 < params.top_k < logits.size:
        ids = _most_likely(logits, params.top_k)
        return ids, float(np.exp(logits[ids].astype(np.float64) - largest).sum())
    whole = mass(logits, largest)
    for depth in _DEPTHS:
        ids = np.flatnonzero(logits >= np.float32(largest - depth))
        if ids.size >= params.min_keep and _has_all(logits[ids].astype(np.float64) - largest, depth, whole, params):
            break
    return _ordered(logits, ids), whole


def _has_all(relative: Floats, depth: float, whole: float, params: SamplingParams) -> bool:
    """Whether candidates down to `depth` are all that top-p or min-p can keep of the mass `whole`."""
    if params.min_p > 0.0 and math.log(params.min_p) > -depth:
        return True
    return params.top_p < 1.0 and float(np.exp(relative).sum()) >= params.top_p * whole


def _most_likely(logits: Floats, count: int) -> Ids:
    """Return the ids of the `count` largest logits, largest first, equal ones by id."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    if count <= MAX_CANDIDATES:
        ids: Ids = most_likely(logits, count)
        return ids
    least = np.partition(logits, logits.size - count)[logits.size - count]
    return _ordered(logits, np.flatnonzero(logits >= least))[:count]


def _ordered(logits: Floats, ids: Ids) -> Ids:
    """Return `ids`, which ascend, in order of their logits, largest first, equal ones by id."""
    # One integer key per candidate, for numpy sorts integers many times faster than it sorts floats stably: the
    # float32's bits as an ordered integer, descending, then the id. Adding 0.0 turns -0.0 into 0.0, its equal.
    bits = (logits[ids] + np.float32(0.0)).view(np.int32)
    ordered = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)
    keys = (~ordered << 32) | ids
    keys.sort()
    most_likely_first: Ids = keys & 0xFFFFFFFF
    return most_likely_first
