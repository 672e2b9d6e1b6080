"""Of which tokens of a step something is wanted from a decoder, and what it gives.

S tokens with logits, n with states, D hidden, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Wanted(NamedTuple):
    """Indices of tokens in a step (int64, on the decoder's device). No token is named twice."""

    logits: Tensor  # (S,)
    """Whose logits are wanted."""
    states: Tensor = torch.empty(0, dtype=torch.int64)  # (n,)
    """Whose hidden states after the last norm are."""

    @property
    def rows(self) -> Tensor:
        """All of them (S + n,), those with logits first."""
        return torch.cat(self) if len(self.states) else self.logits


class Outputs(NamedTuple):
    """Float32, valid until the next step."""

    logits: Tensor  # (S, V) or wider, where adapters add tokens
    states: Tensor  # (n, D)
