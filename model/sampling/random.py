"""The random numbers of the samplers: hashes of a request's seed and a position, so that a token does not depend on
what else is computed, nor on how often.

Source: SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

_MASK64 = 2**64 - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int, number: int = 0) -> float:
    """Return the number in [0, 1), a multiple of 2^-53, that decides the token at `position` of a request with `seed`.

    SplitMix64's stream of a seed that was mixed first, read at `position`: neighbouring seeds give unrelated streams.
    A sampler that decides something else there has a `number` of its own, from 1 on.
    """
    bits = _mix64(_mix64(seed + _GOLDEN_GAMMA) + (position + 1) * _GOLDEN_GAMMA)
    if number:
        bits = _mix64(bits + number * _GOLDEN_GAMMA)
    return (bits >> 11) * 2.0**-53


def _mix64(value: int) -> int:
    value &= _MASK64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK64
    return value ^ (value >> 31)
