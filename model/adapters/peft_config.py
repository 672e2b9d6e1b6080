"""What an adapter_config.json says about the computation, as one value.

peft_fields.py says which fields may stand in the file at all, peft_targets.py which modules of a base
model they name. Knows no tensors and no base model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from model.adapters import peft_fields as fields_of
from model.adapters.peft_fields import MERGE, Json, invalid, refused

INPUT_EMBEDDING = "embed_tokens"
ALL_LINEAR = "all-linear"
_BIASES = ("none", "all", "lora_only")
_MAX_SAVED = 256
_MAX_PATTERNS = 16
"""Each entry is compared with each module, and these are more than anybody writes."""


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The fields of a LoraConfig that decide what is computed."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    target_modules: str | tuple[str, ...] | None
    """An expression or (ends of) module paths; None: the tensors alone say what is adapted."""
    target_parameters: tuple[str, ...]
    exclude_modules: str | tuple[str, ...]
    layers_to_transform: frozenset[int]
    layers_pattern: tuple[str, ...]
    bias: str
    """'none', 'all' or 'lora_only': whose biases were trained in place."""
    lora_bias: bool
    use_dora: bool
    modules_to_save: tuple[str, ...]
    trainable_tokens: Mapping[str, tuple[int, ...]]
    """By (the end of) the path of the module whose rows they are."""
    ensure_weight_tying: bool
    invocation_tokens: tuple[int, ...]


def read_peft_config(directory: Path) -> PeftConfig:
    """Read adapter_config.json. Raises AdapterError naming the first field that cannot be honoured, and its value."""
    fields = fields_of.read_fields(directory)
    config = PeftConfig(
        rank=fields_of.rank("r", fields.get("r", 8)),
        alpha=fields_of.number("lora_alpha", fields.get("lora_alpha", 8)),
        use_rslora=fields_of.flag(fields, "use_rslora"),
        rank_pattern={
            key: fields_of.rank(f"rank_pattern[{key!r}]", value)
            for key, value in fields_of.table(fields, "rank_pattern").items()
        },
        alpha_pattern={
            key: fields_of.number(f"alpha_pattern[{key!r}]", value)
            for key, value in fields_of.table(fields, "alpha_pattern").items()
        },
        target_modules=fields_of.text_or_texts(fields, "target_modules"),
        target_parameters=fields_of.texts(fields, "target_parameters"),
        exclude_modules=fields_of.text_or_texts(fields, "exclude_modules") or (),
        layers_to_transform=fields_of.layer_numbers(fields, "layers_to_transform"),
        layers_pattern=_layers_pattern(fields),
        bias=_bias(fields),
        lora_bias=fields_of.flag(fields, "lora_bias"),
        use_dora=fields_of.flag(fields, "use_dora"),
        modules_to_save=fields_of.texts(fields, "modules_to_save", _MAX_SAVED),
        trainable_tokens=_trainable_tokens(fields),
        ensure_weight_tying=fields_of.flag(fields, "ensure_weight_tying"),
        invocation_tokens=fields_of.token_ids("alora_invocation_tokens", fields.get("alora_invocation_tokens") or []),
    )
    _check_together(fields, config)
    return config


def _layers_pattern(fields: Mapping[str, Json]) -> tuple[str, ...]:
    value = fields_of.text_or_texts(fields, "layers_pattern") or ()
    patterns = (value,) if isinstance(value, str) else value
    if len(patterns) > _MAX_PATTERNS:
        raise invalid("layers_pattern", fields["layers_pattern"], f"at most {_MAX_PATTERNS} names")
    for pattern in patterns:
        if not pattern.replace(".", "").replace("_", "").isalnum():
            raise invalid("layers_pattern", fields["layers_pattern"], "names of lists of layers, such as 'layers'")
    return patterns


def _bias(fields: Mapping[str, Json]) -> str:
    value = fields.get("bias")
    if value is None:
        return "none"
    if value not in _BIASES:
        raise invalid("bias", value, "one of 'none', 'all' and 'lora_only'")
    return str(value)


def _trainable_tokens(fields: Mapping[str, Json]) -> dict[str, tuple[int, ...]]:
    name = "trainable_token_indices"
    value = fields.get(name)
    by_module = {} if value is None else value if isinstance(value, dict) else {INPUT_EMBEDDING: value}
    tokens = {module: fields_of.token_ids(name, ids) for module, ids in by_module.items() if ids != []}
    for ids in tokens.values():
        if len(set(ids)) < len(ids):
            raise invalid(name, value, "a list of token ids that are all different")
    return tokens


def _check_together(fields: Mapping[str, Json], config: PeftConfig) -> None:
    """Refuse fields that PEFT refuses together, or that cannot be honoured together."""
    if config.layers_to_transform and isinstance(config.target_modules, str):
        value = fields["layers_to_transform"]
        raise refused("layers_to_transform", value, "target_modules must be a list where layers are named")
    if config.use_dora and config.lora_bias:
        raise refused("lora_bias", True, f"train with lora_bias false where use_dora is true, or {MERGE}")
    if config.use_dora and config.target_parameters:
        raise refused("target_parameters", fields["target_parameters"], "train with use_dora false")
    if config.invocation_tokens:
        for name in ("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters", "bias"):
            if fields.get(name) not in (None, False, [], {}, "none"):
                raise refused(
                    name,
                    fields[name],
                    "with alora_invocation_tokens the tokens before the invocation run without the adapter, and this "
                    "would change them too: train without it",
                )
