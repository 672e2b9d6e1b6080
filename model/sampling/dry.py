"""DRY ("don't repeat yourself"): a penalty for the token that would lengthen a repetition. It must not know of texts:
what breaks a sequence comes as tokens.

Where the last tokens stand earlier in the history too, the token that followed there is penalised by
multiplier · base^(length - allowed length), with the longest such length. A breaker ends what counts as a repetition,
and a token that is a whole breaker by itself is never penalised.

Source: p-e-w, "DRY: a modern repetition penalty", text-generation-webui pull request 5677; the order of its rules is
llama.cpp's.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from model.sampling.kernels_dry import common_lengths
from scheduler.batch import SamplerChain

_LOG_OF_MAX = math.log(np.finfo(np.float32).max)


def dry_penalties(history: Sequence[int], chain: SamplerChain) -> dict[int, float]:
    """Return what is to be taken from the logits of tokens, given the tokens so far."""
    if not chain.uses_dry:
        return {}
    newest_first = np.array(history[-chain.dry_penalty_last_n :][::-1], np.int64)
    allowed = chain.dry_allowed_length
    limit = _num_since_breaker(newest_first.tolist(), chain.dry_breakers)
    if newest_first.size <= allowed or limit < allowed:
        return {}
    lengths = np.minimum(common_lengths(newest_first)[1:], limit)
    is_long = lengths >= allowed
    longest: dict[int, int] = {}
    for token_id, length in zip(newest_first[:-1][is_long].tolist(), lengths[is_long].tolist(), strict=True):
        longest[token_id] = max(length, longest.get(token_id, 0))
    return {
        token_id: chain.dry_multiplier * chain.dry_base ** _exponent(length - allowed, chain.dry_base)
        for token_id, length in longest.items()
        if () not in chain.dry_breakers.get(token_id, ())
    }


def _num_since_breaker(newest_first: list[int], breakers: Mapping[int, tuple[tuple[int, ...], ...]]) -> int:
    """Return how many tokens came after the last breaker: all, where there is none."""
    for place, token_id in enumerate(newest_first):
        fitting = [
            len(tail)
            for tail in breakers.get(token_id, ())
            if len(tail) <= place and newest_first[place - len(tail) : place] == list(tail[::-1])
        ]
        if fitting:
            return place - max(fitting)
    return len(newest_first)


def _exponent(excess: int, base: float) -> int:
    """Return `excess`, or the largest exponent with which float32 holds the power."""
    return min(excess, int(_LOG_OF_MAX / math.log(base))) if base > 1.000001 else excess
