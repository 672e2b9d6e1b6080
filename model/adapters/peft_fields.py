"""The fields of adapter_config.json: which are honoured, which change nothing, which refuse the adapter; their types.

A field that would change the output is never ignored: what is not honoured must have a value that means "off". The
fields are those of PEFT 0.21's LoraConfig, and what trainers add to them. Knows no tensors.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from model.adapters.tensors import AdapterError

CONFIG_FILE = "adapter_config.json"
MAX_BYTES = 1 << 24
Json: TypeAlias = object

_HONOURED = {
    "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "target_parameters",
    "exclude_modules", "layers_to_transform", "layers_pattern", "peft_type", "init_lora_weights", "bias", "lora_bias",
    "use_dora", "modules_to_save", "trainable_token_indices", "ensure_weight_tying", "alora_invocation_tokens",
}  # fmt: skip

# They matter in training, or say where the adapter comes from. PEFT itself resets fan_in_fan_out for linear layers.
_NEUTRAL = {
    "auto_mapping", "base_model_name_or_path", "fan_in_fan_out", "inference_mode", "lora_dropout", "peft_version",
    "revision", "task_type", "runtime_config",
    # Read only together with a field that is refused.
    "corda_config", "eva_config", "loftq_config", "lora_ga_config", "megatron_core", "qalora_group_size",
    # Of Unsloth, and of PEFT's first versions.
    "merge_weights", "unsloth_fixed",
}  # fmt: skip

MERGE = "merge the adapter into the base model with PEFT's merge_and_unload and serve the result"
_ADVICE = {
    "layer_replication": "train without layer_replication: the base model has its own layers",
    "invocation_string": "give its tokens as alora_invocation_tokens, from the first on which the adapter acts",
    "use_qalora": f"train with use_qalora false, or {MERGE}",
    "use_bdlora": f"train without use_bdlora, or {MERGE}",
    "kasa_config": f"train without kasa_config, which changes the base weights, or {MERGE}",
    "velora_config": "train without velora_config",
    "monteclora_config": "train without monteclora_config, which draws weights at random",
    "arrow_config": "load the adapters that it routes between, and name them in the request's list",
    "megatron_config": "save the adapter without megatron_config, for a Hugging Face model",
    "enable_lora": "train with a PEFT version that adapts whole modules",
}

# Initialisations that leave the base weights as they are, so that B A is all there is to add.
_NEUTRAL_INITS = ("gaussian", "eva", "orthogonal", "mica")
_CONVERT = (
    "it changes the base weights: save the adapter with PEFT's path_initial_model_for_weight_conversion, which makes "
    "it plain LoRA"
)


def read_fields(directory: Path) -> dict[str, Json]:
    """Return the fields of a directory's adapter_config.json, those that could change the output all honoured.

    Raises AdapterError naming the first that is not, its value, and what would work.
    """
    fields = _read_object(directory / CONFIG_FILE)
    for name, value in fields.items():
        if name not in _HONOURED and name not in _NEUTRAL and not _is_off(name, value):
            advice = _ADVICE.get(name, "it may change the output; if it does not, remove it from the file")
            raise refused(name, value, advice)
    if fields.get("peft_type", "LORA") != "LORA":
        raise refused("peft_type", fields["peft_type"], "only LoRA adapters can be loaded")
    init = fields.get("init_lora_weights")
    if init is not None and not isinstance(init, bool) and init not in _NEUTRAL_INITS:
        raise refused("init_lora_weights", init, _CONVERT)
    return fields


def _read_object(path: Path) -> dict[str, Json]:
    if path.exists() and not path.is_file():  # a pipe would never end
        raise AdapterError(f"cannot read {path}: it is no regular file")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise AdapterError(f"{path} has {path.stat().st_size} bytes, at most {MAX_BYTES} are read")
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AdapterError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise AdapterError(f"{path} holds a {type(fields).__name__}, it must hold an object")
    return fields


def refused(name: str, value: Json, advice: str) -> AdapterError:
    """Return the refusal of a field's value."""
    return AdapterError(f"{CONFIG_FILE}: {_as_name(name)} = {show(value)} is not supported: {advice}")


def invalid(name: str, value: Json, wanted: str) -> AdapterError:
    """Return the refusal of a value that the field cannot have."""
    return AdapterError(f"{CONFIG_FILE}: {_as_name(name)} = {show(value)}, it must be {wanted}")


def show(value: Json) -> str:
    """Return a value as messages show it: as JSON on one line, and no longer than a message should be."""
    return _shorten(json.dumps(value))


def _as_name(name: str) -> str:
    return _shorten(json.dumps(name)[1:-1])


def _shorten(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."


def rank(name: str, value: Json) -> int:
    """Return a rank: a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 31:
        raise invalid(name, value, "a whole number of at least 1 (and below 2³¹)")
    return value


def number(name: str, value: Json) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise invalid(name, value, "a finite number")
    return float(value)


def flag(fields: Mapping[str, Json], name: str) -> bool:
    """Return true or false; false where the field is absent."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, value, "true or false")
    return bool(value)


def table(fields: Mapping[str, Json], name: str) -> dict[str, Json]:
    """Return an object's fields; none where it is absent."""
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        raise invalid(name, value, "an object")
    return value or {}


def texts(fields: Mapping[str, Json], name: str, at_most: int | None = None) -> tuple[str, ...]:
    """Return a list of strings, not more than `at_most`; none where it is absent."""
    value = fields.get(name)
    if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise invalid(name, value, "a list of strings")
    if at_most is not None and len(value or ()) > at_most:
        raise invalid(name, value, f"a list of at most {at_most} strings")
    return tuple(value or ())


def text_or_texts(fields: Mapping[str, Json], name: str) -> str | tuple[str, ...] | None:
    """Return a string or a list of strings, None where it is absent."""
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise invalid(name, value, "a string or a list of strings")
    return tuple(value)


def token_ids(name: str, value: Json) -> tuple[int, ...]:
    """Return a list of token ids."""
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 1 << 31 for item in value):
        raise invalid(name, value, "a list of token ids")
    return tuple(value)


def layer_numbers(fields: Mapping[str, Json], name: str) -> frozenset[int]:
    """Return a number or a list of numbers; none where it is absent."""
    value = fields.get(name)
    numbers = [value] if type(value) is int else value
    if numbers is None:
        return frozenset()
    if not isinstance(numbers, list) or not all(type(item) is int for item in numbers):
        raise invalid(name, value, "a whole number or a list of whole numbers")
    return frozenset(numbers)


def _is_off(name: str, value: Json) -> bool:
    """An empty object is a configuration with nothing but defaults where PEFT has a class for it (`kasa_config`)."""
    return value is None or value is False or value in ("", []) or (value == {} and name not in _ADVICE)
