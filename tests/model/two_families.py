"""Two tiny models whose layers have, between them, every part that an adapter can change."""

from collections.abc import Mapping

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM


def two_families(
    vocab_size: int, hidden_size: int, intermediate_size: int, head_dim: int
) -> Mapping[str, PreTrainedModel]:
    """Make them with random weights: biases on all linears of the layers, norms on queries and keys, a tied head and
    one of its own."""
    shape = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "attention_bias": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return {
        "qwen3": _random(Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=False))),
        "llama": _random(LlamaForCausalLM(LlamaConfig(**shape, mlp_bias=True, tie_word_embeddings=True))),
    }


def _random(model: PreTrainedModel) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else noise * parameter.shape[-1] ** -0.5)
    model.eval().requires_grad_(False)
    return model
