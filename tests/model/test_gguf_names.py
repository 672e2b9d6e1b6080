"""llama.cpp's row order is undone exactly, and only names of the supported families are known."""

import pytest
import torch

from model.gguf_names import hf_name, separate_halves
from tests.model.tiny import interleave_halves


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
