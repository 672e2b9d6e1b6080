"""What counts as a near-tie."""

import pytest

from tests.differential.token_streams import MAX_TIE_GAP, Token, parting_of


@pytest.mark.parametrize(
    ("our_gap", "peer_gap", "is_tie"),
    [(0.0, 0.0, True), (MAX_TIE_GAP / 2, MAX_TIE_GAP / 2, True), (0.0, 0.1, False), (0.1, 0.0, False)],
)
def test_a_tie_is_close_on_both_servers(our_gap: float, peer_gap: float, is_tie: bool) -> None:
    ours, peers = Token(1, {1: -1.0, 2: -1.0 - our_gap}), Token(2, {1: -1.0 - peer_gap, 2: -1.0})

    assert parting_of(0, ours, peers).is_tie is is_tie


def test_a_rival_that_is_no_candidate_makes_a_difference() -> None:
    parting = parting_of(3, Token(1, {1: -1.0}), Token(2, {1: -1.0, 2: -1.0}))

    assert (parting.position, parting.our_gap, parting.is_tie) == (3, float("inf"), False)
