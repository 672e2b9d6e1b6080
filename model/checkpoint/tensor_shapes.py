"""Which tensors a checkpoint must hold, in which shapes. Every one is placed, or the checkpoint is refused by its name.

Names are Hugging Face's, in the one spelling of module_names.py. Dimensions: D hidden, H query heads, K KV heads,
h head size, F of the MLP or of one expert, V vocabulary.
"""

import re
from collections.abc import Iterator, Mapping

from model.checkpoint.config import CheckpointError, ModelConfig

_HARMLESS = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
"""May be left out: old versions of transformers saved what the configuration says as well."""


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of each tensor that a model of this configuration has. Matrices are (out, in)."""
    yield "model.embed_tokens.weight", (config.vocab_size, config.hidden_size)  # (V, D)
    for layer in range(config.num_layers):
        for name, shape in _layer_shapes(config, layer):
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (config.hidden_size,)  # (D,)
    if not config.tied_embeddings:
        yield "lm_head.weight", (config.vocab_size, config.hidden_size)  # (V, D)


def check_tensors(found: Mapping[str, tuple[int, ...]], config: ModelConfig, source: str) -> None:
    """Compare the tensors of a checkpoint, by shape, with those the configuration asks for.

    Raises CheckpointError naming the first tensor that is missing, has another shape, or has no place in the model.
    """
    placed = set()
    for name, shape in tensor_shapes(config):
        if name not in found:
            hint = ", or tie_word_embeddings must be true" if name == "lm_head.weight" else ""
            raise CheckpointError(f"{source}: tensor {name} is missing; it must have the shape {shape}{hint}")
        if found[name] != shape:
            raise CheckpointError(
                f"{source}: tensor {name} has the shape {found[name]}, the configuration wants {shape}"
            )
        placed.add(name)
    extra = sorted(name for name in found if name not in placed and not _HARMLESS.fullmatch(name))
    if extra:
        more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
        raise CheckpointError(
            f"{source}: tensor {extra[0]}{more} has no place in a {config.family} model of this configuration; "
            "leaving it out would change the output"
        )


def _layer_shapes(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    D, h = config.hidden_size, config.head_dim
    q, kv = config.num_heads * h, config.num_kv_heads * h
    yield "input_layernorm.weight", (D,)
    yield "post_attention_layernorm.weight", (D,)
    if config.sandwich_norms:
        yield "pre_feedforward_layernorm.weight", (D,)
        yield "post_feedforward_layernorm.weight", (D,)
    linears = (
        ("self_attn.q_proj", (q, D), config.qkv_bias),
        ("self_attn.k_proj", (kv, D), config.qkv_bias),
        ("self_attn.v_proj", (kv, D), config.qkv_bias),
        ("self_attn.o_proj", (D, q), config.o_bias),
    )
    for name, shape, has_bias in linears:
        yield f"{name}.weight", shape
        if has_bias:
            yield f"{name}.bias", shape[:1]
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (h,)
        yield "self_attn.k_norm.weight", (h,)
    experts = config.experts_of(layer)
    if experts is None:
        yield from _mlp_shapes("mlp", D, config.intermediate_size, config.mlp_bias)
    else:
        yield "mlp.gate.weight", (experts.count, D)
        for expert in range(experts.count):
            yield from _mlp_shapes(f"mlp.experts.{expert}", D, experts.intermediate_size, False)


def _mlp_shapes(path: str, D: int, F: int, has_bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, shape in (("gate_proj", (F, D)), ("up_proj", (F, D)), ("down_proj", (D, F))):
        yield f"{path}.{name}.weight", shape
        if has_bias:
            yield f"{path}.{name}.bias", shape[:1]
