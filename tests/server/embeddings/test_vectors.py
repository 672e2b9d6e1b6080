"""Norms of vectors, whatever their size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from scheduler.batch import Pooling, SamplingParams
from scheduler.request import Request
from server.embeddings.vectors import VectorForm, normalised
from server.errors import GenerationFailed

Floats = NDArray[np.float32]
vectors = arrays.arrays(np.float32, (2, 5), elements=st.floats(-(2.0**100), 2.0**100, width=32))


@settings(deadline=None)
@given(vectors, st.integers(1, 40))
def test_a_p_norm_becomes_1_and_no_direction_changes(vectors: Floats, norm: int) -> None:
    for vector, got in zip(vectors, normalised(vectors, norm), strict=True):
        assert got.dtype == np.float32
        if not vector.any():
            assert not got.any()
            continue
        assert np.isclose((np.abs(got.astype(np.float64)) ** norm).sum() ** (1 / norm), 1, rtol=1e-5)
        largest = np.abs(vector).argmax()
        np.testing.assert_allclose(got / got[largest], vector / vector[largest], rtol=1e-5, atol=1e-30)


def test_the_other_norms() -> None:
    vectors = np.array([[3, -4], [0, 0]], np.float32)
    assert normalised(vectors, -1).tolist() == [[3, -4], [0, 0]]
    assert normalised(vectors, 0).tolist() == [[24570, -32760], [0, 0]]
    assert normalised(vectors, 2).tolist() == np.array([[0.6, -0.8], [0, 0]], np.float32).tolist()


def test_states_that_are_not_finite_are_an_error_and_no_vector() -> None:
    pooled = np.array([[1, np.nan]], np.float32).tobytes()
    request = Request(0, (), (5,), SamplingParams(), 0, pooling=Pooling.LAST, pooled=pooled)
    with pytest.raises(GenerationFailed, match="not finite"):
        VectorForm(Pooling.LAST, 2, is_base64=False).item(0, request)
