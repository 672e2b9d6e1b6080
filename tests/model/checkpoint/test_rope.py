"""Rotary frequencies equal transformers' own, bit for bit, for each kind of scaling."""

from pathlib import Path

import pytest
import torch

from model.checkpoint.rope import local_rope_config, rope_attention_factor, rope_frequencies
from model.checkpoint.weights import load_checkpoint
from tests.model.tiny import FAMILIES, make_model, write_gguf

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
SCALINGS = {
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn-attention": YARN | {"attention_factor": 0.7},
    "yarn-mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 0.3},
    "yarn-betas": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn-no-ramp": YARN | {"beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},
}


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gemma3"])
def test_unscaled_frequencies_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    rotary = make_model(family, tmp_path).model.rotary_emb
    config = load_checkpoint(tmp_path).config
    assert torch.equal(rope_frequencies(config), rotary.inv_freq)
    assert rope_attention_factor(config) == 1.0


def test_gemma_has_two_rotary_embeddings(tmp_path: Path) -> None:
    rotary = make_model("gemma3", tmp_path).model.rotary_emb
    config = load_checkpoint(tmp_path).config
    assert torch.equal(rope_frequencies(config), rotary.full_attention_inv_freq)
    local = local_rope_config(config)
    assert local is not None
    assert torch.equal(rope_frequencies(local), rotary.sliding_attention_inv_freq)
    assert not torch.equal(rotary.full_attention_inv_freq, rotary.sliding_attention_inv_freq)


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_frequencies_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    plain = make_model("qwen3", tmp_path / "plain").model.rotary_emb
    rotary = make_model("qwen3", tmp_path / "scaled", rope=SCALINGS[name]).model.rotary_emb
    config = load_checkpoint(tmp_path / "scaled").config
    assert not torch.equal(rotary.inv_freq, plain.inv_freq)
    assert torch.equal(rope_frequencies(config), rotary.inv_freq)
    assert rope_attention_factor(config) == rotary.attention_scaling


@pytest.mark.parametrize("name", ["linear", "llama3", "yarn"])
def test_a_gguf_file_scales_as_the_model_it_was_made_from(name: str, tmp_path: Path) -> None:
    model = make_model("llama", tmp_path, rope=SCALINGS[name])
    write_gguf(model, tmp_path / "model.gguf")
    config = load_checkpoint(tmp_path / "model.gguf").config
    torch.testing.assert_close(rope_frequencies(config), model.model.rotary_emb.inv_freq, rtol=3e-7, atol=0)
    assert rope_attention_factor(config) == pytest.approx(model.model.rotary_emb.attention_scaling)
