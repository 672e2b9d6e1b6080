"""The sampler for filling in the middle, against a plain reference and by example."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.sampling.candidates import Candidates
from model.sampling.infill import MAX_MERGED, infill, token_texts
from scheduler.batch import Row, SamplerChain, SamplingParams, TokenFilter, TokenTexts
from tests.model import sampler_reference
from tests.model.constraint_parts import make_tokenizer

V = 9


def row(*forbidden: int, token_filter: TokenFilter | None = None) -> Row:
    bias = tuple((token_id, -math.inf) for token_id in forbidden)
    return Row(1, (0,), 9, (0,), SamplingParams(logit_bias=bias), token_filter=token_filter)


def left(probabilities: dict[int, float], texts: TokenTexts, a_row: Row) -> list[int]:
    """The tokens that are left of those with these probabilities."""
    ids = np.array(sorted(probabilities))
    logits = np.log(np.array([probabilities[token_id] for token_id in ids.tolist()]))
    kept: list[int] = infill(Candidates(ids, logits, V), texts, a_row).ids.tolist()
    return kept


@settings(deadline=None, max_examples=500)
@given(
    st.lists(st.text("ab", max_size=2).map(str.encode), min_size=V, max_size=V),
    st.lists(st.integers(0, V - 1), max_size=2, unique=True).map(tuple),
    st.one_of(st.none(), st.integers(0, V - 1)),
    st.lists(st.floats(-9, 4), min_size=V, max_size=V, unique=True),
    st.booleans(),
)
def test_it_is_what_its_definition_says(
    pieces: list[bytes], ends: tuple[int, ...], end_id: int | None, logits: list[float], is_forbidden: bool
) -> None:
    texts = TokenTexts(pieces, ends, end_id)
    a_row = row(*([end_id] if is_forbidden and end_id is not None else []))
    assert a_row.sampling is not None
    chain = SamplerChain(token_texts=texts)
    expected = sampler_reference.infill(dict(enumerate(logits)), a_row.sampling, chain, a_row, 1)
    got = infill(Candidates(np.arange(V), np.array(logits), V), texts, a_row)
    assert dict(zip(got.ids.tolist(), got.logits.tolist(), strict=True)) == pytest.approx(expected)


TEXTS = TokenTexts((b"re", b"ret", b"return", b"x", b"", b""), (4, 5), 4)


@pytest.mark.parametrize(
    ("probabilities", "kept"),
    [
        ({0: 0.6, 3: 0.3, 4: 0.1}, [4]),  # three times the number of candidates outweighs the texts
        ({0: 0.55, 3: 0.44, 4: 0.01}, [0, 3, 4]),
        ({0: 0.15, 1: 0.15, 2: 0.16, 3: 0.54}, [2, 3]),  # one beginning, so one text
        ({0: 0.7, 3: 0.29, 4: 0.01}, [0, 4]),  # less than one of two
        ({0: 0.7, 3: 0.3}, [0]),
    ],
)
def test_texts_are_weighed_against_the_end_and_each_other(probabilities: dict[int, float], kept: list[int]) -> None:
    assert left(probabilities, TEXTS, row()) == kept


FLAT = dict.fromkeys(range(V), 1 / V)
UNLIKE = TokenTexts([bytes([97 + token_id]) for token_id in range(V)], (V,), 7)


class Only:
    """A filter that allows one token."""

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id

    def is_ready(self, _wait_s: float) -> bool:
        return True

    def allowed(self) -> bytes:
        return bytes(token_id == self._token_id for token_id in range(V))

    def can_end(self) -> bool:
        return False

    def accept(self, token_id: int) -> None:
        """Nothing changes."""


def test_where_no_text_is_likely_the_answer_ends_if_it_may() -> None:
    assert left(FLAT, UNLIKE, row()) == [7]
    assert left(FLAT, UNLIKE, row(7)) == [0]
    assert left(FLAT, UNLIKE, row(token_filter=Only(3))) == [0]
    assert left(FLAT, UNLIKE, row(token_filter=Only(7))) == [7]
    assert left(FLAT, TokenTexts(UNLIKE.pieces, (), None), row()) == [0]


def test_many_candidates_take_no_square_of_time() -> None:
    count = 20 * MAX_MERGED
    texts = TokenTexts([b"a" * (1 + token_id % 7) for token_id in range(count)], (), None)
    logits = np.where(np.arange(count) == 3, 12.0, 0.0)
    assert infill(Candidates(np.arange(count), logits, count), texts, row()).ids.tolist() == [3]


def test_a_tokenizer_tells_texts_and_ends() -> None:
    tokenizer = make_tokenizer([b"a", b"\xff"], ("</s>", "<|im_end|>", "<x>"), ("</s>", "<|im_end|>"))
    texts = token_texts(tokenizer)
    assert (list(texts.pieces), texts.eog_ids, texts.end_id) == ([b"a", b"\xff", b"", b"", b""], (2, 3), 3)
    assert token_texts(tokenizer) is texts
    assert token_texts(make_tokenizer([b"a"])).end_id == 1
