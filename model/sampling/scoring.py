"""The log-probabilities of a prompt's tokens: which rows of logits they come from, and what those come to.

The logits of a whole prompt are large, so no more than `MAX_LOGIT_ROWS` of them are there at once: a step that wants
more is computed in parts, by cutting rows. How a prompt is cut changes no bit of its logits, and so none of a score.

n tokens to score, S rows to sample, V vocabulary of the batch's adapter list.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from model.sampling.sampler import model_logprobs
from scheduler.batch import Row, Sample, Scores, Scoring

MAX_LOGIT_ROWS = 64
"""Beside those that are sampled from."""


def tokens_with_logits(row: Row) -> list[int]:
    """Return which of a row's tokens have logits that are wanted, by their index in the row: first those for scores,
    then the one that is sampled from."""
    sampled = [] if row.sampling is None else [len(row.token_ids) - 1]
    return [*range(_num_scored(row)), *sampled]


def _num_scored(row: Row) -> int:
    return 0 if row.scoring is None else len(row.scoring.token_ids)


def parts_of(rows: tuple[Row, ...]) -> list[tuple[Row, ...]]:
    """Return the rows of a step as those of several, one after the other, each with at most `MAX_LOGIT_ROWS` tokens to
    score. Rows are cut, and keep their order; what a row wants of its last token the last of its parts wants."""
    parts: list[tuple[Row, ...]] = []
    left = rows
    while left:
        part: list[Row] = []
        later: list[Row] = []
        room = MAX_LOGIT_ROWS
        for row in left:
            count = _num_scored(row)
            if count <= room:
                part.append(row)
            else:
                part += [_piece(row, 0, room)] if room else []
                later.append(_piece(row, room, len(row.token_ids)))
            room = max(room - count, 0)
        parts.append(tuple(part))
        left = tuple(later)
    return parts


def _piece(row: Row, start: int, stop: int) -> Row:
    """Return the tokens start … stop - 1 of a row with scores, as a row."""
    assert row.scoring is not None
    following = row.scoring.token_ids[start:stop]
    return replace(
        row,
        token_ids=row.token_ids[start:stop],
        start=row.start + start,
        sampling=row.sampling if stop == len(row.token_ids) else None,
        scoring=Scoring(following, row.scoring.num_logprobs) if following else None,
    )


def score_rows(rows: Sequence[Row], logits: Tensor) -> tuple[Tensor, tuple[Scores, ...]]:
    """Return the scores of rows, and the logits of those that sample: `logits` (n + S, V) are those of all tokens that
    have any, in the order of the rows."""
    if all(row.scoring is None for row in rows):
        return logits, ()
    sampled: list[int] = []
    scores: list[Scores] = []
    taken = 0
    for row in rows:
        if row.scoring is not None:
            count = len(row.scoring.token_ids)
            scores.append(_score(row, row.scoring, logits[taken : taken + count].cpu().numpy()))
            taken += count
        if row.sampling is not None:
            sampled.append(taken)
            taken += 1
    return logits[sampled], tuple(scores)


def _score(row: Row, scoring: Scoring, logits: NDArray[np.float32]) -> Scores:
    tokens = []
    for token_id, each in zip(scoring.token_ids, logits, strict=True):
        logprob, top = model_logprobs(each, min(token_id, each.size - 1), scoring.num_logprobs)
        if token_id >= each.size:  # a token that only an adapter knows which is not in the list yet
            logprob = -math.inf
        tokens.append(Sample(row.request_id, token_id, logprob, top))
    return Scores(row.request_id, row.start, tuple(tokens))


def joined(scores: Sequence[Scores]) -> tuple[Scores, ...]:
    """Return the scores of the parts of a step as those of its rows, in the order of the rows."""
    of_rows: dict[int, Scores] = {}
    for each in scores:
        before = of_rows.get(each.request_id)
        of_rows[each.request_id] = each if before is None else replace(before, tokens=before.tokens + each.tokens)
    return tuple(of_rows.values())
