"""adapter_config.json: which fields of PEFT's LoraConfig are honoured, which change nothing, which refuse the adapter.

A field that would change the output is never ignored: what is not honoured must have a value that means "off". Knows no
tensors. The rules for patterns and target modules are PEFT's (peft/utils/other.py, peft/tuners/tuners_utils.py).
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from model.adapter_tensors import AdapterError

CONFIG_FILE = "adapter_config.json"
Json: TypeAlias = object

_HONOURED = {
    "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules",
    "layers_to_transform", "layers_pattern", "peft_type", "init_lora_weights", "bias", "fan_in_fan_out",
    "alora_invocation_tokens",
}  # fmt: skip

# They matter in training, or describe where the adapter comes from.
_NEUTRAL = {
    "auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "peft_version", "revision",
    "task_type", "runtime_config",
    # Read only together with a field that is refused.
    "corda_config", "ensure_weight_tying", "eva_config", "loftq_config", "lora_ga_config", "megatron_core",
    "qalora_group_size",
}  # fmt: skip

_MERGE = "merge the adapter into the base model with PEFT's merge_and_unload and serve the result"
_ADVICE = {
    "use_dora": f"train with use_dora false, or {_MERGE}",
    "lora_bias": f"train with lora_bias false, or {_MERGE}",
    "modules_to_save": f"train without modules_to_save, or {_MERGE}",
    "trainable_token_indices": f"train without trainable_token_indices, or {_MERGE}",
    "layer_replication": "train without layer_replication",
    "invocation_string": "give its tokens as alora_invocation_tokens, from the first on which the adapter acts",
    "target_parameters": "name linear modules in target_modules instead",
    "use_qalora": "train with use_qalora false",
    "megatron_config": "save the adapter without megatron_config, for a Hugging Face model",
}

# Initialisations that leave the base weights as they are, so that B A is all there is to add.
_NEUTRAL_INITS = ("gaussian", "eva", "orthogonal", "mica")


@dataclass(frozen=True, slots=True)
class PeftLora:
    """The fields of a LoraConfig that decide what is computed."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    target_modules: str | Sequence[str] | None
    exclude_modules: str | Sequence[str] | None
    layers_to_transform: Sequence[int]
    layers_pattern: Sequence[str]
    invocation_tokens: tuple[int, ...]

    def rank_of(self, module: str) -> int:
        """Return the rank that the config gives a module."""
        return self.rank_pattern.get(_pattern_for(module, self.rank_pattern), self.rank)

    def factor_of(self, module: str) -> float:
        """Return alpha / rank of a module, or alpha / √rank for rsLoRA."""
        alpha = self.alpha_pattern.get(_pattern_for(module, self.alpha_pattern), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def targets(self, module: str) -> bool:
        """Whether PEFT would adapt the module; where no target modules are given, the tensors alone decide."""
        if self.exclude_modules is not None and _names(self.exclude_modules, module):
            return False
        if self.target_modules is None:
            return True
        if isinstance(self.target_modules, str) and self.target_modules.lower() == "all-linear":
            return True
        if isinstance(self.target_modules, str) or module in self.target_modules:
            return _names(self.target_modules, module)
        return _names(self.target_modules, module) and self._transforms_layer_of(module)

    def _transforms_layer_of(self, module: str) -> bool:
        if not self.layers_to_transform:
            return True
        patterns = [rf"(?:^|.*?\.){pattern}\.(\d+)\." for pattern in self.layers_pattern]
        for pattern in patterns or [r".*?\.[^.]*\.(\d+)\."]:
            if match := re.match(pattern, module):
                return int(match[1]) in self.layers_to_transform
        return False


def read_peft_config(directory: Path) -> PeftLora:
    """Read adapter_config.json. Raises AdapterError naming the first field that cannot be honoured, and its value."""
    fields = _read_fields(directory / CONFIG_FILE)
    _refuse_what_is_not_honoured(fields)
    _check_fixed_fields(fields)
    return PeftLora(
        rank=_rank("r", fields.get("r", 8)),
        alpha=_number("lora_alpha", fields.get("lora_alpha", 8)),
        use_rslora=_flag("use_rslora", fields.get("use_rslora", False)),
        rank_pattern={key: _rank(f"rank_pattern[{key!r}]", r) for key, r in _pattern(fields, "rank_pattern")},
        alpha_pattern={key: _number(f"alpha_pattern[{key!r}]", a) for key, a in _pattern(fields, "alpha_pattern")},
        target_modules=_module_names(fields, "target_modules"),
        exclude_modules=_module_names(fields, "exclude_modules") or None,
        layers_to_transform=_layers(fields.get("layers_to_transform")),
        layers_pattern=_layers_pattern(fields),
        invocation_tokens=_token_ids("alora_invocation_tokens", fields.get("alora_invocation_tokens")),
    )


def _read_fields(path: Path) -> dict[str, Json]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AdapterError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise AdapterError(f"{path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise AdapterError(f"{path} holds a {type(fields).__name__}, it must hold an object")
    return fields


def _refuse_what_is_not_honoured(fields: Mapping[str, Json]) -> None:
    for name, value in fields.items():
        if name in _HONOURED or name in _NEUTRAL or value is None or value is False or value in ("", [], {}):
            continue
        advice = _ADVICE.get(name, "it may change the output; if it does not, remove it from the file")
        raise AdapterError(f"{CONFIG_FILE}: {name} = {json.dumps(value)} is not supported: {advice}")


def _check_fixed_fields(fields: Mapping[str, Json]) -> None:
    _require(fields, "peft_type", ("LORA",), "only LoRA adapters can be loaded")
    _require(fields, "bias", ("none", None), f"train with bias 'none', or {_MERGE}")
    _require(fields, "fan_in_fan_out", (False, None), "the base model's modules are linear layers, so it must be false")
    init = fields.get("init_lora_weights")
    if init is not None and not isinstance(init, bool) and init not in _NEUTRAL_INITS:
        raise AdapterError(
            f"{CONFIG_FILE}: init_lora_weights = {json.dumps(init)} is not supported, it changes the base weights: "
            "save the adapter with PEFT's path_initial_model_for_weight_conversion, which makes it plain LoRA"
        )


def _require(fields: Mapping[str, Json], name: str, allowed: tuple[Json, ...], advice: str) -> None:
    value = fields.get(name, allowed[0])
    if not any(value is option or (isinstance(option, str) and value == option) for option in allowed):
        raise AdapterError(f"{CONFIG_FILE}: {name} = {json.dumps(value)} is not supported: {advice}")


def _invalid(name: str, value: Json, wanted: str) -> AdapterError:
    return AdapterError(f"{CONFIG_FILE}: {name} = {json.dumps(value)}, it must be {wanted}")


def _rank(name: str, value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _invalid(name, value, "an integer of at least 1")
    return value


def _number(name: str, value: Json) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise _invalid(name, value, "a finite number")
    return float(value)


def _flag(name: str, value: Json) -> bool:
    if not isinstance(value, bool):
        raise _invalid(name, value, "true or false")
    return value


def _pattern(fields: Mapping[str, Json], name: str) -> list[tuple[str, Json]]:
    value = fields.get(name)
    if value is None:
        return []
    if not isinstance(value, dict):
        raise _invalid(name, value, "an object")
    for key in value:
        _check_regex(name, key)
    return list(value.items())


def _module_names(fields: Mapping[str, Json], name: str) -> str | list[str] | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        _check_regex(name, value)
        return value
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _invalid(name, value, "a string or a list of strings")
    return value


def _check_regex(name: str, value: str) -> None:
    try:
        re.compile(value)
    except re.error as error:
        raise _invalid(name, value, f"a regular expression ({error})") from error


def _layers_pattern(fields: Mapping[str, Json]) -> list[str]:
    value = _module_names(fields, "layers_pattern")
    patterns = [value] if isinstance(value, str) else value or []
    for pattern in patterns:
        _check_regex("layers_pattern", pattern)
    return [pattern for pattern in patterns if pattern]


def _layers(value: Json) -> list[int]:
    layers = [value] if isinstance(value, int) and not isinstance(value, bool) else value
    if layers is None:
        return []
    if not isinstance(layers, list) or not all(isinstance(layer, int) for layer in layers):
        raise _invalid("layers_to_transform", value, "an integer or a list of integers")
    return layers


def _token_ids(name: str, value: Json) -> tuple[int, ...]:
    ids = [] if value is None else value
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise _invalid(name, value, "a list of token ids")
    return tuple(ids)


def _names(modules: str | Sequence[str], module: str) -> bool:
    """Whether a regular expression or a list of (ends of) module paths names the module."""
    if isinstance(modules, str):
        return re.fullmatch(modules, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in modules)


def _pattern_for(module: str, patterns: Mapping[str, object]) -> str:
    """Return the first pattern that matches the module or the end of its path; the module itself where none does."""
    for pattern in patterns:
        if re.match(rf"(.*\.)?({pattern})$", module):
            return pattern
    return module
