"""Read a ModelConfig from Hugging Face's config.json, with the defaults and meaning that transformers gives its fields.

The families' configuration classes in transformers say which fields exist; what they do not read cannot change the
model. A field that they (or the loading around them) read and this decoder does not honour is refused by name.
"""

import math
from collections.abc import Mapping

from model.checkpoint.config import FAMILIES, MAX_LAYERS, Experts, ModelConfig
from model.checkpoint.config_hf_rope import FULL, SLIDING, read_rope, read_two_ropes
from model.checkpoint.fields import Fields

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
    "num_shared_experts": (0,),
    "shared_expert_intermediate_size": (0,),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
}
_HONOURED: Mapping[str, tuple[str, ...]] = {
    "gemma3_text": ("hidden_act", "final_logit_softcapping"),
    "mixtral": ("num_experts", "num_local_experts"),
    "qwen3_moe": ("num_experts", "num_local_experts"),
}
"""Of those fields the ones that a family has after all, or does not read."""
_GEMMA_SIZES: Mapping[str, object] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
}
"""Published Gemma models leave out what is the default."""


def config_from_hf(values: Mapping[str, object], source: str) -> ModelConfig:
    """Return the configuration that the object in config.json describes; `source` names the file in errors.

    Of a Gemma that also sees (`gemma3`) it is the configuration of its language model. Raises CheckpointError naming
    the field that is missing, malformed or not supported.
    """
    fields = Fields(values, source)
    if is_multimodal(values):
        fields.refuse_unless({"quantization_config": (), "compression_config": (), "tie_word_embeddings": (True,)})
        text = values.get("text_config")
        if not isinstance(text, dict) or text.get("model_type", "gemma3_text") != "gemma3_text":
            raise fields.error("text_config", "an object with the configuration of a gemma3_text model is needed")
        return config_from_hf({**text, "model_type": "gemma3_text"}, f"{source}: text_config")
    _refuse_nope_layers(fields)
    honoured = _HONOURED.get(str(values.get("model_type")), ())
    fields.refuse_unless({name: neutral for name, neutral in _NOT_HONOURED.items() if name not in honoured})
    family = fields.text("model_type")
    if family not in FAMILIES:
        raise fields.error("model_type", f"supported are {', '.join(FAMILIES)}")
    config = _gemma(values, source) if family == "gemma3_text" else _llama_like(fields, family, source)
    config.check(source)
    return config


def is_multimodal(values: Mapping[str, object]) -> bool:
    """Whether config.json describes a model of which the language model is only a part."""
    return values.get("model_type") == "gemma3"


def _llama_like(fields: Fields, family: str, source: str) -> ModelConfig:
    """Read any family but Gemma: they agree on most fields."""
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    max_position = fields.integer("max_position_embeddings")
    # Llama's switch also covers the output projection; Qwen2's bias is no switch and leaves that one out.
    attention_bias = family in ("llama", "qwen3", "qwen3_moe") and fields.flag("attention_bias", False)
    rope = read_rope(fields, source, max_position, 1_000_000.0 if family == "mixtral" else 10000.0)
    window, full_layers = _windows(fields, family, num_layers)
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=_head_dim(fields, family, hidden_size, num_heads),
        intermediate_size=fields.integer("intermediate_size"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-5 if family == "mixtral" else 1e-6),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        max_position=max_position,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=family == "qwen2" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=family == "llama" and fields.flag("mlp_bias", False),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        sliding_window=window,
        full_layers=full_layers,
        experts=_experts(fields, family, num_layers),
    )


def _gemma(values: Mapping[str, object], source: str) -> ModelConfig:
    fields = Fields({**_GEMMA_SIZES, **{name: value for name, value in values.items() if value is not None}}, source)
    fields.refuse_unless(
        {"hidden_activation": ("gelu_pytorch_tanh",), "use_bidirectional_attention": (False,)},
    )
    num_layers, hidden_size = fields.integer("num_hidden_layers", maximum=MAX_LAYERS), fields.integer("hidden_size")
    max_position, attention_bias = fields.integer("max_position_embeddings"), fields.flag("attention_bias", False)
    rope = read_two_ropes(fields, source, max_position)
    kinds = fields.get("layer_types")
    if kinds is None:
        pattern = fields.integer("sliding_window_pattern", 6)
        kinds = [SLIDING if (layer + 1) % pattern else FULL for layer in range(num_layers)]
    window, full_layers = _by_kind(fields, kinds, fields.integer("sliding_window", 4096), num_layers)
    softcap = fields.get("final_logit_softcapping")
    return ModelConfig(
        family="gemma3_text",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=fields.integer("num_attention_heads"),
        num_kv_heads=fields.integer("num_key_value_heads"),
        head_dim=fields.integer("head_dim"),
        intermediate_size=fields.integer("intermediate_size"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        max_position=max_position,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=False,
        qk_norm=True,
        sliding_window=window,
        full_layers=full_layers,
        local_rope_theta=None if window is None else rope.local_theta,
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        activation="gelu",
        norm_offset=1.0,
        sandwich_norms=True,
        embedding_scale=math.sqrt(hidden_size),
        logit_softcap=None if softcap is None else fields.number("final_logit_softcapping"),
    )


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


def _windows(fields: Fields, family: str, num_layers: int) -> tuple[int | None, frozenset[int]]:
    """Return the window, None where no layer has it, and the layers without it."""
    window, first = _window(fields, family)
    kinds = fields.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if window is not None and layer >= first else FULL for layer in range(num_layers)]
    elif family in ("mistral", "mixtral", "qwen3_moe") and kinds != [SLIDING if window else FULL] * num_layers:
        raise fields.error("layer_types", f"sliding_window is {window} and holds for every layer of this family")
    return _by_kind(fields, kinds, window, num_layers)


def _by_kind(fields: Fields, kinds: object, window: int | None, num_layers: int) -> tuple[int | None, frozenset[int]]:
    if not isinstance(kinds, list) or len(kinds) != num_layers or not {*map(str, kinds)} <= {FULL, SLIDING}:
        raise fields.error("layer_types", f"{num_layers} times {FULL} or {SLIDING} is needed")
    full_layers = frozenset(layer for layer, kind in enumerate(kinds) if kind == FULL)
    if len(full_layers) == num_layers:
        return None, frozenset()
    if window is None:
        raise fields.error("layer_types", f"{SLIDING} needs sliding_window, which is off")
    return window, full_layers


def _window(fields: Fields, family: str) -> tuple[int | None, int]:
    """Return the window that the family's configuration class would read, and the first layer that has it."""
    match family:
        case "mistral":
            is_off = "sliding_window" in fields and fields.get("sliding_window") is None
            return None if is_off else fields.integer("sliding_window", 4096), 0
        case "mixtral":
            return None if fields.get("sliding_window") is None else fields.integer("sliding_window"), 0
        case "qwen2" | "qwen3" | "qwen3_moe" if fields.flag("use_sliding_window", False):
            first = 0 if family == "qwen3_moe" else fields.integer("max_window_layers", 28, minimum=0)
            return fields.integer("sliding_window", 4096), first
    return None, 0


def _experts(fields: Fields, family: str, num_layers: int) -> Experts | None:
    match family:
        case "mixtral":
            return Experts(
                count=_num_experts(fields, 8),
                per_token=fields.integer("num_experts_per_tok", 2),
                intermediate_size=fields.integer("intermediate_size"),
                are_normalised=True,
            )
        case "qwen3_moe":
            return Experts(
                count=_num_experts(fields, 128),
                per_token=fields.integer("num_experts_per_tok", 8),
                intermediate_size=fields.integer("moe_intermediate_size", 768),
                are_normalised=fields.flag("norm_topk_prob", False),
                dense_layers=_dense_layers(fields, num_layers),
            )
    return None


def _num_experts(fields: Fields, default: int) -> int:
    """The field has two names, and transformers reads either."""
    counts = {
        name: fields.integer(name) for name in ("num_local_experts", "num_experts") if fields.get(name) is not None
    }
    if len({*counts.values()}) > 1:
        raise fields.error("num_local_experts", f"num_experts says {counts['num_experts']}: keep one of them")
    return next(iter(counts.values()), default)


def _dense_layers(fields: Fields, num_layers: int) -> frozenset[int]:
    step, named = fields.integer("decoder_sparse_step", 1), fields.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(type(layer) is int for layer in named):
        raise fields.error("mlp_only_layers", "an array of layer numbers is needed")
    chosen = {*named}
    return frozenset(layer for layer in range(num_layers) if layer in chosen or (layer + 1) % step)
