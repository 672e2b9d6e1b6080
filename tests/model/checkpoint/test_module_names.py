"""Mixtral's and multimodal Gemma's names become those of the other families; stacked experts are taken apart."""

import pytest

from model.checkpoint.module_names import canonical_name, unstack


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.gate"),
        ("model.layers.0.block_sparse_moe.gate.weight", "model.layers.0.mlp.gate.weight"),
        ("model.layers.0.block_sparse_moe.experts.13.w1.weight", "model.layers.0.mlp.experts.13.gate_proj.weight"),
        ("model.layers.0.block_sparse_moe.experts.3.w2", "model.layers.0.mlp.experts.3.down_proj"),
        ("model.layers.0.block_sparse_moe.experts.3.w3", "model.layers.0.mlp.experts.3.up_proj"),
        ("model.layers.0.block_sparse_moe.experts", "model.layers.0.mlp.experts"),
        ("model.layers.0.mlp.experts.3.w3.lora_A.weight", "model.layers.0.mlp.experts.3.up_proj.lora_A.weight"),
        ("language_model.model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj"),
        ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
    ],
)
def test_other_spellings_become_the_one(name: str, wanted: str) -> None:
    assert canonical_name(name) == wanted
    assert canonical_name(wanted) == wanted


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.mlp.gate_proj",
        "model.layers.0.block_sparse_moe.gateway",
        "model.layers.0.mlp.experts.3.w4",
        "model.layers.0.mlp.experts.3.w11",
        "language_modeling.model.norm",
        "lm_head.weight",
    ],
)
def test_names_of_their_own_stay(name: str) -> None:
    assert canonical_name(name) == name


def test_stacked_experts_are_named_and_cut_one_by_one() -> None:
    parts = unstack("model.layers.2.mlp.experts.gate_up_proj", (2, 8, 3))
    assert parts is not None
    assert list(parts) == [
        ("model.layers.2.mlp.experts.0.gate_proj.weight", (0, slice(0, 4))),
        ("model.layers.2.mlp.experts.0.up_proj.weight", (0, slice(4, 8))),
        ("model.layers.2.mlp.experts.1.gate_proj.weight", (1, slice(0, 4))),
        ("model.layers.2.mlp.experts.1.up_proj.weight", (1, slice(4, 8))),
    ]
    down = unstack("model.layers.2.mlp.experts.down_proj", (1, 3, 4))
    assert down is not None
    assert list(down) == [("model.layers.2.mlp.experts.0.down_proj.weight", (0, slice(0, 3)))]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.2.mlp.down_proj.weight", (4, 3)),
        ("model.layers.2.mlp.experts.gate_up_proj", (8, 3)),
        ("model.layers.2.mlp.experts.gate_up_proj", (2, 7, 3)),
        ("model.layers.2.mlp.experts.0.down_proj.weight", (3, 4)),
    ],
)
def test_other_tensors_are_no_stacks(name: str, shape: tuple[int, ...]) -> None:
    assert unstack(name, shape) is None
