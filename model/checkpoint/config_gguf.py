"""Read a ModelConfig from GGUF metadata, with the defaults and the meaning that llama.cpp gives its keys.

A key that changes what llama.cpp computes and that this decoder does not honour is refused by name. Source:
`load_hparams` in llama.cpp's llama-model.cpp, and the rope section of llama-context.cpp for YaRN's magnitude.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from model.checkpoint.config import (
    MAX_LAYERS,
    CheckpointError,
    DivisorScaling,
    Experts,
    LinearScaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
)
from model.checkpoint.fields import Fields
from model.checkpoint.gguf import GgufFile
from model.checkpoint.gguf_names import ROPE_DIVISORS
from model.checkpoint.rope import yarn_magnitude

_FAMILIES: Mapping[str, str] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma3": "gemma3_text",
}
"""By general.architecture. Mistral, smollm and, with experts, mixtral call themselves llama."""

_NOT_HONOURED: Mapping[str, tuple[object, ...]] = {
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0, 1),
    "expert_weights_norm": (True,),
    "expert_gating_func": (0, 1),
    "use_parallel_residual": (False,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "attn_logit_softcapping": (0,),
    "nextn_predict_layers": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.temperature_scale": (0,),
    "attention.key_length_mla": (0,),
    "rope.dimension_sections": (),
    "rope.scaling.yarn_log_multiplier": (0,),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.yarn_attn_factor": (1,),
}


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Return the configuration that a GGUF file describes.

    Raises CheckpointError naming the key that is missing, malformed or not supported.
    """
    source = str(file.path)
    general = Fields(file.metadata, source)
    architecture = general.text("general.architecture")
    if architecture not in _FAMILIES:
        raise general.error("general.architecture", f"supported are {', '.join(_FAMILIES)}")
    if general.integer("split.count", 1, minimum=0) > 1:
        raise general.error("split.count", "merge the parts into one file first (llama-gguf-split --merge)")
    fields = Fields(file.metadata, source, prefix=f"{architecture}.")
    fields.refuse_unless(_NOT_HONOURED)
    if architecture != "gemma3":
        fields.refuse_unless({"final_logit_softcapping": (0,), "attention.sliding_window_pattern": ()})
    config = _read(file, fields, architecture)
    if architecture == "gemma3":
        config = _with_gemma(config, fields)
    config.check(source)
    return config


def _read(file: GgufFile, fields: Fields, architecture: str) -> ModelConfig:
    """Read what all architectures have in common."""
    num_heads, max_position = fields.integer("attention.head_count"), fields.integer("context_length")
    experts = _experts(fields, architecture)
    return ModelConfig(
        family="mixtral" if architecture == "llama" and experts is not None else _FAMILIES[architecture],
        vocab_size=_vocab_size(file, fields),
        hidden_size=fields.integer("embedding_length"),
        num_layers=fields.integer("block_count", maximum=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=_head_dim(fields, num_heads),
        intermediate_size=fields.integer("feed_forward_length"),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number("rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(file, fields, max_position),
        max_position=max_position,
        tied_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=architecture in ("qwen3", "qwen3moe", "gemma3"),
        sliding_window=_sliding_window(fields, architecture),
        experts=experts,
    )


def _with_gemma(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Add what llama.cpp knows of Gemma 3, and the little that its files say."""
    softcap = fields.get("final_logit_softcapping")
    full_layers = _full_layers(fields, config.num_layers) if config.sliding_window is not None else frozenset()
    is_full = len(full_layers) == config.num_layers
    has_window = config.sliding_window is not None and not is_full
    # Only of the model with 62 layers (27B) the head size is not what queries are scaled by.
    width = config.hidden_size // config.num_heads if config.num_layers == 62 else config.head_dim
    return replace(
        config,
        sliding_window=config.sliding_window if has_window else None,
        full_layers=full_layers if has_window else frozenset(),
        local_rope_theta=fields.number("rope.freq_base_swa", 10000.0) if has_window else None,
        attention_scale=width**-0.5,
        activation="gelu",
        norm_offset=1.0,
        sandwich_norms=True,
        embedding_scale=math.sqrt(config.hidden_size),
        logit_softcap=None if softcap in (None, 0) else fields.number("final_logit_softcapping"),
    )


def _full_layers(fields: Fields, num_layers: int) -> frozenset[int]:
    """Return the layers that see everything: every sixth by default, every n-th, or those of an array."""
    name = "attention.sliding_window_pattern"
    pattern = fields.get(name)
    if isinstance(pattern, list):
        if len(pattern) != num_layers or not all(isinstance(item, bool | int) for item in pattern):
            raise fields.error(name, f"{num_layers} flags are needed, one for each layer")
        return frozenset(layer for layer, is_sliding in enumerate(pattern) if not is_sliding)
    period = fields.integer(name, 6, minimum=0)
    return frozenset(range(period - 1, num_layers, period)) if period else frozenset()


def _experts(fields: Fields, architecture: str) -> Experts | None:
    count = fields.integer("expert_count", 0, minimum=0)
    if not count and architecture != "qwen3moe":
        return None
    if architecture not in ("llama", "qwen3moe"):
        raise fields.error("expert_count", "experts are supported for the architectures llama and qwen3moe only")
    size = fields.integer("feed_forward_length")
    per_token = fields.integer("expert_used_count")
    if architecture == "qwen3moe":
        size = fields.integer("expert_feed_forward_length", max(size // per_token, 1))
    return Experts(fields.integer("expert_count"), per_token, size, are_normalised=True)


def rows_are_interleaved(file: GgufFile) -> bool:
    """Whether the query and key projections have their rows in ggml's order, not in Hugging Face's."""
    return file.metadata["general.architecture"] == "llama"


def _vocab_size(file: GgufFile, fields: Fields) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{file.path}: tensor token_embd.weight is missing; this is not a whole model")
    return fields.integer("vocab_size", embedding.shape[0])


def _head_dim(fields: Fields, num_heads: int) -> int:
    hidden_size = fields.integer("embedding_length")
    if fields.get("attention.key_length") is None and hidden_size % num_heads:
        raise fields.error("attention.head_count", f"embedding_length {hidden_size} must be a multiple of it")
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(name, head_dim) != head_dim:
            raise fields.error(name, f"only the whole head size, {head_dim}, is supported")
    return head_dim


def _sliding_window(fields: Fields, architecture: str) -> int | None:
    """llama.cpp ignores the key for llama; a model that was trained with a window computes with it."""
    window = fields.integer("attention.sliding_window", 0, minimum=0)
    if window and architecture not in ("llama", "gemma3"):
        raise fields.error("attention.sliding_window", "this is supported for llama (mistral) and gemma3 only")
    return window or None


def _rope_scaling(file: GgufFile, fields: Fields, max_position: int) -> RopeScaling | None:
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    kind = fields.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise fields.error("rope.scaling.type", "supported are none, linear and yarn")
    magnitude = fields.number("rope.scaling.attn_factor", 1.0)
    if kind != "yarn" and magnitude != 1.0:
        raise fields.error("rope.scaling.attn_factor", "this is supported with rope.scaling.type yarn only")
    scaling: RopeScaling | None = None
    if kind == "yarn":
        scaling = YarnScaling(
            factor=factor,
            original_max_position=fields.integer("rope.scaling.original_context_length", max_position),
            attention_factor=yarn_magnitude(factor) * magnitude,
            beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        )
    elif kind == "linear" and factor != 1.0:
        scaling = LinearScaling(factor)
    if ROPE_DIVISORS not in file.tensors:
        return scaling
    if scaling is not None:
        raise fields.error("rope.scaling.type", f"this is not supported together with the tensor {ROPE_DIVISORS}")
    return _divisors(file)


def _divisors(file: GgufFile) -> DivisorScaling:
    divisors = file.read(ROPE_DIVISORS).flatten()
    if not bool(torch.all((divisors > 0) & torch.isfinite(divisors))):
        raise CheckpointError(f"{file.path}: tensor {ROPE_DIVISORS} must hold finite numbers greater than 0")
    return DivisorScaling(tuple(divisors.tolist()))
