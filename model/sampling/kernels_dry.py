"""How far the end of a sequence of tokens repeats earlier parts of it, as a kernel: linear in its length.

Source: the Z-algorithm, Gusfield, "Algorithms on strings, trees and sequences", 1997, section 1.3.
"""

import numpy as np
from numpy.typing import NDArray

from model.cpu.jit import kernel


@kernel
def common_lengths(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (n,) for each place of `tokens` (n,): how many from there on equal those from the beginning on."""
    n = tokens.size
    lengths = np.zeros(n, np.int64)
    left, right = 0, 0  # tokens[left:right] is the match that reaches furthest
    for place in range(1, n):
        length = min(lengths[place - left], right - place) if place < right else 0
        while place + length < n and tokens[length] == tokens[place + length]:
            length += 1
        lengths[place] = length
        if place + length > right:
            left, right = place, place + length
    if n:
        lengths[0] = n
    return lengths
