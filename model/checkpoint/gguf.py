"""Read a GGUF file: its metadata as plain values, where its tensors lie, and one tensor at a time, dequantised.

A damaged or hostile file must not cost more than its size warrants: every count is checked against the bytes that are
left before anything is read or allocated. (`gguf.GGUFReader` trusts them: a wrong length of an array keeps it busy
until memory is full; and it takes seconds where this takes a tenth of one.) The gguf package supplies the numbers of
the types and the dequantisation. Knows nothing of models.

Source: the GGUF specification in ggml's docs/gguf.md, versions 2 and 3.
"""

import math
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import gguf
import numpy as np
import numpy.typing as npt
import torch

from model.checkpoint.config import CheckpointError

GgufValue: TypeAlias = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]

MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_NAME_BYTES = 64
"""Of a tensor, as the specification has it."""
_STRING, _ARRAY, _BOOL = gguf.GGUFValueType.STRING, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.BOOL
_NUMBERS: Mapping[int, str] = {
    gguf.GGUFValueType.UINT8: "<u1",
    gguf.GGUFValueType.INT8: "<i1",
    gguf.GGUFValueType.UINT16: "<u2",
    gguf.GGUFValueType.INT16: "<i2",
    gguf.GGUFValueType.UINT32: "<u4",
    gguf.GGUFValueType.INT32: "<i4",
    gguf.GGUFValueType.UINT64: "<u8",
    gguf.GGUFValueType.INT64: "<i8",
    gguf.GGUFValueType.FLOAT32: "<f4",
    gguf.GGUFValueType.FLOAT64: "<f8",
    gguf.GGUFValueType.BOOL: "<u1",
}

_HALF_TYPES: Mapping[int, torch.dtype] = {
    gguf.GGMLQuantizationType.F16: torch.float16,
    gguf.GGMLQuantizationType.BF16: torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies in its file."""

    name: str
    type_id: int
    """A number of ggml's, for which the gguf package has a dequantisation."""
    shape: tuple[int, ...]
    """Slowest dimension first, as torch counts; the file has them the other way round."""
    start: int
    num_bytes: int

    @property
    def type_name(self) -> str:
        """ggml's name of the type, such as Q4_1."""
        return str(gguf.GGMLQuantizationType(self.type_id).name)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file whose header has been read and found consistent."""

    path: Path
    metadata: Mapping[str, GgufValue]
    tensors: Mapping[str, GgufTensor]
    _bytes: npt.NDArray[np.uint8]
    _map: mmap.mmap | None
    """What `_bytes` is a view of, where the file is mapped."""

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        """Return a tensor, or its part `index` along the slowest dimension, dequantised to float32, in memory of its
        own."""
        tensor = self.tensors[name]
        with np.errstate(all="ignore"):  # damaged scales may be infinite
            values = gguf.dequantize(self.stored_rows(name, index), gguf.GGMLQuantizationType(tensor.type_id))
        values = values.reshape(tensor.shape if index is None else tensor.shape[1:])
        # Stored float32 is not copied by the dequantisation, and would be read-only here.
        tensor_values = torch.from_numpy(values if values.flags.writeable else np.array(values))
        self.forget(name)
        return tensor_values

    def read_compact(self, name: str) -> torch.Tensor:
        """Return a tensor in the type that it is stored in where torch computes with it, else in float32."""
        tensor = self.tensors[name]
        dtype = _HALF_TYPES.get(tensor.type_id)
        if dtype is None:
            return self.read(name)
        return torch.from_numpy(np.array(self.stored_rows(name))).view(dtype).reshape(tensor.shape)

    def stored_rows(self, name: str, index: int | None = None) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor, or of its part `index` along the slowest dimension, as the file has them.

        They are read-only, of the tensor's shape but for the fastest dimension: bytes of a row instead of elements.
        """
        tensor = self.tensors[name]
        rows = self._bytes[tensor.start : tensor.start + tensor.num_bytes].reshape(*tensor.shape[:-1], -1)
        return rows if index is None else rows[index]

    def forget(self, name: str) -> None:
        """Let go of the memory that a tensor's bytes take here, where the file is mapped; they can be read again."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            tensor = self.tensors[name]
            start = tensor.start - tensor.start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, tensor.start + tensor.num_bytes - start)


def is_gguf(path: Path) -> bool:
    """Whether the file begins as GGUF files do. Raises CheckpointError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise CheckpointError(f"{path}: not a readable file: {error}") from error


def read_gguf(path: Path, *, mapped: bool = True) -> GgufFile:
    """Read the header of a GGUF file; its tensors are mapped, or else read as well.

    Whoever truncates a file that is mapped ends the process that reads it: files that come and go are better read.
    Raises CheckpointError naming the file and the key or tensor where it is not GGUF, truncated, inconsistent, or
    holds a tensor of a type that the gguf package cannot dequantise.
    """
    content, mapping = _content(path, mapped)
    reader = _HeaderReader(path, content)
    num_tensors, num_values = reader.preamble()
    metadata = reader.metadata(num_values)
    tensors = reader.tensors(num_tensors, _alignment(path, metadata))
    for type_id in {tensor.type_id for tensor in tensors.values()}:
        _check_type(path, type_id, tensors)
    return GgufFile(path, metadata, tensors, content, mapping)


def _content(path: Path, mapped: bool) -> tuple[npt.NDArray[np.uint8], mmap.mmap | None]:
    if path.exists() and not path.is_file():  # a pipe would never end
        raise CheckpointError(f"{path}: not a readable file: it is no regular file")
    try:
        if not mapped:
            return np.fromfile(path, dtype=np.uint8), None
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(mapping, np.uint8), mapping
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise CheckpointError(f"{path}: not a readable file: {error}") from error


def _alignment(path: Path, metadata: Mapping[str, GgufValue]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise CheckpointError(f"{path}: general.alignment is {alignment!r}, a power of two is needed")
    return alignment


def _check_type(path: Path, type_id: int, tensors: Mapping[str, GgufTensor]) -> None:
    """Refuse a type that the gguf package cannot dequantise, by trying it on one block of zeros."""
    quant = gguf.GGMLQuantizationType(type_id)
    _, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    try:
        gguf.dequantize(np.zeros((1, block_bytes), dtype=np.uint8), quant)
    except NotImplementedError as error:
        name = next(tensor.name for tensor in tensors.values() if tensor.type_id == type_id)
        raise CheckpointError(
            f"{path}: tensor {name} has the type {quant.name}, which the gguf package cannot dequantise; "
            "requantise the model to a common type such as Q8_0"
        ) from error


class _HeaderReader:
    """A cursor over the file that never reads beyond its end."""

    def __init__(self, path: Path, content: npt.NDArray[np.uint8]) -> None:
        self._path = path
        self._content = content.data
        self._at = 0

    def preamble(self) -> tuple[int, int]:
        """Return the numbers of tensors and of metadata values."""
        if bytes(self._take(4, "the magic number")) != MAGIC:
            raise CheckpointError(f"{self._path}: not a GGUF file: it does not begin with {MAGIC.decode()}")
        version = self._unsigned(4, "the version")
        if version not in (2, 3):
            kind = "big-endian" if version & 0xFFFF == 0 else f"of version {version}"
            raise CheckpointError(
                f"{self._path}: this GGUF file is {kind}; little-endian versions 2 and 3 are supported"
            )
        return self._unsigned(8, "the number of tensors"), self._unsigned(8, "the number of metadata values")

    def metadata(self, num_values: int) -> dict[str, GgufValue]:
        """Return the metadata by key."""
        self._check_count(num_values, 13, "metadata values")
        metadata: dict[str, GgufValue] = {}
        for _ in range(num_values):
            key = self._string("a metadata key")
            if key in metadata:
                raise CheckpointError(f"{self._path}: metadata key {key} is there twice")
            metadata[key] = self._value(self._unsigned(4, key), key)
        return metadata

    def tensors(self, num_tensors: int, alignment: int) -> dict[str, GgufTensor]:
        """Return where the tensors lie, by name. Ends the header."""
        self._check_count(num_tensors, 32, "tensors")
        found = [self._tensor() for _ in range(num_tensors)]
        base = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, type_id, shape, offset in found:
            if name in tensors:
                raise CheckpointError(f"{self._path}: tensor {name} is there twice")
            num_bytes = self._tensor_bytes(name, type_id, shape)
            end = base + offset + num_bytes
            if end > len(self._content):
                raise CheckpointError(
                    f"{self._path}: tensor {name} ends at byte {end}, the file has {len(self._content)}: "
                    "it is truncated or damaged"
                )
            tensors[name] = GgufTensor(name, type_id, shape, base + offset, num_bytes)
        self._check_apart(tensors.values())
        return tensors

    def _check_apart(self, tensors: Iterable[GgufTensor]) -> None:
        """Refuse tensors that share bytes: many that do would take much more memory than the file."""
        in_order = sorted(tensors, key=lambda tensor: tensor.start)
        for tensor, after in pairwise(in_order):
            if tensor.start + tensor.num_bytes > after.start:
                raise CheckpointError(f"{self._path}: tensors {tensor.name} and {after.name} overlap in the file")

    def _tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._string("a tensor name")
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise CheckpointError(
                f"{self._path}: tensor {name[:_MAX_NAME_BYTES]}… has a name of more than {_MAX_NAME_BYTES} bytes"
            )
        num_dimensions = self._unsigned(4, name)
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise CheckpointError(
                f"{self._path}: tensor {name} has {num_dimensions} dimensions, 1 to {_MAX_DIMENSIONS} are possible"
            )
        sizes = [self._unsigned(8, name) for _ in range(num_dimensions)]
        if 0 in sizes:
            raise CheckpointError(f"{self._path}: tensor {name} has a dimension of 0")
        return name, self._unsigned(4, name), tuple(reversed(sizes)), self._unsigned(8, name)

    def _tensor_bytes(self, name: str, type_id: int, shape: tuple[int, ...]) -> int:
        try:
            block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(type_id)]
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"{self._path}: tensor {name} has the type number {type_id}, which the gguf package does not know"
            ) from error
        if shape[-1] % block_size:
            raise CheckpointError(
                f"{self._path}: tensor {name} has rows of {shape[-1]}, not a multiple of {block_size}"
            )
        return math.prod(shape) // int(block_size) * int(block_bytes)

    def _value(self, type_id: int, key: str) -> GgufValue:
        if type_id == _STRING:
            return self._string(key)
        if type_id == _ARRAY:
            return self._array(key)
        value: GgufValue = self._numbers(type_id, 1, key)[0]
        return value

    def _array(self, key: str) -> GgufValue:
        type_id, count = self._unsigned(4, key), self._unsigned(8, key)
        if type_id == _ARRAY:
            raise CheckpointError(f"{self._path}: {key} is an array of arrays, which no known key is")
        if type_id != _STRING:
            return self._numbers(type_id, count, key)
        self._check_count(count, 8, f"strings in {key}")
        return [self._string(key) for _ in range(count)]

    def _numbers(self, type_id: int, count: int, key: str) -> list[int] | list[float] | list[bool]:
        if type_id not in _NUMBERS:
            raise CheckpointError(f"{self._path}: {key} has the type number {type_id}, which GGUF does not define")
        dtype = np.dtype(_NUMBERS[type_id])
        numbers = np.frombuffer(self._take(count * dtype.itemsize, key), dtype)
        values: list[int] | list[float] | list[bool] = (numbers != 0 if type_id == _BOOL else numbers).tolist()
        return values

    def _string(self, what: str) -> str:
        text = bytes(self._take(self._unsigned(8, what), what))
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self._path}: {what} is not UTF-8 at byte {self._at - len(text)}") from error

    def _unsigned(self, num_bytes: int, what: str) -> int:
        return int.from_bytes(self._take(num_bytes, what), "little")

    def _take(self, num_bytes: int, what: str) -> memoryview:
        end = self._at + num_bytes
        if end > len(self._content):
            raise CheckpointError(
                f"{self._path}: {what} would end at byte {end}, the file has {len(self._content)}: "
                "it is truncated or damaged"
            )
        taken = self._content[self._at : end]
        self._at = end
        return taken

    def _check_count(self, count: int, least_bytes: int, what: str) -> None:
        """Refuse a count of things that the rest of the file is too short for."""
        left = len(self._content) - self._at
        if count * least_bytes > left:
            raise CheckpointError(
                f"{self._path}: {count} {what} do not fit into the {left} bytes that are left: "
                "it is truncated or damaged"
            )
