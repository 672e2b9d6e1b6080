"""GGUF adapters that lie: sound ones, damaged where the reader believes the file, then perhaps in their bytes.

Most damage is done to the parts of a file, with all that stands before and after them sound, so that it is found late.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gguf
import numpy as np
from hypothesis import strategies as st

from tests.model.fuzz_bytes import NASTY_INTEGERS, Draw, DrawnFile, damage_bytes
from tests.model.fuzz_corpus import GgufSeed

_STRING, _ARRAY, _FLOAT32, _UINT32 = 8, 9, 6, 4
_PACKED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TYPES = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
_F32 = 0
_ALIGNMENT = 32


@dataclass
class Tensor:
    """One tensor as a file has it: `dims` fastest first."""

    name: bytes
    dims: list[int]
    type_id: int
    content: bytes
    offset: int | None = None
    """None: where its content is."""


@dataclass
class GgufParts:
    """A file before it is put together; what it says of itself may be untrue."""

    values: list[tuple[bytes, int, bytes]]
    tensors: list[Tensor]
    version: int = 3
    num_tensors: int | None = None
    num_values: int | None = None

    def assemble(self) -> bytes:
        """Return the file."""
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_values = len(self.values) if self.num_values is None else self.num_values
        header = b"GGUF" + struct.pack("<IQQ", self.version, num_tensors, num_values)
        for key, type_id, payload in self.values:
            header += _text(key) + struct.pack("<I", type_id) + payload
        content = b""
        for tensor in self.tensors:
            offset = len(content) if tensor.offset is None else tensor.offset
            dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
            header += _text(tensor.name) + dims + struct.pack("<IQ", tensor.type_id, offset)
            content += _padded(tensor.content)
        return _padded(header) + content


def gguf_parts(seed: GgufSeed) -> GgufParts:
    """Return a sound file in parts."""
    values = []
    for key, value in seed.metadata.items():
        if isinstance(value, str):
            values.append((key.encode(), _STRING, _text(value.encode())))
        elif isinstance(value, float):
            values.append((key.encode(), _FLOAT32, struct.pack("<f", value)))
        else:
            payload = struct.pack(f"<IQ{len(value)}I", _UINT32, len(value), *value)
            values.append((key.encode(), _ARRAY, payload))
    tensors = [
        Tensor(name.encode(), list(reversed(array.shape)), _F32, array.tobytes())
        for name, array in seed.tensors.items()
    ]
    return GgufParts(values, tensors)


@st.composite
def gguf_files(draw: Draw, seeds: Sequence[GgufSeed]) -> DrawnFile:
    """Draw a file."""
    parts = gguf_parts(seeds[draw(st.integers(0, len(seeds) - 1))])
    names = _names(parts)
    for damage in draw(st.lists(st.sampled_from(_DAMAGES), max_size=3)):
        if parts.tensors and parts.values:
            damage(draw, parts)
    names |= _names(parts)
    content = parts.assemble()
    if draw(st.integers(0, 4)) == 4:
        header_end = len(content) - sum(len(_padded(tensor.content)) for tensor in parts.tensors)
        content = damage_bytes(draw, content, header_end)
    return DrawnFile(content, frozenset(names))


def _names(parts: GgufParts) -> set[str]:
    texts = [key for key, _, _ in parts.values] + [tensor.name for tensor in parts.tensors]
    names = {text.decode(errors="replace") for text in texts}
    return names | {name.removesuffix(".lora_a").removesuffix(".lora_b") for name in names}


def _set_value(draw: Draw, parts: GgufParts) -> None:
    at = draw(st.integers(0, len(parts.values) - 1))
    parts.values[at] = (parts.values[at][0], *_typed_value(draw))


def _add_value(draw: Draw, parts: GgufParts) -> None:
    key = draw(st.sampled_from([b"general.alignment", b"general.name", b"", b"\xff", parts.values[0][0]]) | _TEXTS)
    value = (_UINT32, struct.pack("<I", draw(NASTY_INTEGERS) & 0xFFFFFFFF)) if key == b"general.alignment" else None
    parts.values.append((key, *(value or _typed_value(draw))))


def _drop_value(draw: Draw, parts: GgufParts) -> None:
    del parts.values[draw(st.integers(0, len(parts.values) - 1))]


def _set_architecture(draw: Draw, parts: GgufParts) -> None:
    name = draw(st.sampled_from([b"llama", b"qwen2", b"qwen3moe", b"gemma3", b""]) | _TEXTS)
    parts.values = [value for value in parts.values if value[0] != b"general.architecture"]
    parts.values.append((b"general.architecture", _STRING, _text(name)))


def _set_counts(draw: Draw, parts: GgufParts) -> None:
    near = st.integers(-2, 2)
    if draw(st.booleans()):
        parts.num_tensors = draw(NASTY_INTEGERS | near.map(lambda more: max(0, len(parts.tensors) + more)))
    else:
        parts.num_values = draw(NASTY_INTEGERS | near.map(lambda more: max(0, len(parts.values) + more)))


def _set_version(draw: Draw, parts: GgufParts) -> None:
    parts.version = draw(st.sampled_from([0, 1, 2, 3, 4, 0x03000000, 0xFFFFFFFF]))


def _set_dimension(draw: Draw, parts: GgufParts) -> None:
    tensor = draw(st.sampled_from(parts.tensors))
    at = draw(st.integers(0, len(tensor.dims) - 1)) if tensor.dims else 0
    match draw(st.sampled_from(["change", "reverse", "add", "drop", "flatten"])):
        case "change" if tensor.dims:
            tensor.dims[at] = draw(NASTY_INTEGERS)
        case "reverse":
            tensor.dims.reverse()
        case "add":
            tensor.dims.insert(at, draw(st.sampled_from([1, 2]) | NASTY_INTEGERS))
        case "drop" if tensor.dims:
            del tensor.dims[at]
        case "flatten":
            tensor.dims = [math.prod(tensor.dims) % 2**64]


def _set_shape(draw: Draw, parts: GgufParts) -> None:
    """A shape that the content has, so that only the model can object."""
    tensor = draw(st.sampled_from(parts.tensors))
    tensor.dims = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8, 32, 64, 128, 265]), min_size=1, max_size=4))
    tensor.type_id = _F32
    tensor.content = np.linspace(-1, 1, min(math.prod(tensor.dims), 1 << 18), dtype=np.float32).tobytes()


def _set_rank(draw: Draw, parts: GgufParts) -> None:
    """The rank of one half, or of all: larger ones must do, and be honoured."""
    rank = draw(st.sampled_from([1, 3, 5, 32, 64]))
    chosen = parts.tensors if draw(st.booleans()) else [draw(st.sampled_from(parts.tensors))]
    for tensor in chosen:
        if len(tensor.dims) == 2 and 4 in tensor.dims:
            tensor.dims[tensor.dims.index(4)] = rank
            tensor.content = _noise(draw, math.prod(tensor.dims) * 4 if math.prod(tensor.dims) < 1 << 20 else 0)
            tensor.type_id = _F32


def _set_type(draw: Draw, parts: GgufParts) -> None:
    """Another type, with as many bytes as it needs or with those that are there."""
    tensor = draw(st.sampled_from(parts.tensors))
    tensor.type_id = draw(st.integers(0, 45) | NASTY_INTEGERS.map(lambda number: number & 0xFFFFFFFF))
    size = math.prod(tensor.dims)
    if tensor.type_id in _TYPES and size < 1 << 20 and draw(st.booleans()):
        block, num_bytes = _TYPES[tensor.type_id]
        tensor.content = _noise(draw, size // block * num_bytes)


def _set_type_of_all(draw: Draw, parts: GgufParts) -> None:
    """A rank that blocks divide, and everything quantised, with any bytes as scales."""
    type_id = draw(st.sampled_from(sorted(_TYPES)))
    block, num_bytes = _TYPES[type_id]
    for tensor in parts.tensors:
        tensor.dims = [256 if size == 4 else size for size in tensor.dims]
        size = math.prod(tensor.dims)
        if tensor.dims and tensor.dims[0] % block == 0 and size < 1 << 18:
            tensor.type_id = type_id
            tensor.content = _noise(draw, size // block * num_bytes)
        else:
            tensor.type_id = _F32
            tensor.content = bytes(min(4 * size, 1 << 22))


def _set_name(draw: Draw, parts: GgufParts) -> None:
    tensor = draw(st.sampled_from(parts.tensors))
    tensor.name = draw(st.sampled_from(_TENSOR_NAMES) | _TEXTS)


def _set_offset(draw: Draw, parts: GgufParts) -> None:
    tensor = draw(st.sampled_from(parts.tensors))
    tensor.offset = draw(NASTY_INTEGERS | st.integers(0, 1 << 17))


def _set_content(draw: Draw, parts: GgufParts) -> None:
    tensor = draw(st.sampled_from(parts.tensors))
    number = draw(st.sampled_from([float("nan"), float("inf"), 3e38, 1e-45, -0.0, 1e20]))
    values = np.frombuffer(tensor.content[: len(tensor.content) // 4 * 4], dtype=np.float32).copy()
    if values.size:
        values[draw(st.integers(0, values.size - 1)) :: draw(st.sampled_from([1, values.size]))] = number
        tensor.content = values.tobytes()


def _drop_tensor(draw: Draw, parts: GgufParts) -> None:
    parts.tensors.remove(draw(st.sampled_from(parts.tensors)))


def _add_tensor(draw: Draw, parts: GgufParts) -> None:
    dims = draw(st.lists(st.sampled_from([1, 4, 64, 265]), min_size=1, max_size=4))
    name = draw(st.sampled_from([*_TENSOR_NAMES, parts.tensors[0].name]) | _TEXTS)
    parts.tensors.append(Tensor(name, dims, _F32, _noise(draw, min(4 * math.prod(dims), 1 << 20))))


_DAMAGES: list[Callable[[Draw, GgufParts], None]] = [
    _set_value, _add_value, _drop_value, _set_architecture, _set_counts, _set_version, _set_dimension, _set_shape,
    _set_rank, _set_rank, _set_type, _set_type_of_all, _set_type_of_all, _set_name, _set_offset, _set_content,
    _drop_tensor, _add_tensor,
]  # fmt: skip
_TEXTS = st.text(max_size=80).map(lambda text: text.encode(errors="surrogatepass"))
_TENSOR_NAMES = [
    f"{base}{suffix}".encode()
    for base in (
        "blk.0.attn_q.weight", "blk.1.attn_q.weight", "blk.9.attn_q.weight", "blk.0.attn_norm.weight",
        "output_norm.weight", "token_embd.weight", "output.weight", "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_up_exps.weight", "blk.0.attn_q.bias", "blk.-1.attn_q.weight", "rope_freqs.weight", "",
    )
    for suffix in ("", ".lora_a", ".lora_b", ".lora_a.lora_a", ".scale")
]  # fmt: skip


def _typed_value(draw: Draw) -> tuple[int, bytes]:
    """Return the number of a type and a value of it, in arrays with a count that may be a lie."""
    type_id = draw(st.integers(0, 13))
    if type_id == _STRING:
        return type_id, _text(draw(st.sampled_from([b"adapter", b"lora", b"llama", b"\xff\xfe"]) | _TEXTS))
    if type_id == _ARRAY:
        element = draw(st.integers(0, 13))
        items = [_scalar(draw, element) for _ in range(draw(st.integers(0, 4)))]
        count = draw(st.just(len(items)) | NASTY_INTEGERS)
        return type_id, struct.pack("<IQ", element, count & 0xFFFFFFFFFFFFFFFF) + b"".join(items)
    return type_id, _scalar(draw, type_id)


def _scalar(draw: Draw, type_id: int) -> bytes:
    if type_id not in _PACKED:
        return _text(draw(_TEXTS))
    size = struct.calcsize(_PACKED[type_id])
    number: int = draw(NASTY_INTEGERS) % 256**size
    return number.to_bytes(size, "little")


def _noise(draw: Draw, num_bytes: int) -> bytes:
    """Bytes of any value; half the time small ones, of which floats and scales are finite."""
    top = draw(st.sampled_from([60, 256]))
    return np.random.default_rng(draw(st.integers(0, 3))).integers(0, top, num_bytes, dtype=np.uint8).tobytes()


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % _ALIGNMENT)
