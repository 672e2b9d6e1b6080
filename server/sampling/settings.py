"""The settings that say how tokens are chosen for requests that say nothing about it. Flags and defaults are
llama-server's; what a request says goes before, field by field.
"""

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode

from scheduler.batch import Sampler, SamplerChain
from server.sampling.values import BOUND, read_biases, read_breakers, read_samplers
from server.setting_flags import NonNegative, flag

_DEFAULT = SamplerChain()
Bounded = Annotated[float, Field(ge=-BOUND, le=BOUND)]
Unit = Annotated[float, Field(ge=0, le=1)]


class SamplerSettings(BaseSettings):
    """The part of the settings that is about samplers."""

    seed: Annotated[int, flag("-s", "--seed", help="seed of requests that name none; -1: random", metavar="N")] = -1
    temp: Annotated[float, Field(ge=0), flag("--temp", "--temperature", help="temperature; 0: greedy", metavar="X")] = (
        0.8
    )
    top_k: Annotated[NonNegative, flag("--top-k", help="0: the whole vocabulary", metavar="N")] = 40
    top_p: Annotated[float, Field(ge=0, le=1), flag("--top-p", help="1: off", metavar="X")] = 0.95
    min_p: Annotated[float, Field(ge=0, le=1), flag("--min-p", help="0: off", metavar="X")] = 0.05
    repeat_penalty: Annotated[float, Field(gt=0), flag("--repeat-penalty", help="1: off", metavar="X")] = 1.0
    repeat_last_n: Annotated[
        int, Field(ge=-1), flag("--repeat-last-n", help="tokens the penalties look at; -1: all", metavar="N")
    ] = 64
    presence_penalty: Annotated[float, flag("--presence-penalty", help="0: off", metavar="X")] = 0.0
    frequency_penalty: Annotated[float, flag("--frequency-penalty", help="0: off", metavar="X")] = 0.0
    logit_bias: Annotated[
        tuple[tuple[int, Annotated[float, Field(allow_inf_nan=True)]], ...],
        NoDecode,
        flag(
            "-l",
            "--logit-bias",
            help="what is added to a token's logit, as 15043+1 or 15043-1; -inf: never; repeatable",
            metavar="TOKEN_ID(+/-)BIAS",
        ),
    ] = ()
    ignore_eos: Annotated[bool, flag("--ignore-eos", help="let no token end an answer")] = False
    samplers: Annotated[
        tuple[Sampler, ...],
        NoDecode,
        flag(
            "--samplers",
            "--sampling-seq",
            "--sampler-seq",
            help="the samplers in order: names separated by semicolons, or their letters",
            metavar="NAMES",
        ),
    ] = _DEFAULT.samplers
    dynatemp_range: Annotated[Bounded, flag("--dynatemp-range", help="0: off", metavar="X")] = _DEFAULT.dynatemp_range
    dynatemp_exponent: Annotated[Bounded, flag("--dynatemp-exp", help="of dynamic temperature", metavar="X")] = (
        _DEFAULT.dynatemp_exponent
    )
    typical_p: Annotated[
        Unit, flag("--typical", "--typical-p", help="locally typical sampling; 1: off", metavar="X")
    ] = _DEFAULT.typical_p
    top_n_sigma: Annotated[Bounded, flag("--top-nsigma", "--top-n-sigma", help="0 and less: off", metavar="X")] = (
        _DEFAULT.top_n_sigma
    )
    xtc_probability: Annotated[Unit, flag("--xtc-probability", help="0: off", metavar="X")] = _DEFAULT.xtc_probability
    xtc_threshold: Annotated[Unit, flag("--xtc-threshold", help="above 0.5: off", metavar="X")] = _DEFAULT.xtc_threshold
    dry_multiplier: Annotated[Bounded, flag("--dry-multiplier", help="0: off", metavar="X")] = _DEFAULT.dry_multiplier
    dry_base: Annotated[
        float, Field(ge=1, le=BOUND), flag("--dry-base", help="of the penalty for repetitions", metavar="X")
    ] = _DEFAULT.dry_base
    dry_allowed_length: Annotated[
        NonNegative, flag("--dry-allowed-length", help="tokens that may be repeated", metavar="N")
    ] = _DEFAULT.dry_allowed_length
    dry_penalty_last_n: Annotated[
        NonNegative, flag("--dry-penalty-last-n", help="tokens that are searched; 0: off", metavar="N")
    ] = _DEFAULT.dry_penalty_last_n
    dry_sequence_breakers: Annotated[
        tuple[str, ...],
        NoDecode,
        flag("--dry-sequence-breaker", help="a text that repetitions end at; repeatable", metavar="TEXT"),
    ] = _DEFAULT.dry_sequence_breakers
    mirostat: Annotated[int, Field(ge=0, le=2), flag("--mirostat", help="version of Mirostat; 0: off", metavar="N")] = (
        _DEFAULT.mirostat
    )
    mirostat_tau: Annotated[Bounded, flag("--mirostat-ent", help="target entropy of Mirostat", metavar="X")] = (
        _DEFAULT.mirostat_tau
    )
    mirostat_eta: Annotated[Bounded, flag("--mirostat-lr", help="learning rate of Mirostat", metavar="X")] = (
        _DEFAULT.mirostat_eta
    )
    adaptive_target: Annotated[
        float,
        Field(ge=-1, le=1),
        flag("--adaptive-target", help="probability of adaptive-p; below 0: off", metavar="X"),
    ] = _DEFAULT.adaptive_target
    adaptive_decay: Annotated[
        float, Field(ge=0, le=0.99), flag("--adaptive-decay", help="of adaptive-p", metavar="X")
    ] = _DEFAULT.adaptive_decay

    @property
    def chain(self) -> SamplerChain:
        """The samplers beyond the usual ones, and the order of all."""
        return SamplerChain(
            samplers=self.samplers,
            dynatemp_range=self.dynatemp_range,
            dynatemp_exponent=self.dynatemp_exponent,
            typical_p=self.typical_p,
            top_n_sigma=self.top_n_sigma,
            xtc_probability=self.xtc_probability,
            xtc_threshold=self.xtc_threshold,
            dry_multiplier=self.dry_multiplier,
            dry_base=self.dry_base,
            dry_allowed_length=self.dry_allowed_length,
            dry_penalty_last_n=self.dry_penalty_last_n,
            dry_sequence_breakers=self.dry_sequence_breakers,
            mirostat=self.mirostat,
            mirostat_tau=self.mirostat_tau,
            mirostat_eta=self.mirostat_eta,
            adaptive_target=self.adaptive_target,
            adaptive_decay=self.adaptive_decay,
        )

    @field_validator("samplers", mode="before")
    @classmethod
    def _split_samplers(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return read_samplers(value.split(";"))
        except PydanticCustomError:
            return read_samplers(value)

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _read_biases(cls, value: object) -> object:
        texts = value.split(",") if isinstance(value, str) else value
        return read_biases(texts) if isinstance(texts, list) else texts

    @field_validator("dry_sequence_breakers", mode="before")
    @classmethod
    def _read_breakers(cls, value: object) -> object:
        texts = [value] if isinstance(value, str) else value
        return read_breakers(texts) if isinstance(texts, list) else texts
