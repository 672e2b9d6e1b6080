"""The GGUF reader agrees with the gguf package's on sound files, and refuses every other file in time and in memory."""

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.checkpoint.config import CheckpointError
from model.checkpoint.gguf import read_gguf
from model.checkpoint.weights import load_checkpoint
from tests.model.tiny import make_model, write_gguf

VALUES: Mapping[str, tuple[object, gguf.GGUFValueType]] = {
    "a.u8": (200, gguf.GGUFValueType.UINT8),
    "a.i8": (-100, gguf.GGUFValueType.INT8),
    "a.u16": (60000, gguf.GGUFValueType.UINT16),
    "a.i16": (-30000, gguf.GGUFValueType.INT16),
    "a.u32": (4_000_000_000, gguf.GGUFValueType.UINT32),
    "a.i32": (-2_000_000_000, gguf.GGUFValueType.INT32),
    "a.u64": (2**63 + 1, gguf.GGUFValueType.UINT64),
    "a.i64": (-(2**62), gguf.GGUFValueType.INT64),
    "a.f32": (0.1, gguf.GGUFValueType.FLOAT32),
    "a.f64": (0.1, gguf.GGUFValueType.FLOAT64),
    "a.true": (True, gguf.GGUFValueType.BOOL),
    "a.text": ("naïve ☃", gguf.GGUFValueType.STRING),
    "a.empty": ("", gguf.GGUFValueType.STRING),
}
ARRAYS: Mapping[str, list[object]] = {
    "b.ints": [1, -2, 3],
    "b.floats": [0.5, -1.25],
    "b.bools": [True, False, True],
    "b.texts": ["a", "", "ü"],
}
NOT_DEQUANTISED = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K", "Q1_0")
DEQUANTISED = [quant for quant in gguf.GGMLQuantizationType if quant.name not in NOT_DEQUANTISED]


def write(path: Path, tensors: Mapping[str, npt.NDArray[np.float32]] | None = None, alignment: int = 32) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    for key, (value, kind) in VALUES.items():
        writer.add_key_value(key, value, kind)
    for key, array in ARRAYS.items():
        writer.add_array(key, array)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def header(*, version: int = 3, tensors: int = 0, values: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes = b"t", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def test_metadata_of_every_type_reads_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    theirs = gguf.GGUFReader(tmp_path / "m.gguf").fields
    ours = read_gguf(tmp_path / "m.gguf").metadata
    assert set(VALUES) | set(ARRAYS) < set(ours)
    assert ours == {key: field.contents() for key, field in theirs.items() if not key.startswith("GGUF.")}
    assert ours["a.true"] is True
    assert ours["b.bools"] == [True, False, True]


@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_tensors_keep_their_values_and_their_order_of_dimensions(alignment: int, tmp_path: Path) -> None:
    values = {"a": np.arange(5, dtype=np.float32), "b": np.arange(24, dtype=np.float32).reshape(2, 3, 4)}
    write(tmp_path / "m.gguf", values, alignment)
    file = read_gguf(tmp_path / "m.gguf")
    assert {name: entry.shape for name, entry in file.tensors.items()} == {"a": (5,), "b": (2, 3, 4)}
    assert all(torch.equal(file.read(name), torch.from_numpy(array)) for name, array in values.items())


def test_a_tensor_that_was_read_is_in_memory_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", {"a": np.ones(4, dtype=np.float32)})
    file = read_gguf(tmp_path / "m.gguf")
    file.read("a").zero_()
    assert torch.equal(file.read("a"), torch.ones(4))


def test_a_file_that_was_read_may_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path, {"a": np.ones(1 << 16, dtype=np.float32)})
    file = read_gguf(path, mapped=False)
    path.write_bytes(b"")  # where it is mapped, reading on would end the process
    assert torch.equal(file.read("a"), torch.ones(1 << 16))


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match="no regular file"):
        read_gguf(tmp_path / "m.gguf", mapped=False)


@pytest.mark.parametrize(
    ("file_type", "dtype"),
    [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16), ("Q8_0", torch.float32)],
)
def test_a_compact_tensor_has_the_type_of_the_file_where_torch_has_it(
    file_type: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    quant = gguf.GGMLQuantizationType[file_type]
    values = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("a", gguf.quantize(values, quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "m.gguf")
    assert file.read_compact("a").dtype == dtype
    assert torch.equal(file.read_compact("a").float(), file.read("a"))


@pytest.mark.parametrize("quant", DEQUANTISED, ids=lambda quant: quant.name)
def test_every_quantisation_that_gguf_dequantises_is_read(quant: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    blocks = max(1, 256 // block_size)
    stored = np.random.default_rng(0).integers(0, 60, (3, blocks * block_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("a", stored, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "m.gguf")
    assert file.tensors["a"].shape == (3, blocks * block_size)
    assert file.tensors["a"].type_name == quant.name
    assert torch.equal(file.read("a"), torch.from_numpy(gguf.dequantize(stored, quant)))


@pytest.mark.parametrize("name", ["I8", "I64", "F64", "Q8_1", "Q8_K"])
def test_a_type_that_gguf_cannot_dequantise_is_refused_by_name(name: str, tmp_path: Path) -> None:
    quant = gguf.GGMLQuantizationType[name]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    content = header(tensors=1) + tensor(b"blk.0", (block_size,), quant)
    (tmp_path / "m.gguf").write_bytes(content.ljust(96, b"\0") + bytes(block_bytes))
    with pytest.raises(CheckpointError, match=f"tensor blk.0 has the type {name}"):
        read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable file"),
        (b"GG", "truncated"),
        (b"PK\3\4" + bytes(40), "not a GGUF file"),
        (header(version=1), "of version 1"),
        (header(version=0x03000000), "big-endian"),
        (header(tensors=2**63), f"{2**63} tensors do not fit"),
        (header(values=2**40), f"{2**40} metadata values do not fit"),
        (header(values=1) + struct.pack("<Q", 2**62) + bytes(32), "a metadata key would end at byte"),
        (header(values=1) + text(b"k") + struct.pack("<I", 99) + bytes(8), "k has the type number 99"),
        (header(values=1) + text(b"k") + struct.pack("<IIQ", 9, 4, 2**61), "k would end at byte"),
        (header(values=1) + text(b"k") + struct.pack("<IIQ", 9, 8, 2**61), "strings in k do not fit"),
        (header(values=1) + text(b"k") + struct.pack("<IIQ", 9, 9, 1) + bytes(32), "k is an array of arrays"),
        (header(values=1) + text(b"k") + struct.pack("<I", 8) + text(b"\xff\xfe"), "k is not UTF-8"),
        (header(values=2) + (text(b"k") + struct.pack("<IB", 0, 1)) * 2, "metadata key k is there twice"),
        (header(tensors=1) + tensor(shape=(2**40,)), "tensor t ends at byte"),
        (header(tensors=1) + tensor(shape=(2**32, 2**32)), "tensor t ends at byte"),
        (header(tensors=1) + tensor(offset=2**63) + bytes(64), "tensor t ends at byte"),
        (header(tensors=1) + tensor(shape=(1,) * 5) + bytes(64), "5 dimensions"),
        (header(tensors=1) + tensor(shape=()) + bytes(64), "0 dimensions"),
        (header(tensors=1) + tensor(shape=(0,)) + bytes(64), "dimension of 0"),
        (header(tensors=1) + tensor(kind=250) + bytes(64), "type number 250"),
        (header(tensors=1) + tensor(shape=(33,), kind=2) + bytes(99), "rows of 33, not a multiple of 32"),
        (header(tensors=2) + tensor() * 2 + bytes(64), "tensor t is there twice"),
        (header(tensors=2) + tensor(offset=32) + tensor(b"u", offset=24) + bytes(99), "tensors u and t overlap"),
        (header(tensors=1) + tensor(b"t" * 65) + bytes(64), "tensor t{64}… has a name of more than 64 bytes"),
        (header(values=1) + text(b"general.alignment") + struct.pack("<II", 4, 24), "general.alignment is 24"),
        (header(values=1) + text(b"general.alignment") + struct.pack("<I", 8) + text(b"x"), "general.alignment is 'x'"),
    ],
)
def test_a_damaged_header_is_refused_with_its_cause(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as refusal:
        read_gguf(path)
    assert str(path) in str(refusal.value)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    write_gguf(make_model("llama", folder), folder / "sound.gguf", "Q4_0")
    return folder / "sound.gguf"


def loads_or_is_refused(path: Path) -> bool:
    """Whether the file loads; if it does not, it must be refused by its name."""
    checkpoint, refusal = None, ""
    try:
        checkpoint = load_checkpoint(path)
    except CheckpointError as error:
        refusal = str(error)
    if checkpoint is None:
        assert str(path) in refusal
        return False
    assert all(weight.dtype == torch.float32 for weight in checkpoint.tensors.values())
    return True


def test_an_undamaged_file_loads(sound: Path) -> None:
    assert loads_or_is_refused(sound)


@given(share=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_a_truncated_file_is_refused(share: float, sound: Path) -> None:
    end = max(entry.start + entry.num_bytes for entry in read_gguf(sound).tensors.values())
    damaged = sound.with_name("truncated.gguf")
    damaged.write_bytes(sound.read_bytes()[: min(int(share * end), end - 1)])
    assert not loads_or_is_refused(damaged)


@given(draw=st.data())
@settings(max_examples=300, deadline=None)
def test_a_file_with_wrong_bytes_loads_or_is_refused(draw: st.DataObject, sound: Path) -> None:
    content = bytearray(sound.read_bytes())
    first_weight = min(entry.start for entry in read_gguf(sound).tensors.values())
    places = st.integers(0, first_weight - 1) | st.integers(0, len(content) - 1)
    for place in draw.draw(st.lists(places, min_size=1, max_size=4)):
        content[place] = draw.draw(st.integers(0, 255))
    damaged = sound.with_name("damaged.gguf")
    damaged.write_bytes(content)
    loads_or_is_refused(damaged)
