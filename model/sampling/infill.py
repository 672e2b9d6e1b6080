"""The sampler for filling in the middle: end where ending is likely enough, and choose among texts, not among tokens.

A token whose text another one goes on with is one with it for the two thresholds: the likelier of them stands for both.
What is left keeps the logits that it had. Source: llama.cpp's sampler `infill`.

Dimensions: C candidates.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from model.sampling.candidates import Candidates, Floats
from model.tokens.tokenizer import Tokenizer
from scheduler.batch import Row, TokenTexts

MAX_MERGED = 512
"""Candidates whose texts are compared, the most likely; the others are far below both thresholds."""
_LEAST = 0.2
_END_WEIGHT = 3
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<EOT>", "_<EOT>", "[EOT]")
"""Of several tokens that end a text the one that ends a turn, in this order, before EOS."""
_KEPT: WeakKeyDictionary[Tokenizer, TokenTexts] = WeakKeyDictionary()


def token_texts(tokenizer: Tokenizer) -> TokenTexts:
    """Return what the sampler must know of a tokenizer's tokens. Takes milliseconds the first time."""
    if tokenizer not in _KEPT:
        ids = range(tokenizer.vocab_size)
        pieces = tuple(b"" if tokenizer.is_control(token_id) else tokenizer.piece(token_id) for token_id in ids)
        _KEPT[tokenizer] = TokenTexts(pieces, tuple(sorted(tokenizer.eog_ids)), _end_id(tokenizer))
    return _KEPT[tokenizer]


def _end_id(tokenizer: Tokenizer) -> int | None:
    by_text = {tokenizer.piece(token_id).decode("utf-8", "replace"): token_id for token_id in tokenizer.eog_ids}
    return next((by_text[text] for text in _TURN_ENDS if text in by_text), tokenizer.eos_id)


def infill(candidates: Candidates, texts: TokenTexts, row: Row) -> Candidates:
    """Return the candidates that are left."""
    probabilities = candidates.probabilities()
    is_end = np.isin(candidates.ids, texts.eog_ids)
    p_end, p_text = float(probabilities[is_end].sum()), float(probabilities[~is_end].sum())
    if _END_WEIGHT * p_end * candidates.ids.size > p_text:
        return candidates.kept(is_end)
    merged = _merged(candidates, probabilities, is_end, texts)
    is_likely = merged >= _LEAST
    num_texts = int(np.count_nonzero(is_likely & ~is_end))
    if num_texts == 0:
        return _end(candidates, texts, row)
    is_left = (is_likely | is_end) & (merged > 0)
    least = merged[is_left].sum() / (num_texts + 1)
    return candidates.kept(is_left & (is_end | (merged >= least)))


def _end(candidates: Candidates, texts: TokenTexts, row: Row) -> Candidates:
    """Return the end alone, or the most likely candidate where it may not come."""
    end_id = texts.end_id
    if end_id is None or not _may_come(end_id, row):
        return candidates.kept(candidates.most_likely(1))
    return Candidates(np.array([end_id]), np.ones(1), candidates.vocab_size)


def _may_come(token_id: int, row: Row) -> bool:
    assert row.sampling is not None
    is_allowed = row.token_filter is None or bool(row.token_filter.allowed()[token_id])
    return is_allowed and (token_id, -math.inf) not in row.sampling.logit_bias


def _merged(candidates: Candidates, probabilities: Floats, is_end: npt.NDArray[np.bool_], texts: TokenTexts) -> Floats:
    """Return the probabilities (C,), those of tokens with one beginning joined at the likelier one."""
    merged = probabilities.copy()
    order = candidates.order()
    places = order[(np.arange(order.size) < MAX_MERGED) | is_end[order]].tolist()
    by_text = sorted((texts.pieces[candidates.ids[place]], rank) for rank, place in enumerate(places))
    is_merged = [False] * len(places)
    for rank, place in enumerate(places):
        for other in sorted(_going_on(by_text, texts.pieces[candidates.ids[place]])):
            if is_merged[rank]:
                break
            if other == rank or is_merged[other]:
                continue
            kept, gone = (other, rank) if merged[places[other]] > merged[place] else (rank, other)
            merged[places[kept]] += merged[places[gone]]
            merged[places[gone]] = 0
            is_merged[gone] = True
    return merged


def _going_on(by_text: Sequence[tuple[bytes, int]], text: bytes) -> Iterator[int]:
    """Yield those of the texts, which are in order, that begin with `text`, unless that is empty."""
    index = bisect_left(by_text, (text, -1)) if text else len(by_text)
    while index < len(by_text) and by_text[index][0].startswith(text):
        yield by_text[index][1]
        index += 1
