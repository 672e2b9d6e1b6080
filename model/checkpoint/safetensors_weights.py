"""The tensors of a Hugging Face directory, read from its safetensors files one at a time, in the type they have there.

They go by their canonical names (module_names.py), experts one by one, however the files spell and stack them. Never
unpickles: a directory that only has pytorch_model.bin is refused. Source: the safetensors format and transformers'
index file.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from model.checkpoint.config import CheckpointError
from model.checkpoint.fields import read_json_object
from model.checkpoint.module_names import canonical_name, unstack

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
_NUM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...
    def __getitem__(self, index: tuple[int, slice]) -> torch.Tensor: ...


class _File(Protocol):
    """What is used of the object that `safetensors.safe_open` returns; the package has no types."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Slice: ...
    def get_tensor(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor is: a stored tensor of a file, or a part of one."""

    file: str
    name: str
    part: tuple[int, slice] | None


class SafetensorsWeights(Mapping[str, torch.Tensor]):
    """The tensors by name. Reading one maps its bytes; nothing is copied."""

    def __init__(self, directory: Path) -> None:
        self._files: dict[str, _File] = {}
        self._placed: dict[str, _Place] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, str] = {}
        for file_name, names in _weight_files(directory).items():
            self._open(directory / file_name, names)

    def __getitem__(self, name: str) -> torch.Tensor:
        place = self._placed[name]
        file = self._files[place.file]
        return file.get_tensor(place.name) if place.part is None else file.get_slice(place.name)[place.part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._placed)

    def __len__(self) -> int:
        return len(self._placed)

    def leave_out(self, name: str) -> None:
        """Take a tensor out of the mapping."""
        del self._placed[name], self.shapes[name], self.types[name]

    def bytes_by_type(self) -> Mapping[str, int]:
        """Return the bytes stored in each type."""
        totals: dict[str, int] = {}
        for name, type_name in self.types.items():
            totals[type_name] = totals.get(type_name, 0) + math.prod(self.shapes[name]) * _NUM_BYTES[type_name]
        return totals

    def _open(self, path: Path, names: frozenset[str] | None) -> None:
        try:
            file: _File = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: not a readable safetensors file: {error}") from error
        found = frozenset(file.keys())
        if names is not None and names != found:
            odd = min(names ^ found)
            where = "in the index but not in the file" if odd in names else "in the file but not in the index"
            raise CheckpointError(f"{path}: tensor {odd} is {where}")
        self._files[path.name] = file
        for name in sorted(found):
            self._place(name, path, file.get_slice(name))

    def _place(self, name: str, path: Path, view: _Slice) -> None:
        type_name = view.get_dtype()
        if type_name not in _NUM_BYTES:
            raise CheckpointError(
                f"{path}: tensor {name} is stored as {type_name}; supported are {', '.join(_NUM_BYTES)}"
            )
        shape = tuple(view.get_shape())
        own = canonical_name(name)
        for part_name, part in unstack(own, shape) or ((own, None),):
            if part_name in self._placed:
                raise CheckpointError(f"{path}: tensor {part_name} is also in {self._placed[part_name].file}")
            self._placed[part_name] = _Place(path.name, name, part)
            self.shapes[part_name] = shape if part is None else (part[1].stop - part[1].start, shape[2])
            self.types[part_name] = type_name


def _weight_files(directory: Path) -> Mapping[str, frozenset[str] | None]:
    """Return the files that hold the weights, and what the index says is in each (None: there is no index)."""
    if (directory / WEIGHTS_NAME).is_file():
        return {WEIGHTS_NAME: None}
    if not (directory / INDEX_NAME).is_file():
        pickled = sorted(path.name for path in directory.glob("pytorch_model*.bin"))
        if pickled:
            raise CheckpointError(
                f"{directory}: {pickled[0]} is a pickle, which can run code when it is loaded; convert the model to "
                "safetensors first (load it with transformers and call save_pretrained)"
            )
        raise CheckpointError(f"{directory}: there is neither {WEIGHTS_NAME} nor {INDEX_NAME}")
    weight_map = read_json_object(directory / INDEX_NAME).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{directory / INDEX_NAME}: weight_map must be an object of tensor and file names")
    files: dict[str, set[str]] = {}
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or not file_name or Path(file_name).name != file_name:
            raise CheckpointError(
                f"{directory / INDEX_NAME}: tensor {name} is in {file_name!r}, "
                "which is not the name of a file beside the index"
            )
        files.setdefault(file_name, set()).add(name)
    return {file_name: frozenset(names) for file_name, names in files.items()}
