"""Every tensor of a checkpoint is placed, in its shape, or the checkpoint is refused by the tensor's name."""

from dataclasses import replace
from pathlib import Path

import pytest

from model.checkpoint.config import CheckpointError, ModelConfig
from model.checkpoint.config_hf import config_from_hf
from model.checkpoint.fields import read_json_object
from model.checkpoint.tensor_shapes import check_tensors, tensor_shapes
from tests.model.tiny import FAMILIES, make_model, state_of


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("llama")
    make_model("llama", folder)
    return config_from_hf(read_json_object(folder / "config.json"), "config.json")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_shapes_are_those_of_transformers(family: str, tied: bool, tmp_path: Path) -> None:
    weights = state_of(make_model(family, tmp_path, tied=tied))
    config = config_from_hf(read_json_object(tmp_path / "config.json"), "config.json")
    assert dict(tensor_shapes(config)) == {name: tuple(weight.shape) for name, weight in weights.items()}


def test_complete_tensors_pass_and_saved_frequencies_do_no_harm(config: ModelConfig) -> None:
    inv_freq = {"model.layers.0.self_attn.rotary_emb.inv_freq": (8,), "model.rotary_emb.inv_freq": (8,)}
    check_tensors(dict(tensor_shapes(config)) | inv_freq, config, "m")


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named_with_its_shape(name: str, config: ModelConfig) -> None:
    shapes = dict(tensor_shapes(config))
    wanted = shapes.pop(name)
    with pytest.raises(CheckpointError) as refusal:
        check_tensors(shapes, config, "m")
    assert str(refusal.value).startswith(f"m: tensor {name} is missing; it must have the shape {wanted}")


def test_a_tensor_of_another_shape_is_named_with_both_shapes(config: ModelConfig) -> None:
    shapes = dict(tensor_shapes(config)) | {"model.layers.1.self_attn.k_proj.weight": (64, 64)}
    with pytest.raises(CheckpointError, match=r"1\.self_attn\.k_proj\.weight has the shape \(64, 64\).* \(32, 64\)"):
        check_tensors(shapes, config, "m")


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight", "score.weight"]
)
def test_a_tensor_without_a_place_is_named(name: str, config: ModelConfig) -> None:
    with pytest.raises(CheckpointError, match=f"tensor {name} has no place in a llama model"):
        check_tensors(dict(tensor_shapes(config)) | {name: (64,)}, config, "m")


def test_absurdly_many_layers_are_refused_at_the_first_missing_one(config: ModelConfig) -> None:
    found = dict(tensor_shapes(config))
    config = replace(config, num_layers=10**12)
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.input_layernorm\.weight is missing"):
        check_tensors(found, config, "m")
