"""What the values of samplers may be, in bodies and in settings: the names and letters of an order, the texts that end
a repetition, biases, the size of numbers. It must not import the model, for the command line is read without it.

Source: llama-server's documented names.
"""

import math
from collections.abc import Sequence

from scheduler.batch import Sampler
from server.fields import json_type, refuse

BOUND = 1e6
"""Of numbers without bounds of their own: larger ones overflow the logits."""
_MAX_SAMPLERS = 32
_MAX_BREAKERS = 64
_MAX_BREAKER_BYTES = 40
_MAX_DIGITS = 9
"""Of a token's id."""

_LETTERS = {
    "e": Sampler.PENALTIES,
    "d": Sampler.DRY,
    "s": Sampler.TOP_N_SIGMA,
    "k": Sampler.TOP_K,
    "y": Sampler.TYPICAL_P,
    "p": Sampler.TOP_P,
    "m": Sampler.MIN_P,
    "x": Sampler.XTC,
    "t": Sampler.TEMPERATURE,
    "i": Sampler.INFILL,
    "a": Sampler.ADAPTIVE_P,
}
"""The short form of `samplers`."""
_NAMES = {
    **{str(sampler): sampler for sampler in Sampler},
    **{sampler.replace("_", "-"): sampler for sampler in Sampler},
    **{sampler.replace("_", ""): sampler for sampler in Sampler},
    "typical_p": Sampler.TYPICAL_P,
    "typ": Sampler.TYPICAL_P,
    "nucleus": Sampler.TOP_P,
    "temp": Sampler.TEMPERATURE,
}


def read_samplers(value: object) -> tuple[Sampler, ...]:
    """Return an order of samplers, by names or letters. Raises PydanticCustomError."""
    if not isinstance(value, str | list):
        raise refuse(f"must be an array of names of samplers or a string of their letters, but is {json_type(value)}")
    if len(value) > _MAX_SAMPLERS:
        raise refuse(f"must name at most {_MAX_SAMPLERS} samplers, but names {len(value)}")
    return tuple(_read_sampler(name, is_letter=isinstance(value, str)) for name in value)


def _read_sampler(name: object, *, is_letter: bool) -> Sampler:
    if not isinstance(name, str):
        raise refuse(f"must hold names of samplers, but holds {json_type(name)}")
    sampler = _LETTERS.get(name) if is_letter else _NAMES.get(name.lower())
    if sampler is None:
        known = "".join(_LETTERS) if is_letter else ", ".join(_LETTERS.values())
        raise refuse(f"has the samplers {known}, but got {name[:40]!r}")
    return sampler


def read_breakers(value: object) -> tuple[str, ...]:
    """Return the texts that end a repetition. Raises PydanticCustomError."""
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise refuse(f"must be a non-empty array of strings, but is {json_type(value)}")
    if len(value) > _MAX_BREAKERS:
        raise refuse(f"must be at most {_MAX_BREAKERS} strings, but are {len(value)}")
    for text in value:
        if not 0 < len(text.encode()) <= _MAX_BREAKER_BYTES:
            raise refuse(f"each must have 1 to {_MAX_BREAKER_BYTES} bytes, but got {text[:80]!r}")
    return tuple(value)


def read_biases(texts: Sequence[str]) -> tuple[tuple[int, float], ...]:
    """Return what is added to the logits of tokens, written as `15043+1` or `15043-1`, `-inf` to forbid the token.
    Raises PydanticCustomError."""
    biases: dict[int, float] = {}
    for text in texts:
        token_id, bias = _read_bias(text)
        if token_id in biases:
            raise refuse(f"must name each token once, but names {token_id} twice")
        biases[token_id] = bias
    return tuple(sorted(biases.items()))


def _read_bias(text: str) -> tuple[int, float]:
    number = text.lstrip("0123456789")
    digits = text.removesuffix(number)
    try:
        bias = float(number) if number[:1] in ("+", "-") else math.nan
    except ValueError:
        bias = math.nan
    if not 0 < len(digits) <= _MAX_DIGITS or not (abs(bias) <= BOUND or bias == -math.inf):
        raise refuse(f"must be a token id, + or -, and a number of at most {BOUND:g}, but got {text[:40]!r}")
    return int(digits), bias
