"""Weights of PEFT directories that lie: sound ones, changed tensor by tensor, then perhaps in header or bytes.

The file is put together here, so that a header can say what no library would write.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.model.fuzz_bytes import NASTY_INTEGERS, Draw, DrawnFile, damage_bytes
from tests.model.fuzz_corpus import PeftSeed

_TYPES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64",
    torch.int32: "I32", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_HALVES = (".lora_A.weight", ".lora_B.weight", ".lora_embedding_A", ".lora_embedding_B")


@dataclass
class SafetensorsParts:
    """A file before it is put together. `header` is what it will say of the tensors, their bytes are `content`."""

    header: dict[str, object]
    content: bytes
    header_size: int | None = None

    def assemble(self) -> bytes:
        """Return the file."""
        header = json.dumps(self.header).encode()
        header += b" " * (-len(header) % 8)
        size = len(header) if self.header_size is None else self.header_size
        return struct.pack("<Q", size) + header + self.content


@st.composite
def safetensors_files(draw: Draw, seed: PeftSeed) -> DrawnFile:
    """Draw a file."""
    tensors = dict(seed.tensors)
    for change in draw(st.lists(st.sampled_from(_CHANGES), max_size=2)):
        if tensors:
            change(draw, tensors)
    names = frozenset({*seed.tensors, *tensors, *_modules([*seed.tensors, *tensors])})
    num_values = num_values_of(tensors)
    parts = _parts(tensors)
    damages = draw(st.lists(st.sampled_from(_DAMAGES), max_size=1)) if draw(st.booleans()) else []
    for damage in damages:
        if parts.header:
            damage(draw, parts)
    content = parts.assemble()
    if draw(st.integers(0, 4)) < 4:
        return DrawnFile(content, names | frozenset(parts.header), None if damages else num_values)
    return DrawnFile(damage_bytes(draw, content, len(content) - len(parts.content)), names)


def num_values_of(tensors: Mapping[str, Tensor]) -> int:
    """Return how many values the LoRA matrices and the norms hold."""
    return sum(values.numel() for name, values in tensors.items() if name.endswith(_HALVES) or "norm" in name)


def _modules(names: list[str]) -> set[str]:
    """Return what a refusal may call a tensor's module."""
    paths = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in names}
    return paths | {path.removesuffix(".weight") for path in paths}


def _parts(tensors: dict[str, Tensor]) -> SafetensorsParts:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    content = b""
    for name, tensor in tensors.items():
        stored = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        offsets = [len(content), len(content) + len(stored)]
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        content += stored
    return SafetensorsParts(header, content)


# Changes: the file stays sound, and says what it holds


def _retype(draw: Draw, tensors: dict[str, Tensor]) -> None:
    name = _name(draw, tensors)
    tensors[name] = tensors[name].to(draw(st.sampled_from(list(_TYPES))))


def _retype_all(draw: Draw, tensors: dict[str, Tensor]) -> None:
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
    tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})


def _poison(draw: Draw, tensors: dict[str, Tensor]) -> None:
    name = _name(draw, tensors)
    values = tensors[name].float().contiguous().clone()
    if values.numel():
        number = draw(st.sampled_from([float("nan"), float("inf"), 3e38, 1e20, 1e-45, -0.0]))
        values.view(-1)[draw(st.integers(0, values.numel() - 1)) :: draw(st.sampled_from([1, 10**6]))] = number
        tensors[name] = values


def _reshape(draw: Draw, tensors: dict[str, Tensor]) -> None:
    name = _name(draw, tensors)
    values = tensors[name]
    match draw(st.sampled_from(["flat", "transposed", "deeper", "fewer", "none", "scalar"])):
        case "flat":
            tensors[name] = values.reshape(-1)
        case "transposed":
            tensors[name] = values.T if values.dim() == 2 else values
        case "deeper":
            tensors[name] = values.unsqueeze(draw(st.integers(0, values.dim())))
        case "fewer" if values.dim():
            tensors[name] = values[: draw(st.integers(0, 3))]
        case "none":
            tensors[name] = values.reshape(-1)[:0]
        case "scalar":
            tensors[name] = values.new_ones(())


def _rank(draw: Draw, tensors: dict[str, Tensor]) -> None:
    """Another rank in one matrix, or in both of a module."""
    name, rank = _name(draw, tensors), draw(st.sampled_from([1, 2, 5, 64, 300]))
    stem = name.partition(".lora_")[0]
    chosen = [other for other in tensors if other.startswith(f"{stem}.lora_")] if draw(st.booleans()) else [name]
    for other in chosen:
        values = tensors[other]
        if values.dim() == 2 and other.endswith(_HALVES):
            is_a = "_A" in other
            shape = (rank, values.shape[1]) if is_a else (values.shape[0], rank)
            tensors[other] = torch.full(shape, 0.01)


def _drop(draw: Draw, tensors: dict[str, Tensor]) -> None:
    del tensors[_name(draw, tensors)]


def _rename(draw: Draw, tensors: dict[str, Tensor]) -> None:
    name = _name(draw, tensors)
    tensors[draw(_NAMES)] = tensors.pop(name)


def _add(draw: Draw, tensors: dict[str, Tensor]) -> None:
    shape = draw(st.lists(st.sampled_from([0, 1, 4, 64, 265]), max_size=3))
    tensors[draw(_NAMES)] = torch.full(shape, 0.5) if math.prod(shape) < 1 << 20 else torch.zeros(1)


_CHANGES: list[Callable[[Draw, dict[str, Tensor]], None]] = [
    _retype, _retype_all, _poison, _reshape, _rank, _rank, _drop, _rename, _add
]  # fmt: skip
_MODULES = (
    "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "model.layers.9.self_attn.q_proj", "lm_head",
    "model.embed_tokens", "model.norm", "model.layers.0.input_layernorm", "model.layers.0.mlp.experts",
    "model.layers.0.mlp.experts.0.gate_proj", "model.layers.0.mlp.gate", "",
)  # fmt: skip
_SUFFIXES = (
    ".lora_A.weight", ".lora_B.weight", ".lora_B.bias", ".lora_embedding_A", ".lora_embedding_B", ".weight", ".bias",
    ".lora_magnitude_vector", ".base_layer.weight", ".modules_to_save.weight", ".token_adapter.trainable_tokens_delta",
    ".token_adapter.base_layer.weight", ".base_layer.lora_A.weight", ".lora_A.default.weight", "",
)  # fmt: skip
_NAMES = st.text(max_size=40).filter(lambda name: name != "__metadata__") | st.builds(
    "{}{}{}".format,
    st.sampled_from(["base_model.model.", "base_model.model.", ""]),
    st.sampled_from(_MODULES),
    st.sampled_from(_SUFFIXES),
)


# Damages: the header says what is not so


def _set_type(draw: Draw, parts: SafetensorsParts) -> None:
    _entry(draw, parts)["dtype"] = draw(st.sampled_from([*_TYPES.values(), "F4", "F8_E8M0", "C64", "U16", "", 7, None]))


def _set_shape(draw: Draw, parts: SafetensorsParts) -> None:
    odd = NASTY_INTEGERS | st.sampled_from([-1, 1.5, "4", None, 10**30])
    _entry(draw, parts)["shape"] = draw(st.lists(odd, max_size=5) | st.sampled_from([None, 4, {}]))


def _set_offsets(draw: Draw, parts: SafetensorsParts) -> None:
    odd = NASTY_INTEGERS | st.integers(-1, len(parts.content) + 1) | st.sampled_from([1.5, "4", None, 10**30])
    _entry(draw, parts)["data_offsets"] = draw(st.lists(odd, min_size=2, max_size=2) | st.lists(odd, max_size=3))


def _set_entry(draw: Draw, parts: SafetensorsParts) -> None:
    name = draw(st.sampled_from(sorted(parts.header)))
    parts.header[name] = draw(st.sampled_from([None, 1, "x", [], {}, {"dtype": "F32"}, {"format": 1}, [[[[[]]]]]]))


def _swap_entries(draw: Draw, parts: SafetensorsParts) -> None:
    a, b = draw(st.sampled_from(sorted(parts.header))), draw(st.sampled_from(sorted(parts.header)))
    parts.header[a], parts.header[b] = parts.header[b], parts.header[a]


def _set_header_size(draw: Draw, parts: SafetensorsParts) -> None:
    parts.header_size = draw(NASTY_INTEGERS | st.integers(0, 20_000))


def _resize_content(draw: Draw, parts: SafetensorsParts) -> None:
    parts.content = parts.content[: draw(st.integers(0, len(parts.content)))] + draw(st.binary(max_size=16))


_DAMAGES: list[Callable[[Draw, SafetensorsParts], None]] = [
    _set_type, _set_shape, _set_offsets, _set_entry, _swap_entries, _set_header_size, _resize_content
]  # fmt: skip


def _entry(draw: Draw, parts: SafetensorsParts) -> dict[str, object]:
    name = draw(st.sampled_from(sorted(parts.header)))
    entry = parts.header[name]
    if not isinstance(entry, dict):
        entry = parts.header[name] = {}
    return entry


def _name(draw: Draw, tensors: dict[str, Tensor]) -> str:
    return draw(st.sampled_from(sorted(tensors)))
