"""The tensors of adapter_model.safetensors, by the module they belong to and the part they play.

Nothing that is in the file is left over: whoever reads a part takes it away, and what nobody has taken refuses the
adapter by its name. The names are those of PEFT's save_pretrained (peft/utils/save_and_load.py), without the adapter's
name in them. Pickled weights are never read.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from model.adapters.peft_fields import CONFIG_FILE
from model.adapters.tensors import AdapterError, NamedTensor
from model.checkpoint.module_names import canonical_name

WEIGHTS_FILE = "adapter_model.safetensors"
PICKLED_FILE = "adapter_model.bin"
PREFIX = "base_model.model."
_MAX_NAME = 300


class Part(StrEnum):
    """What a tensor is to its module; the value is the end of its name."""

    A = "lora_A.weight"
    B = "lora_B.weight"
    LORA_BIAS = "lora_B.bias"
    MAGNITUDE = "lora_magnitude_vector"
    EMBEDDING_A = "lora_embedding_A"
    EMBEDDING_B = "lora_embedding_B"
    INNER_A = "base_layer.lora_A.weight"
    """Of the first of two parameters of one module."""
    INNER_B = "base_layer.lora_B.weight"
    WEIGHT = "weight"
    BASE_WEIGHT = "base_layer.weight"
    ORIGINAL_WEIGHT = "original_module.weight"
    SAVED_WEIGHT = "modules_to_save.weight"
    BIAS = "bias"
    BASE_BIAS = "base_layer.bias"
    TOKENS = "token_adapter.trainable_tokens_delta"
    TOKENS_BASE_WEIGHT = "token_adapter.base_layer.weight"


_PARTS = "|".join(re.escape(part) for part in sorted(Part, key=len, reverse=True))
_NAME = re.compile(rf"{re.escape(PREFIX)}(?P<module>.+?)\.(?P<part>{_PARTS}|lora_magnitude_vector\.weight)", re.DOTALL)


class PeftTensors:
    """The tensors of one file that nobody has taken yet."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Sort a file's tensors, by full name. Raises AdapterError where one is of no known kind, or not finite."""
        self._left: dict[tuple[str, Part], NamedTensor] = {}
        self.names: list[str] = []
        """Without PEFT's prefix, as they are spelt in the file."""
        for name in sorted(tensors):
            found = NamedTensor(name, tensors[name])
            key = _key_of(name)
            if key in self._left:
                raise AdapterError(f"tensors '{self._left[key].name}' and '{name}' are the same thing twice")
            found.check_values()
            self._left[key] = found
            self.names.append(name.removeprefix(PREFIX))

    def take(self, module: str, part: Part) -> NamedTensor | None:
        """Return a module's part and regard it as placed; None where the file has none. Paths are canonical."""
        return self._left.pop((module, part), None)

    def has_any(self, module: str, *parts: Part) -> bool:
        """Whether one of the parts is there and not taken."""
        return any((module, part) in self._left for part in parts)

    def left(self) -> Iterator[tuple[str, Part, str]]:
        """Yield module, part and name of what nobody has taken."""
        for (module, part), found in self._left.items():
            yield module, part, found.name


def read_peft_tensors(directory: Path) -> PeftTensors:
    """Read the weights file of a directory into memory. Raises AdapterError naming the file or the tensor."""
    path = directory / WEIGHTS_FILE
    if not path.is_file():
        raise _absent(directory)
    try:
        content = path.read_bytes()  # not mapped: the file may be overwritten while the server runs
        if content.startswith(b"version https://git-lfs"):
            raise AdapterError(f"{path} is a pointer of Git LFS, not the file: fetch it with git lfs pull")
        tensors = load(content)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        if isinstance(error, AdapterError):
            raise
        raise AdapterError(f"cannot read {path}: {error}") from error
    if not tensors:
        raise AdapterError(f"{path} holds no tensors")
    return PeftTensors(tensors)


def _absent(directory: Path) -> AdapterError:
    if (directory / PICKLED_FILE).is_file():
        return AdapterError(
            f"{directory / PICKLED_FILE} is a pickle, which is never read: convert it to {WEIGHTS_FILE}, for "
            "example by loading it with PEFT and calling save_pretrained"
        )
    if shards := sorted(path.name for path in directory.glob("adapter_model*.safetensors*")):
        return AdapterError(
            f"{directory} has no {WEIGHTS_FILE} but {shards[0]}: PEFT writes and reads one file, join them into it"
        )
    if not (directory / CONFIG_FILE).is_file():
        return AdapterError(f"{directory} has neither {CONFIG_FILE} nor {WEIGHTS_FILE}: it is no PEFT adapter")
    return AdapterError(f"{directory} has no {WEIGHTS_FILE}")


def _key_of(name: str) -> tuple[str, Part]:
    match = _NAME.fullmatch(name) if len(name) <= _MAX_NAME else None
    if match is not None and ".lora_" not in match["module"]:
        return canonical_name(match["module"]), Part(match["part"].replace("vector.weight", "vector"))
    raise AdapterError(
        f"tensor '{name[:_MAX_NAME]}' is of no known kind: PEFT's save_pretrained writes {PREFIX}MODULE.PART, where "
        f"PART is {Part.A}, {Part.B} or another of LoRA's, without the adapter's name in it"
    )
