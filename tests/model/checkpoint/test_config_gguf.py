"""GGUF metadata gives the same configuration as config.json; what is not honoured is refused by the key's name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from model.checkpoint.config import CheckpointError, DivisorScaling, Experts, LinearScaling, ModelConfig, YarnScaling
from model.checkpoint.config_gguf import config_from_gguf
from model.checkpoint.config_hf import config_from_hf
from model.checkpoint.fields import read_json_object
from model.checkpoint.gguf import GgufFile, GgufValue, read_gguf
from tests.model.tiny import FAMILIES, make_model, write_gguf

SIZES: Mapping[str, GgufValue] = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.block_count": 3,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.context_length": 512,
}


@pytest.fixture(scope="module")
def embeddings_only(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    """A file with the tensors that the configuration is read from."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((100, 64), dtype=np.float32))
    writer.add_tensor("rope_freqs.weight", np.arange(1, 9, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path)


def read(
    file: GgufFile, keys: Mapping[str, GgufValue | None] | None = None, *, with_divisors: bool = False
) -> ModelConfig:
    """Read SIZES with some keys changed (None: taken away)."""
    metadata = {name: value for name, value in {**SIZES, **(keys or {})}.items() if value is not None}
    names = ("token_embd.weight", "rope_freqs.weight") if with_divisors else ("token_embd.weight",)
    return config_from_gguf(replace(file, metadata=metadata, tensors={name: file.tensors[name] for name in names}))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_says_the_same_as_config_json(family: str, tied: bool, tmp_path: Path) -> None:
    write_gguf(make_model(family, tmp_path, tied=tied), tmp_path / "m.gguf")
    wanted = config_from_hf(read_json_object(tmp_path / "config.json"), "config.json")
    found = config_from_gguf(read_gguf(tmp_path / "m.gguf"))
    assert found.rms_norm_eps == pytest.approx(wanted.rms_norm_eps)
    architecture = "llama" if family == "mistral" else wanted.family
    assert found == replace(wanted, family=architecture, rms_norm_eps=found.rms_norm_eps)


def test_absent_keys_have_the_defaults_of_llama_cpp(embeddings_only: GgufFile) -> None:
    config = read(embeddings_only, {"llama.attention.head_count_kv": None})
    assert (config.num_kv_heads, config.head_dim, config.vocab_size) == (4, 16, 100)
    assert (config.rope_theta, config.rope_scaling, config.sliding_window) == (10000.0, None, None)


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, LinearScaling(4.0)),
        ({"llama.rope.scaling.factor": 4.0}, LinearScaling(4.0)),
        ({"llama.rope.scale_linear": 2.0}, LinearScaling(2.0)),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 1.0,
                "llama.rope.scaling.attn_factor": 0.5,
                "llama.rope.scaling.original_context_length": 128,
                "llama.rope.scaling.yarn_beta_fast": 16.0,
                "llama.rope.scaling.yarn_beta_slow": 2.0,
            },
            YarnScaling(1.0, 128, 0.5, 16.0, 2.0),
        ),
    ],
)
def test_rope_scaling_is_read(
    keys: Mapping[str, GgufValue], scaling: LinearScaling | YarnScaling | None, embeddings_only: GgufFile
) -> None:
    assert read(embeddings_only, keys).rope_scaling == scaling


def test_the_tensor_of_rope_divisors_is_honoured(embeddings_only: GgufFile) -> None:
    scaling = read(embeddings_only, with_divisors=True).rope_scaling
    assert scaling == DivisorScaling((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"llama.attention.key_length": 32, "llama.rope.dimension_count": 32}, "8 rotary divisors for heads of 32"),
        ({"llama.rope.scaling.factor": 2.0}, "not supported together with the tensor rope_freqs.weight"),
    ],
)
def test_rope_divisors_that_cannot_be_honoured_are_refused(
    keys: Mapping[str, GgufValue], message: str, embeddings_only: GgufFile
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(embeddings_only, keys, with_divisors=True)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"general.architecture": "gemma2"}, "general.architecture is 'gemma2'; supported are llama, qwen2, qwen3"),
        ({"general.architecture": None}, "general.architecture is missing"),
        ({"split.count": 2}, "split.count is 2; merge"),
        ({"llama.expert_count": 8}, "llama.expert_used_count is missing"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 9}, "9 experts for each token, but there are 8"),
        ({"llama.expert_gating_func": 2}, "llama.expert_gating_func is 2"),
        ({"llama.expert_shared_count": 1}, "llama.expert_shared_count is 1"),
        ({"llama.attention.sliding_window_pattern": 6}, "llama.attention.sliding_window_pattern is 6"),
        ({"llama.block_count": 10**9}, "llama.block_count is .* at most 10000"),
        ({"llama.attention.clamp_kqv": 8.0}, "llama.attention.clamp_kqv"),
        ({"llama.attention.causal": False}, "llama.attention.causal"),
        ({"llama.final_logit_softcapping": 30.0}, "llama.final_logit_softcapping"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count is 8"),
        ({"llama.attention.value_length": 8}, "llama.attention.value_length is 8"),
        ({"llama.attention.head_count": [4, 4, 2]}, "llama.attention.head_count is"),
        ({"llama.attention.head_count": 3}, "llama.attention.head_count is 3"),
        ({"llama.attention.head_count_kv": 3}, "3 key/value heads"),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
        ({"llama.rope.scaling.type": "longrope"}, "llama.rope.scaling.type is 'longrope'"),
        ({"llama.rope.scaling.attn_factor": 1.2}, "llama.rope.scaling.attn_factor is 1.2"),
        ({"llama.rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ({"llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    keys: Mapping[str, GgufValue | None], name: str, embeddings_only: GgufFile
) -> None:
    with pytest.raises(CheckpointError, match=name) as refusal:
        read(embeddings_only, keys)
    assert str(refusal.value).startswith(str(embeddings_only.path))


GEMMA: Mapping[str, GgufValue] = {
    **{name.replace("llama", "gemma3"): value for name, value in SIZES.items()},
    "general.architecture": "gemma3",
    "gemma3.block_count": 7,
    "gemma3.attention.sliding_window": 5,
}


def read_gemma(file: GgufFile, keys: Mapping[str, GgufValue]) -> ModelConfig:
    tensors = {"token_embd.weight": file.tensors["token_embd.weight"]}
    return config_from_gguf(replace(file, metadata={**GEMMA, **keys}, tensors=tensors))


@pytest.mark.parametrize(
    ("keys", "full_layers"),
    [
        ({}, {5}),
        ({"gemma3.attention.sliding_window_pattern": 3}, {2, 5}),
        ({"gemma3.attention.sliding_window_pattern": 0}, set()),
        ({"gemma3.attention.sliding_window_pattern": [False, *[True] * 6]}, {0}),
    ],
)
def test_gemma_has_full_attention_in_some_layers(
    keys: Mapping[str, GgufValue], full_layers: set[int], embeddings_only: GgufFile
) -> None:
    config = read_gemma(embeddings_only, keys)
    assert (config.sliding_window, config.local_rope_theta) == (5, 10000.0)
    assert set(config.full_layers) == full_layers


@pytest.mark.parametrize(
    "keys", [{"gemma3.attention.sliding_window": 0}, {"gemma3.attention.sliding_window_pattern": 1}]
)
def test_gemma_without_windows_has_one_rotary_embedding(
    keys: Mapping[str, GgufValue], embeddings_only: GgufFile
) -> None:
    config = read_gemma(embeddings_only, keys)
    assert (config.sliding_window, config.local_rope_theta) == (None, None)
    assert not config.full_layers


def test_the_largest_gemma_scales_queries_by_its_width(embeddings_only: GgufFile) -> None:
    sizes = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    keys: dict[str, GgufValue] = {f"gemma3.{name}": 32 for name in sizes}
    assert read_gemma(embeddings_only, keys).attention_scale == 32**-0.5
    assert read_gemma(embeddings_only, {**keys, "gemma3.block_count": 62}).attention_scale == 16**-0.5


@pytest.mark.parametrize("pattern", [[True], "6", -1])
def test_a_pattern_that_does_not_fit_is_refused(pattern: GgufValue, embeddings_only: GgufFile) -> None:
    keys: Mapping[str, GgufValue] = {"gemma3.attention.sliding_window_pattern": pattern}
    with pytest.raises(CheckpointError, match=r"gemma3\.attention\.sliding_window_pattern is"):
        read_gemma(embeddings_only, keys)


def test_a_llama_with_experts_is_a_mixtral(embeddings_only: GgufFile) -> None:
    config = read(embeddings_only, {"llama.expert_count": 8, "llama.expert_used_count": 2})
    assert (config.family, config.experts) == ("mixtral", Experts(8, 2, 96, True))


def test_the_size_of_an_expert_follows_where_the_file_leaves_it_out(embeddings_only: GgufFile) -> None:
    keys = {name.replace("llama", "qwen3moe"): value for name, value in SIZES.items()}
    keys |= {"general.architecture": "qwen3moe", "qwen3moe.expert_count": 8, "qwen3moe.expert_used_count": 4}
    assert config_from_gguf(replace(embeddings_only, metadata=keys)).experts == Experts(8, 4, 24, True)
    keys |= {"qwen3moe.expert_feed_forward_length": 40}
    assert config_from_gguf(replace(embeddings_only, metadata=keys)).experts == Experts(8, 4, 40, True)


def test_a_sliding_window_of_another_architecture_is_refused(embeddings_only: GgufFile) -> None:
    keys = {name.replace("llama", "qwen2"): value for name, value in SIZES.items()}
    keys |= {"general.architecture": "qwen2", "qwen2.attention.sliding_window": 7}
    with pytest.raises(CheckpointError, match=r"qwen2\.attention\.sliding_window is 7"):
        read(embeddings_only, keys)


def test_a_file_without_embeddings_is_no_model(embeddings_only: GgufFile) -> None:
    with pytest.raises(CheckpointError, match=r"token_embd\.weight is missing"):
        config_from_gguf(replace(embeddings_only, metadata=SIZES, tensors={}))
