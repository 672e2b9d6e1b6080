"""What a checkpoint says about its model: sizes, and the few choices in which the families of the one decoder differ.

Plain values. config_hf.py and config_gguf.py read them from files, rope.py turns the rotary part into frequencies.
Knows nothing of tensors or kernels.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "mixtral", "qwen3_moe")
"""Supported values of `model_type`; smollm and smollm2 call themselves llama."""

MAX_LAYERS = 10_000
"""A file that says more is damaged, and what is counted by layers must not cost more than the file warrants."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be served as it is. The message names the file, the field or tensor, and the remedy."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every rotary frequency divided by one factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's: long wavelengths divided by the factor, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN's (arXiv 2309.00071): a ramp over dimensions, and cosine and sine multiplied by `attention_factor`."""

    factor: float
    original_max_position: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Round the ends of the ramp to whole dimensions."""


@dataclass(frozen=True, slots=True)
class DivisorScaling:
    """Each rotary frequency divided by its own number: GGUF's tensor `rope_freqs.weight`."""

    divisors: tuple[float, ...]


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | YarnScaling | DivisorScaling


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of a layer's MLP: a router picks a few of many small MLPs for each token."""

    count: int
    per_token: int
    intermediate_size: int
    """F of one expert."""
    are_normalised: bool
    """The probabilities of the experts that a token picks are divided by their sum."""
    dense_layers: frozenset[int] = frozenset()
    """Layers that have an ordinary MLP all the same."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The decoder's hyperparameters."""

    family: str
    """One of `FAMILIES`."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position: int
    """The context length that the file states."""
    tied_embeddings: bool
    """The output matrix is the embedding matrix."""
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """Queries and keys are normed per head before they are rotated."""
    sliding_window: int | None
    """A token attends to itself and the `sliding_window - 1` tokens before it; None: to all of them."""
    full_layers: frozenset[int] = frozenset()
    """Layers without the window in a model that has one."""
    local_rope_theta: float | None = None
    """The unscaled base frequency of layers with the window; None: they rotate like the others."""
    attention_scale: float | None = None
    """What scores are multiplied by; None: 1 / √head_dim."""
    activation: Literal["silu", "gelu"] = "silu"
    """Of the MLP's gate; gelu in its tanh form."""
    norm_offset: float = 0.0
    """Added to the weight of every norm: the files of some families hold its distance from 1."""
    sandwich_norms: bool = False
    """What attention and MLP give is normed too, before it is added to the residual stream."""
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    """Logits l become cap · tanh(l / cap)."""
    experts: Experts | None = None

    def window(self, layer: int) -> int | None:
        """Return the sliding window of a layer, None where it has none."""
        return None if layer in self.full_layers else self.sliding_window

    def experts_of(self, layer: int) -> Experts | None:
        """Return the experts of a layer, None where it has an ordinary MLP."""
        return None if self.experts is None or layer in self.experts.dense_layers else self.experts

    def check(self, source: str) -> None:
        """Raise CheckpointError where sizes contradict each other; `source` names the file."""
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"{source}: {self.num_heads} attention heads are not a multiple of {self.num_kv_heads} key/value heads"
            )
        if self.head_dim % 8 or self.head_dim > 256:
            # The attention kernels of every backend share these bounds.
            raise CheckpointError(f"{source}: the head size is {self.head_dim}, multiples of 8 up to 256 are supported")
        if self.experts is not None and self.experts.per_token > self.experts.count:
            raise CheckpointError(
                f"{source}: {self.experts.per_token} experts for each token, but there are {self.experts.count}"
            )
        if isinstance(self.rope_scaling, YarnScaling) and self.rope_theta <= 1:
            raise CheckpointError(
                f"{source}: YaRN needs a base frequency (theta) greater than 1, not {self.rope_theta}"
            )
        if isinstance(self.rope_scaling, DivisorScaling) and len(self.rope_scaling.divisors) != self.head_dim // 2:
            raise CheckpointError(
                f"{source}: {len(self.rope_scaling.divisors)} rotary divisors for heads of {self.head_dim}, "
                f"{self.head_dim // 2} are needed"
            )
