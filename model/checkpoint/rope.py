"""The rotary embedding's frequencies, after the scaling that a checkpoint asks for.

Sources: RoFormer (arXiv 2104.09864), Llama 3.1's model card code, YaRN (arXiv 2309.00071); the order of the float32
operations is that of transformers' `modeling_rope_utils`, so that results agree bit for bit. h: head size.
"""

import math
from dataclasses import replace

import torch

from model.checkpoint.config import DivisorScaling, LinearScaling, Llama3Scaling, ModelConfig, YarnScaling


def rope_frequencies(config: ModelConfig) -> torch.Tensor:
    """Return the angle per position of each rotated pair, (h/2,) float32 on the CPU."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim  # (h/2,)
    periods = config.rope_theta**exponents
    plain: torch.Tensor = 1.0 / periods
    match config.rope_scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case DivisorScaling(divisors):
            return plain / torch.tensor(divisors, dtype=torch.float32)
        case Llama3Scaling():
            return _llama3(plain, config.rope_scaling)
        case YarnScaling():
            ramp = _yarn_ramp(config.rope_scaling, config.head_dim, config.rope_theta)
            return 1.0 / (config.rope_scaling.factor * periods) * (1 - ramp) + plain * ramp


def local_rope_config(config: ModelConfig) -> ModelConfig | None:
    """Return the configuration whose rotary embedding the layers with a sliding window have; None: they have no own."""
    if config.local_rope_theta is None:
        return None
    return replace(config, rope_theta=config.local_rope_theta, rope_scaling=None)


def rope_attention_factor(config: ModelConfig) -> float:
    """Return the number that multiplies every cosine and sine: 1 but for YaRN."""
    return config.rope_scaling.attention_factor if isinstance(config.rope_scaling, YarnScaling) else 1.0


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """Return YaRN's recommended magnitude of cosine and sine for a context longer by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _llama3(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    wavelengths = 2 * math.pi / plain
    longest = scaling.original_max_position / scaling.low_freq_factor
    shortest = scaling.original_max_position / scaling.high_freq_factor
    turns = scaling.original_max_position / wavelengths
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    between = (1 - smooth) * plain / scaling.factor + smooth * plain
    scaled = torch.where(wavelengths > longest, plain / scaling.factor, between)
    return torch.where(wavelengths < shortest, plain, scaled)


def _yarn_ramp(scaling: YarnScaling, head_dim: int, theta: float) -> torch.Tensor:
    """Return how much of each pair's plain frequency stays: 1 for the fast pairs, 0 for the slow ones, (h/2,)."""

    def dimension(turns: float) -> float:
        """Where a pair turns so many times over the original context."""
        return head_dim * math.log(scaling.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # as transformers does, against a division by zero
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)
    return 1 - ramp.clamp(0, 1)
