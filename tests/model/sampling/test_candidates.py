"""The order of candidates, however close or equal their logits are."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from model.sampling.candidates import Candidates

close = st.integers(-3, 3).map(lambda step: 1.0 + step * 2.0**-50)
"""Equal as float32."""
logits_strategy = st.lists(st.one_of(close, st.sampled_from([0.0, -0.0, -2.5]), st.floats(-1e6, 1e6)), min_size=1)


@settings(max_examples=300, deadline=None)
@given(logits=logits_strategy, count=st.integers(1, 20))
def test_the_most_likely_come_first_and_equal_ones_by_id(logits: list[float], count: int) -> None:
    candidates = Candidates(np.arange(len(logits)) + 7, np.array(logits), len(logits) + 7)
    by_likelihood = sorted(range(len(logits)), key=lambda place: (-logits[place], place))
    count = min(count, len(logits))

    assert candidates.order().tolist() == by_likelihood
    assert np.flatnonzero(candidates.most_likely(count)).tolist() == sorted(by_likelihood[:count])
