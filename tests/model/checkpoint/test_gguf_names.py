"""llama.cpp's row order is undone exactly, in values and in codes; only names of the supported families are known."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from model.checkpoint.config import CheckpointError
from model.checkpoint.gguf_names import hf_name, load_blocks, separate_halves
from model.checkpoint.weights import Checkpoint, load_checkpoint
from tests.model.tiny import GGUF_FILE_TYPES, interleave_halves, make_model, write_gguf

BLOCK_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


@pytest.mark.parametrize("shape", [(24, 5), (24,)])
@pytest.mark.parametrize("num_heads", [1, 2, 3, 4])
def test_separating_halves_undoes_the_converters_interleaving(num_heads: int, shape: tuple[int, ...]) -> None:
    rows = torch.randn(shape)
    interleaved = torch.from_numpy(interleave_halves(rows.numpy(), num_heads))
    assert not torch.equal(interleaved, rows)
    assert torch.equal(separate_halves(interleaved, num_heads), rows)


def test_a_head_of_four_rows_is_put_in_order() -> None:
    assert separate_halves(torch.tensor([0, 2, 1, 3, 10, 12, 11, 13]), 2).tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
        ("blk.31.ffn_norm.weight", "model.layers.31.post_attention_layernorm.weight"),
        ("blk.3.ffn_gate_inp.weight", "model.layers.3.mlp.gate.weight"),
        ("blk.3.ffn_up.7.weight", "model.layers.3.mlp.experts.7.up_proj.weight"),
        ("blk.3.ffn_up_exps.weight", None),
        ("blk.0.post_ffw_norm.weight", None),
        ("blk.0.attn_qkv.weight", None),
        ("blk.00.attn_q.weight", None),
        ("blk.0.attn_q.scale", None),
        ("model.norm.weight", None),
    ],
)
def test_names_are_translated_or_unknown(name: str, wanted: str | None) -> None:
    assert hf_name(name) == wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.0.post_attention_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"),
        ("blk.0.post_ffw_norm.weight", "model.layers.0.post_feedforward_layernorm.weight"),
    ],
)
def test_norms_have_other_names_where_there_are_more_of_them(name: str, wanted: str) -> None:
    assert hf_name(name, sandwich_norms=True) == wanted


def matrices(checkpoint: Checkpoint) -> list[str]:
    return [name for name, tensor in checkpoint.tensors.items() if tensor.ndim == 2]


def dequantised(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    weight = load_blocks(checkpoint.tensors, name)
    return torch.from_numpy(weight.rows(np.arange(weight.out_features)))


def half_steps(weight: torch.Tensor) -> torch.Tensor:
    """Half of what 255 steps over each 32 inputs measure, and a little for rounding them to float16; as `weight`."""
    lowest, highest = weight.reshape(len(weight), -1, 32).aminmax(dim=2)
    half: torch.Tensor = ((highest - lowest) / 510 * 1.003 + 1e-7).repeat_interleave(32, dim=1)
    return half


@pytest.mark.parametrize("family", ["llama", "qwen2", "mixtral"])
@pytest.mark.parametrize("file_type", GGUF_FILE_TYPES)
def test_stored_codes_stand_for_the_tensors_and_others_are_quantised(
    file_type: str, family: str, tmp_path: Path
) -> None:
    write_gguf(make_model(family, tmp_path), tmp_path / "m.gguf", file_type)
    checkpoint = load_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.is_block_quantised == (file_type in BLOCK_TYPES)
    for name in matrices(checkpoint):
        wanted, found = checkpoint.tensors[name], dequantised(checkpoint, name)
        if file_type in BLOCK_TYPES and not name.endswith("mlp.gate.weight"):  # routers are F32 in every file
            assert torch.equal(found, wanted), name
        else:
            assert ((found - wanted).abs() <= half_steps(wanted)).all(), name


def test_weights_of_a_directory_are_quantised(tmp_path: Path) -> None:
    make_model("llama", tmp_path, dtype=torch.bfloat16)
    checkpoint = load_checkpoint(tmp_path)
    assert not checkpoint.is_block_quantised
    for name in matrices(checkpoint):
        wanted = checkpoint.tensors[name].float()
        assert ((dequantised(checkpoint, name) - wanted).abs() <= half_steps(wanted)).all(), name


def test_damaged_scales_are_refused_with_the_tensors_name(tmp_path: Path) -> None:
    write_gguf(make_model("llama", tmp_path), tmp_path / "m.gguf", "Q4_1")
    tensor = next(t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if t.name == "blk.1.ffn_up.weight")
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    content[tensor.data_offset : tensor.data_offset + 2] = np.array([np.inf], np.float16).tobytes()
    (tmp_path / "m.gguf").write_bytes(content)
    checkpoint = load_checkpoint(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=r"m\.gguf: tensor blk\.1\.ffn_up\.weight: row 0, block 0: the range nan"):
        load_blocks(checkpoint.tensors, "model.layers.1.mlp.up_proj.weight")


@pytest.mark.parametrize("is_gguf", [False, True])
def test_rows_that_are_no_whole_blocks_are_refused(is_gguf: bool, tmp_path: Path) -> None:
    model = make_model("llama", tmp_path, changes={"intermediate_size": 40})
    write_gguf(model, tmp_path / "m.gguf")
    checkpoint = load_checkpoint(tmp_path / "m.gguf" if is_gguf else tmp_path)
    where = "blk.0.ffn_down" if is_gguf else "model.layers.0.mlp.down_proj"
    with pytest.raises(CheckpointError, match=f"tensor {where}.weight: in_features 40 is not a multiple of 32"):
        load_blocks(checkpoint.tensors, "model.layers.0.mlp.down_proj.weight")


def test_the_demo_model_keeps_every_bit(smollm2_path: Path) -> None:
    checkpoint = load_checkpoint(smollm2_path)
    assert checkpoint.is_block_quantised
    for name in checkpoint.tensors:
        if name == "model.embed_tokens.weight" or ("proj" in name and (".0." in name or ".29." in name)):
            assert torch.equal(dequantised(checkpoint, name), checkpoint.tensors[name]), name
