"""Which tokens a request gives up when its context is full and it is to go on: llama-server's context shift.

The tokens after the first `num_keep` are given up, and those behind them are computed again at their new positions,
as after a preemption: the tokens that follow are those of a request that had never had the others. (llama-server
rotates the keys that it has, which costs less and computes what no prompt would.)
"""

from dataclasses import dataclass

from scheduler.cohort import Activation, Activations

_LEAST_LEFT = 4
"""Tokens of a context that are never kept, so that some can be given up; as in llama-server."""


@dataclass(frozen=True, slots=True)
class ContextShift:
    """How a request goes on in a full context."""

    num_keep: int
    """Of the first tokens; a full context leaves at least 4 others."""
    num_discard: int
    """As many are given up at a time, at least one and never all that are not kept; 0: half of these."""

    def kept(self, max_context: int) -> int:
        """Return how many of the first tokens stay."""
        return min(self.num_keep, max(max_context - _LEAST_LEFT, 0))

    def discarded(self, max_context: int) -> int:
        """Return how many tokens after them a full context gives up."""
        num_left = max_context - self.kept(max_context)
        return min(self.num_discard or num_left // 2, num_left - 1)


def shifted(activations: Activations, num_kept: int, num_dropped: int) -> Activations:
    """Return where adapters begin to act once `num_dropped` tokens after the first `num_kept` are gone."""
    if not num_dropped:
        return activations
    return tuple(
        Activation(start if start <= num_kept else max(start - num_dropped, num_kept), adapter)
        for start, adapter in activations
    )
