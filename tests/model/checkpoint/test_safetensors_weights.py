"""Safetensors files are read lazily, single or sharded; what they lack or hold too much is refused by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint.config import CheckpointError
from model.checkpoint.safetensors_weights import SafetensorsWeights
from tests.model.tiny import make_model


@pytest.fixture
def single(tmp_path: Path) -> Path:
    make_model("llama", tmp_path)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    make_model("llama", tmp_path, sharded=True)
    return tmp_path


def shard_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("model-*.safetensors"))


def edit_index(directory: Path, name: str, file_name: object) -> None:
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][name] = file_name
    path.write_text(json.dumps(index))


def test_shards_hold_what_one_file_holds(tmp_path: Path) -> None:
    make_model("llama", tmp_path / "one")
    make_model("llama", tmp_path / "many", sharded=True)
    assert len(shard_names(tmp_path / "many")) > 1
    one, many = SafetensorsWeights(tmp_path / "one"), SafetensorsWeights(tmp_path / "many")
    assert one.shapes == many.shapes
    assert one.bytes_by_type() == many.bytes_by_type() == {"F32": 4 * 107968}
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_a_tensor_left_out_is_gone_from_every_view(single: Path) -> None:
    weights = SafetensorsWeights(single)
    weights.leave_out("lm_head.weight")
    assert "lm_head.weight" not in weights
    assert "lm_head.weight" not in weights.shapes
    assert weights.bytes_by_type() == {"F32": 4 * (107968 - 265 * 64)}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_a_pickle_is_refused_with_the_way_out(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"not looked at")
    with pytest.raises(CheckpointError, match=rf"{name} is a pickle.*convert the model to safetensors"):
        SafetensorsWeights(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        SafetensorsWeights(tmp_path)


@pytest.mark.parametrize("length", [0, 4, 100, 20_000])
def test_a_truncated_file_is_refused(length: int, single: Path) -> None:
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a readable safetensors file"):
        SafetensorsWeights(single)


def test_a_shard_that_is_not_there_is_refused_by_name(sharded: Path) -> None:
    name = shard_names(sharded)[1]
    (sharded / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: not a readable safetensors file"):
        SafetensorsWeights(sharded)


def test_a_tensor_of_the_index_that_its_shard_lacks_is_refused(sharded: Path) -> None:
    edit_index(sharded, "score.weight", shard_names(sharded)[0])
    with pytest.raises(CheckpointError, match=r"score\.weight is in the index but not in the file"):
        SafetensorsWeights(sharded)


def test_a_tensor_of_a_shard_that_the_index_lacks_is_refused(sharded: Path) -> None:
    path = sharded / shard_names(sharded)[0]
    save_file(load_file(path) | {"score.weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"score\.weight is in the file but not in the index"):
        SafetensorsWeights(sharded)


@pytest.mark.parametrize("file_name", ["../model.safetensors", "/model.safetensors", "", 3, None])
def test_an_index_cannot_name_files_elsewhere(file_name: object, sharded: Path) -> None:
    edit_index(sharded, "model.norm.weight", file_name)
    with pytest.raises(CheckpointError, match=r"tensor model\.norm\.weight is in .*, which is not the name of a file"):
        SafetensorsWeights(sharded)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": []}'])
def test_an_index_without_a_map_is_refused(content: str, sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match="weight_map must be an object"):
        SafetensorsWeights(sharded)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e4m3fn])
def test_a_quantised_or_odd_type_is_refused_by_the_tensors_name(dtype: torch.dtype, single: Path) -> None:
    path = single / "model.safetensors"
    weights = load_file(path)
    save_file(weights | {"model.norm.weight": weights["model.norm.weight"].to(dtype)}, path)
    with pytest.raises(
        CheckpointError, match=r"tensor model\.norm\.weight is stored as .*; supported are F32, F16, BF16"
    ):
        SafetensorsWeights(single)
