"""The fields of a body that say which samplers there are beyond the usual ones, and in which order all of them run.

Source: llama-server's documented fields, names and defaults.
"""

import asyncio
from dataclasses import fields, replace
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from model.sampling.breakers import breaker_tokens
from model.sampling.infill import token_texts
from model.tokens.tokenizer import Tokenizer
from scheduler.batch import Sampler, SamplerChain
from server.fields import Flag, real, whole
from server.sampling.values import BOUND, read_breakers, read_samplers

_DEFAULT = SamplerChain()
_OF_CHAIN = {field.name for field in fields(SamplerChain)} - {"dry_breakers", "token_texts"}


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
        chain = replace(chain, dry_breakers=breakers)
    if chain.uses_texts:
        chain = replace(chain, token_texts=await asyncio.to_thread(token_texts, tokenizer))
    return None if chain == _DEFAULT else chain
