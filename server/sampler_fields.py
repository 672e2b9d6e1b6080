"""The fields of a body that say which samplers there are beyond the usual ones, and in which order all of them run.

Source: llama-server's documented fields, names and defaults.
"""

import asyncio
from dataclasses import fields, replace
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from model.sampler_breakers import breaker_tokens
from model.tokenizer import Tokenizer
from scheduler.batch import Sampler, SamplerChain
from server.fields import Flag, json_type, real, refuse, whole

_DEFAULT = SamplerChain()
BOUND = 1e6
"""Of numbers without bounds of their own: larger ones overflow the logits."""
_OF_CHAIN = {field.name for field in fields(SamplerChain)} - {"dry_breakers"}
_MAX_SAMPLERS = 32
_MAX_BREAKERS = 64
_MAX_BREAKER_BYTES = 40

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


def _read_base(base: float) -> float:
    return base if base >= 1 else _DEFAULT.dry_base


def _clamp(low: float, high: float) -> AfterValidator:
    return AfterValidator(lambda value: min(max(value, low), high))


class SamplerFields(BaseModel):
    """Fields of samplers beyond the usual ones."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    samplers: Annotated[tuple[Sampler, ...], BeforeValidator(read_samplers, json_schema_input_type=str | list[str])] = (
        _DEFAULT.samplers
    )
    dynatemp_range: Annotated[float, real(-BOUND, BOUND)] = _DEFAULT.dynatemp_range
    dynatemp_exponent: Annotated[float, real(-BOUND, BOUND)] = _DEFAULT.dynatemp_exponent
    typical_p: Annotated[float, real()] = _DEFAULT.typical_p
    top_n_sigma: Annotated[float, real(-BOUND, BOUND)] = _DEFAULT.top_n_sigma
    xtc_probability: Annotated[float, real(), _clamp(0.0, 1.0)] = _DEFAULT.xtc_probability
    xtc_threshold: Annotated[float, real(), _clamp(0.0, 1.0)] = _DEFAULT.xtc_threshold
    dry_multiplier: Annotated[float, real(-BOUND, BOUND)] = _DEFAULT.dry_multiplier
    dry_base: Annotated[float, real(-BOUND, BOUND), AfterValidator(_read_base)] = _DEFAULT.dry_base
    dry_allowed_length: Annotated[int, whole(0)] = _DEFAULT.dry_allowed_length
    dry_penalty_last_n: Annotated[int, whole(0)] = _DEFAULT.dry_penalty_last_n
    dry_sequence_breakers: Annotated[
        tuple[str, ...], BeforeValidator(read_breakers, json_schema_input_type=list[str])
    ] = _DEFAULT.dry_sequence_breakers
    mirostat: Annotated[int, whole(), _clamp(0, 2)] = _DEFAULT.mirostat
    mirostat_tau: Annotated[float, real(-BOUND, BOUND)] = _DEFAULT.mirostat_tau
    mirostat_eta: Annotated[float, real(-BOUND, BOUND)] = _DEFAULT.mirostat_eta
    adaptive_target: Annotated[float, real(), _clamp(-1.0, 1.0)] = _DEFAULT.adaptive_target
    adaptive_decay: Annotated[float, real(0.0, 0.99)] = _DEFAULT.adaptive_decay
    post_sampling_probs: Flag = False


async def read_chain(body: SamplerFields, tokenizer: Tokenizer, default: SamplerChain) -> SamplerChain | None:
    """Return the chain that `body` asks for, where it says nothing that of `default`; None where both say nothing."""
    said = {name: getattr(body, name) for name in body.model_fields_set & _OF_CHAIN}
    chain = replace(default, **said)
    if chain.uses_dry:
        breakers = await asyncio.to_thread(breaker_tokens, tokenizer, chain.dry_sequence_breakers)
        return replace(chain, dry_breakers=breakers)
    return None if chain == _DEFAULT else chain
