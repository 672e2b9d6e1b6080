"""PEFT directories: adapter_config.json beside adapter_model.safetensors, as `save_pretrained` writes them.

Every tensor is placed on a module of the base model, and every module that the config targets has its tensors, or the
adapter is refused. Pickled weights are never read.
"""

import re
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from model.adapter import BaseWeights, LoraDelta
from model.adapter_content import AdapterContent
from model.adapter_peft_config import CONFIG_FILE, PeftLora, read_peft_config
from model.adapter_tensors import AdapterError, DeltaTensors, Half

WEIGHTS_FILE = "adapter_model.safetensors"
PICKLED_FILE = "adapter_model.bin"
_LORA_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])\.weight")
_EMBEDDING_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_embedding_[AB]")


def read_peft(directory: Path, base: BaseWeights) -> AdapterContent:
    """Read a PEFT adapter for the base model. Raises AdapterError naming the field or the tensor."""
    config = read_peft_config(directory)
    found = DeltaTensors(base.module_shapes)
    for name, tensor in _read_tensors(directory).items():
        module, half = _place_of(name)
        found.place(module, half, name, tensor)
    _check_targets(config, found)
    deltas = {module: _delta(config, found, module) for module in found.modules}
    return AdapterContent(deltas, config.alpha, invocation_tokens=config.invocation_tokens)


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    path = directory / WEIGHTS_FILE
    if not path.is_file():
        if (directory / PICKLED_FILE).is_file():
            raise AdapterError(
                f"{directory / PICKLED_FILE} is a pickle, which is never read: convert it to {WEIGHTS_FILE}, for "
                "example by loading it with PEFT and calling save_pretrained"
            )
        raise AdapterError(f"{directory} has no {WEIGHTS_FILE}")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"cannot read {path}: {error}") from error
    if not tensors:
        raise AdapterError(f"{path} holds no tensors")
    return tensors


def _place_of(name: str) -> tuple[str, Half]:
    if match := _LORA_NAME.fullmatch(name):
        return match["module"], Half(match["half"])
    if match := _EMBEDDING_NAME.fullmatch(name):
        raise AdapterError(
            f"tensor '{name}' adapts the embeddings, which is not supported: train without '{match['module']}' among "
            "the target modules"
        )
    raise AdapterError(
        f"tensor '{name}' is not part of a LoRA delta: the names known are base_model.model.MODULE.lora_A.weight and "
        "base_model.model.MODULE.lora_B.weight"
    )


def _check_targets(config: PeftLora, found: DeltaTensors) -> None:
    """Refuse a file whose tensors are not those of the modules that the config names: one of the two is incomplete."""
    for module in found.modules:
        if not config.targets(module):
            tensor = next(half[module].name for half in found.halves.values() if module in half)
            raise AdapterError(f"tensor '{tensor}' is on a module that target_modules in {CONFIG_FILE} does not name")
    if config.target_modules is None:
        return
    for module in found.module_shapes:
        if config.targets(module) and module not in found.modules:
            raise AdapterError(
                f"target_modules in {CONFIG_FILE} names '{module}', but {WEIGHTS_FILE} has no tensor for it"
            )


def _delta(config: PeftLora, found: DeltaTensors, module: str) -> LoraDelta:
    a, b = found.pair(module)
    if a.tensor.shape[0] != config.rank_of(module):
        raise AdapterError(
            f"tensor '{a.name}' has rank {a.tensor.shape[0]}, by {CONFIG_FILE} it should have {config.rank_of(module)}"
        )
    return LoraDelta(a.tensor, b.tensor, config.factor_of(module))
