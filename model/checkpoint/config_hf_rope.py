"""Read the rotary embedding from Hugging Face's config.json: base frequency and scaling, by the old and the new field.

Source: transformers' `RotaryEmbeddingConfigMixin` and `modeling_rope_utils`, and for two kinds of layers the
configuration class of Gemma 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from model.checkpoint.config import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling
from model.checkpoint.fields import Fields
from model.checkpoint.rope import yarn_magnitude

FULL, SLIDING = "full_attention", "sliding_attention"
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


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary embedding as config.json gives it."""

    theta: float
    scaling: RopeScaling | None
    local_theta: float | None = None
    """The unscaled base frequency of layers with a sliding window, where the family has one of their own."""


def read_rope(fields: Fields, source: str, max_position: int, default_theta: float = 10000.0) -> Rope:
    """Return the rotary embedding that all layers share. Raises CheckpointError naming the field."""
    old, new = fields.get("rope_scaling"), fields.get("rope_parameters")
    if old and new and old != new:
        raise fields.error("rope_scaling", "rope_parameters says something else: keep one of them")
    return _read(fields, "rope_scaling" if old else "rope_parameters", old or new, source, max_position, default_theta)


def read_two_ropes(fields: Fields, source: str, max_position: int) -> Rope:
    """Return Gemma 3's rotary embeddings: one for layers that see everything, one for those with a window."""
    old, new = fields.get("rope_scaling"), fields.get("rope_parameters") or {}
    if not isinstance(new, dict) or not set(new) <= {FULL, SLIDING}:
        raise fields.error("rope_parameters", f"an object with {FULL} and {SLIDING} is needed")
    if old and new.get(FULL) and old != new[FULL]:
        raise fields.error("rope_scaling", f"rope_parameters: {FULL} says something else: keep one of them")
    name = "rope_scaling" if old else f"rope_parameters: {FULL}"
    rope = _read(fields, name, old or new.get(FULL), source, max_position, 1_000_000.0)
    name = f"rope_parameters: {SLIDING}"
    default = fields.number("rope_local_base_freq", 10000.0)
    local = _read(Fields({}, source), name, new.get(SLIDING), source, max_position, default)
    if local.scaling is not None:
        raise Fields(new[SLIDING], f"{source}: {name}").error("rope_type", "only default is supported here")
    return Rope(rope.theta, rope.scaling, local.theta)


def _read(fields: Fields, name: str, values: object, source: str, max_position: int, default_theta: float) -> Rope:
    """`fields` are what stands outside the object `values`."""
    values = values or {}
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
    theta = rope.number("rope_theta", fields.number("rope_theta", default_theta))
    # transformers lets a value outside the rope object overrule the one inside.
    inside = rope.integer("original_max_position_embeddings", max_position)
    original = fields.integer("original_max_position_embeddings", inside)
    return Rope(theta, _scaling(rope, kind, original, max_position))


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
