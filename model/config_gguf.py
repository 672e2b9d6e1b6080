"""Read a ModelConfig from GGUF metadata, with the defaults and the meaning that llama.cpp gives its keys.

A key that changes what llama.cpp computes and that this decoder does not honour is refused by name. Source:
`load_hparams` in llama.cpp's llama-model.cpp, and the rope section of llama-context.cpp for YaRN's magnitude.
"""

from collections.abc import Mapping

import torch

from model.config import (
    CheckpointError,
    DivisorScaling,
    LinearScaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
)
from model.fields import Fields
from model.gguf import GgufFile
from model.gguf_names import ROPE_DIVISORS
from model.rope import yarn_magnitude

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Supported values of general.architecture; mistral and smollm call themselves llama."""

_NOT_HONOURED: Mapping[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "use_parallel_residual": (False,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "nextn_predict_layers": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.temperature_scale": (0,),
    "attention.sliding_window_pattern": (),
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
    if architecture not in ARCHITECTURES:
        raise general.error("general.architecture", f"supported are {', '.join(ARCHITECTURES)}")
    if general.integer("split.count", 1, minimum=0) > 1:
        raise general.error("split.count", "merge the parts into one file first (llama-gguf-split --merge)")
    fields = Fields(file.metadata, source, prefix=f"{architecture}.")
    fields.refuse_unless(_NOT_HONOURED)
    num_heads, max_position = fields.integer("attention.head_count"), fields.integer("context_length")
    config = ModelConfig(
        family=architecture,
        vocab_size=_vocab_size(file, fields),
        hidden_size=fields.integer("embedding_length"),
        num_layers=fields.integer("block_count"),
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
        qk_norm=architecture == "qwen3",
        sliding_window=_sliding_window(fields, architecture),
    )
    config.check(source)
    return config


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
    if window and architecture != "llama":
        raise fields.error("attention.sliding_window", "this is supported for the architecture llama (mistral) only")
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
