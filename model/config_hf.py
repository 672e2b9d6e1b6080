"""Read a ModelConfig from Hugging Face's config.json, with the defaults and meaning that transformers gives its fields.

The families' configuration classes in transformers say which fields exist; what they do not read cannot change the
model. A field that they (or the loading around them) read and this decoder does not honour is refused by name.
"""

from collections.abc import Mapping

from model.config import (
    FAMILIES,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
)
from model.fields import Fields
from model.rope import yarn_magnitude

_NOT_HONOURED: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (1,),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "quantization_config": (),
    "compression_config": (),
    "clip_qkv": (),
    "is_causal": (True,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "attention_multiplier": (),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
}
_ROPE_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
_ROPE_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_FULL, _SLIDING = "full_attention", "sliding_attention"


def config_from_hf(values: Mapping[str, object], source: str) -> ModelConfig:
    """Return the configuration that the object in config.json describes; `source` names the file in errors.

    Raises CheckpointError naming the field that is missing, malformed or not supported.
    """
    fields = Fields(values, source)
    _refuse_nope_layers(fields)
    fields.refuse_unless(_NOT_HONOURED)
    family = fields.text("model_type")
    if family not in FAMILIES:
        raise fields.error("model_type", f"supported are {', '.join(FAMILIES)}")
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_layers, max_position = fields.integer("num_hidden_layers"), fields.integer("max_position_embeddings")
    # Llama's switch also covers the output projection; Qwen2's bias is no switch and leaves that one out.
    attention_bias = family in ("llama", "qwen3") and fields.flag("attention_bias", False)
    theta, scaling = _rope(fields, source, max_position)
    config = ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=_head_dim(fields, family, hidden_size, num_heads),
        intermediate_size=fields.integer("intermediate_size"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position=max_position,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=family == "qwen2" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=family == "llama" and fields.flag("mlp_bias", False),
        qk_norm=family == "qwen3",
        sliding_window=_sliding_window(fields, family, num_layers),
    )
    config.check(source)
    return config


def _refuse_nope_layers(fields: Fields) -> None:
    layers = fields.get("no_rope_layers")
    if layers and not (isinstance(layers, list) and all(layer == 1 for layer in layers)):
        raise fields.error("no_rope_layers", "every layer must have rotary embedding (1)")


def _head_dim(fields: Fields, family: str, hidden_size: int, num_heads: int) -> int:
    if family == "qwen3" and "head_dim" not in fields:
        return 128
    if fields.get("head_dim") is None and hidden_size % num_heads:
        raise fields.error(
            "num_attention_heads", f"hidden_size {hidden_size} must be a multiple where head_dim is absent"
        )
    return fields.integer("head_dim", hidden_size // num_heads)


def _sliding_window(fields: Fields, family: str, num_layers: int) -> int | None:
    """Return the window where every layer has it, None where no layer has; the decoder does not mix them."""
    window, first = _window(fields, family)
    kinds = fields.get("layer_types")
    if kinds is None:
        kinds = [_SLIDING if window is not None and layer >= first else _FULL for layer in (0, num_layers - 1)]
        name = "max_window_layers"
    else:
        name = "layer_types"
        if family == "mistral" and kinds != [_SLIDING if window else _FULL] * num_layers:
            raise fields.error(name, f"sliding_window is {window} and holds for every layer of a mistral model")
    if kinds and isinstance(kinds, list):
        if all(kind == _FULL for kind in kinds):
            return None
        if all(kind == _SLIDING for kind in kinds) and window is not None:
            return window
    raise fields.error(
        name, f"only full attention in all layers, or one sliding window (here {window}) in all, is supported"
    )


def _window(fields: Fields, family: str) -> tuple[int | None, int]:
    """Return the window that the family's configuration class would read, and the first layer that has it."""
    if family == "mistral":
        is_off = "sliding_window" in fields and fields.get("sliding_window") is None
        return None if is_off else fields.integer("sliding_window", 4096), 0
    if family in ("qwen2", "qwen3") and fields.flag("use_sliding_window", False):
        return fields.integer("sliding_window", 4096), fields.integer("max_window_layers", 28, minimum=0)
    return None, 0


def _rope(fields: Fields, source: str, max_position: int) -> tuple[float, RopeScaling | None]:
    old, new = fields.get("rope_scaling"), fields.get("rope_parameters")
    if old and new and old != new:
        raise fields.error("rope_scaling", "rope_parameters says something else: keep one of them")
    name = "rope_scaling" if old else "rope_parameters"
    values = old or new or {}
    if not isinstance(values, dict):
        raise fields.error(name, "an object is needed")
    rope = Fields(values, f"{source}: {name}")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in _ROPE_KEYS:
        raise rope.error("rope_type" if "rope_type" in rope else "type", f"supported are {', '.join(_ROPE_KEYS)}")
    for key in values:
        if key not in (*_ROPE_KEYS[kind], *_ROPE_COMMON) and values[key] is not None:
            raise rope.error(key, f"rotary embedding of type {kind} does not have this")
    rope.refuse_unless({"partial_rotary_factor": (1,)})
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    # transformers lets a value outside the rope object overrule the one inside.
    inside = rope.integer("original_max_position_embeddings", max_position)
    original = fields.integer("original_max_position_embeddings", inside)
    return theta, _scaling(rope, kind, original, max_position)


def _scaling(rope: Fields, kind: str, original: int, max_position: int) -> RopeScaling | None:
    match kind:
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "llama3":
            low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
            if high <= low:
                raise rope.error("high_freq_factor", f"it must be greater than low_freq_factor ({low})")
            return Llama3Scaling(rope.number("factor"), low, high, original)
        case "yarn":
            factor = rope.number("factor", max_position / original)
            return YarnScaling(
                factor=factor,
                original_max_position=original,
                attention_factor=_yarn_attention_factor(rope, factor),
                beta_fast=rope.number("beta_fast", 32.0),
                beta_slow=rope.number("beta_slow", 1.0),
                truncate=rope.flag("truncate", True),
            )
    return None


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return rope.number("attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return yarn_magnitude(factor, rope.number("mscale")) / yarn_magnitude(factor, rope.number("mscale_all_dim"))
    return yarn_magnitude(factor)
