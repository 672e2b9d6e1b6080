"""config.json is read as transformers reads it; what would change the output and is not honoured is refused by name."""

import math

import pytest
from transformers import AutoConfig

from model.checkpoint.config import FAMILIES, CheckpointError, Experts, LinearScaling, ModelConfig, YarnScaling
from model.checkpoint.config_hf import config_from_hf

SIZES: dict[str, object] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def read(family: str = "llama", **fields: object) -> ModelConfig:
    return config_from_hf({"model_type": family, **SIZES, **fields}, "config.json")


@pytest.mark.parametrize("family", FAMILIES)
def test_absent_fields_have_the_defaults_of_transformers(family: str) -> None:
    ours, theirs = read(family), AutoConfig.for_model(family, **SIZES)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 16)
    assert ours.sliding_window == theirs.sliding_window if family != "llama" else ours.sliding_window is None
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    rope = theirs.rope_parameters
    assert ours.rope_theta == rope.get("full_attention", rope)["rope_theta"]
    assert ours.local_rope_theta == rope.get("sliding_attention", {}).get("rope_theta")
    assert ours.rope_scaling is None
    if ours.experts is not None:
        assert ours.experts.count == theirs.num_local_experts
        assert ours.experts.per_token == theirs.num_experts_per_tok
        assert ours.experts.are_normalised == getattr(theirs, "norm_topk_prob", True)
        assert ours.experts.intermediate_size == getattr(theirs, "moe_intermediate_size", theirs.intermediate_size)


@pytest.mark.parametrize(
    ("family", "fields", "qkv", "o", "mlp"),
    [
        ("llama", {}, False, False, False),
        ("llama", {"attention_bias": True}, True, True, False),
        ("llama", {"mlp_bias": True}, False, False, True),
        ("mistral", {}, False, False, False),
        ("qwen2", {}, True, False, False),
        ("qwen3", {}, False, False, False),
        ("qwen3", {"attention_bias": True}, True, True, False),
    ],
)
def test_biases_are_where_the_family_has_them(
    family: str, fields: dict[str, object], qkv: bool, o: bool, mlp: bool
) -> None:
    config = read(family, **fields)
    assert (config.qkv_bias, config.o_bias, config.mlp_bias) == (qkv, o, mlp)


def test_some_families_norm_queries_and_keys() -> None:
    assert [family for family in FAMILIES if read(family).qk_norm] == ["qwen3", "gemma3_text", "qwen3_moe"]


def test_missing_and_null_numbers_of_key_value_heads_mean_one_for_each_head() -> None:
    assert read(num_key_value_heads=None).num_kv_heads == 4


@pytest.mark.parametrize(
    ("family", "fields", "window"),
    [
        ("llama", {"sliding_window": 7}, None),
        ("mistral", {"sliding_window": 7}, 7),
        ("mistral", {"sliding_window": None}, None),
        ("mistral", {}, 4096),
        ("qwen2", {"sliding_window": 7}, None),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": True}, None),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}, 7),
        ("qwen3", {"sliding_window": 7, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 3}, 7),
        ("qwen3", {"layer_types": ["full_attention"] * 3}, None),
        ("mistral", {"sliding_window": 7, "layer_types": ["sliding_attention"] * 3}, 7),
        ("mixtral", {}, None),
        ("mixtral", {"sliding_window": 7}, 7),
        ("qwen3_moe", {"sliding_window": 7}, None),
        ("qwen3_moe", {"sliding_window": 7, "use_sliding_window": True}, 7),
        ("gemma3_text", {"sliding_window": 7}, 7),
        ("gemma3_text", {}, 4096),
    ],
)
def test_a_sliding_window_counts_where_the_family_uses_it(
    family: str, fields: dict[str, object], window: int | None
) -> None:
    assert read(family, **fields).sliding_window == window


@pytest.mark.parametrize(
    ("family", "fields", "windows"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}, [None, 7, 7]),
        ("gemma3_text", {"sliding_window": 7, "sliding_window_pattern": 2}, [7, None, 7]),
        ("gemma3_text", {"sliding_window": 7, "sliding_window_pattern": 1}, [None] * 3),
        ("gemma3_text", {"sliding_window": 7}, [7] * 3),
        (
            "gemma3_text",
            {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            [None, 7, None],
        ),
    ],
)
def test_layers_differ_in_their_windows_where_the_file_says_so(
    family: str, fields: dict[str, object], windows: list[int | None]
) -> None:
    config = read(family, **fields)
    assert [config.window(layer) for layer in range(3)] == windows


def test_gemma_is_read_with_what_its_published_files_leave_out() -> None:
    config = config_from_hf({"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}, "config.json")
    theirs = AutoConfig.for_model("gemma3_text", hidden_size=2560, num_hidden_layers=34)
    assert (config.vocab_size, config.head_dim, config.num_kv_heads) == (262_208, 256, 4)
    assert config.full_layers == {i for i, kind in enumerate(theirs.layer_types) if kind == "full_attention"}
    assert (config.attention_scale, config.embedding_scale, config.norm_offset) == (1 / 16, 2560**0.5, 1.0)
    assert config.tied_embeddings
    assert config.logit_softcap is None
    assert read("gemma3_text", final_logit_softcapping=30.0, query_pre_attn_scalar=168).logit_softcap == 30.0


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5000.0, "rope_local_base_freq": 70.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
            }
        },
    ],
)
def test_layers_with_a_window_rotate_by_themselves_in_gemma(fields: dict[str, object]) -> None:
    config = read("gemma3_text", **fields)
    assert (config.rope_theta, config.rope_scaling, config.local_rope_theta) == (5000.0, LinearScaling(8.0), 70.0)


@pytest.mark.parametrize(
    ("family", "fields", "experts"),
    [
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 3}, Experts(4, 3, 96, True)),
        ("mixtral", {"num_experts": 4}, Experts(4, 2, 96, True)),
        (
            "qwen3_moe",
            {"num_experts": 16, "moe_intermediate_size": 24, "norm_topk_prob": True, "mlp_only_layers": [0]},
            Experts(16, 8, 24, True, frozenset({0})),
        ),
        ("qwen3_moe", {"decoder_sparse_step": 2}, Experts(128, 8, 768, False, frozenset({0, 2}))),
        ("llama", {}, None),
    ],
)
def test_experts_are_read(family: str, fields: dict[str, object], experts: Experts | None) -> None:
    assert read(family, **fields).experts == experts


@pytest.mark.parametrize(
    ("family", "fields", "name"),
    [
        ("qwen3", {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "layer_types"),
        ("llama", {"layer_types": ["chunked_attention"] * 3}, "layer_types"),
        ("mistral", {"sliding_window": 7, "layer_types": ["full_attention"] * 3}, "layer_types"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved"),
        ("llama", {"no_rope_layers": [1, 1, 0]}, "no_rope_layers"),
        ("smollm3", {"no_rope_layers": [1, 1, 0]}, "no_rope_layers"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ("llama", {"num_local_experts": 8}, "num_local_experts"),
        ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ("llama", {"hidden_size": None}, "hidden_size"),
        ("llama", {"hidden_size": "64"}, "hidden_size"),
        ("llama", {"hidden_size": True}, "hidden_size"),
        ("llama", {"hidden_size": 64.0}, "hidden_size"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("llama", {"rms_norm_eps": math.nan}, "rms_norm_eps"),
        ("llama", {"rms_norm_eps": 0}, "rms_norm_eps"),
        ("llama", {"rope_theta": math.inf}, "rope_theta"),
        ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ("llama", {"num_attention_heads": 3}, "num_attention_heads"),
        ("llama", {"num_key_value_heads": 3}, "3 key/value heads"),
        ("llama", {"head_dim": 15}, "head size is 15"),
        ("llama", {"num_hidden_layers": 10**12}, "num_hidden_layers is .* at most 10000"),
        ("gemma3", {}, "text_config is missing"),
        ("gemma3", {"text_config": {"model_type": "llama"}}, "text_config is"),
        ("gemma3", {"text_config": {"attn_logit_softcapping": 1.0}}, "text_config: attn_logit_softcapping"),
        ("gemma3", {"text_config": {}, "quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3_text", {"final_logit_softcapping": "x"}, "final_logit_softcapping"),
        ("gemma3_text", {"hidden_activation": "silu"}, "hidden_activation"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"rope_parameters": {"rope_type": "linear", "factor": 8.0}}, "rope_parameters"),
        (
            "gemma3_text",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 8.0}}},
            "rope_parameters: sliding_attention: rope_type is 'linear'",
        ),
        ("mixtral", {"num_local_experts": 4, "num_experts": 8}, "num_local_experts is 4"),
        ("mixtral", {"num_local_experts": 1}, "2 experts for each token, but there are 1"),
        ("mixtral", {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size"),
        ("qwen3_moe", {"mlp_only_layers": ["0"]}, "mlp_only_layers"),
        ("qwen3_moe", {"layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(family: str, fields: dict[str, object], name: str) -> None:
    with pytest.raises(CheckpointError, match=f"^config.json: .*{name}"):
        read(family, **fields)


@pytest.mark.parametrize("family", ["gpt2", "qwen2_moe", "smollm3"])
def test_an_unknown_model_type_is_refused_with_the_supported_ones(family: str) -> None:
    with pytest.raises(CheckpointError, match=rf"model_type is '{family}'; supported are llama, mistral, qwen2, qwen3"):
        read(family)


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_rope_is_read_from_the_old_and_the_new_field(name: str) -> None:
    rope: object = {"rope_type": "linear", "factor": 2.0}
    config = read("llama", rope_theta=5000.0, **{name: rope})
    assert (config.rope_theta, config.rope_scaling) == (5000.0, LinearScaling(2.0))


def test_the_base_frequency_inside_the_rope_object_overrules_the_one_outside() -> None:
    assert read(rope_theta=5000.0, rope_parameters={"rope_type": "default", "rope_theta": 7000.0}).rope_theta == 7000.0


def test_the_old_spelling_of_the_rope_type_is_understood() -> None:
    assert read(rope_scaling={"type": "linear", "factor": 2.0}).rope_scaling == LinearScaling(2.0)


def test_yarn_takes_the_original_context_from_the_model_where_it_is_absent() -> None:
    scaling = read(rope_scaling={"type": "yarn", "factor": 4.0}).rope_scaling
    assert isinstance(scaling, YarnScaling)
    assert scaling.original_max_position == 512


@pytest.mark.parametrize(
    ("rope", "name"),
    [
        (
            {"rope_type": "dynamic", "factor": 2.0},
            "rope_type is 'dynamic'; supported are default, linear, llama3, yarn",
        ),
        ({"type": "longrope", "factor": 2.0}, "type is 'longrope'"),
        ({"rope_type": "linear"}, "factor is missing"),
        ({"rope_type": "linear", "factor": -1.0}, "factor is -1.0"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 1.0}, "beta_fast"),
        ({"rope_type": "default", "mrope_section": [16, 24, 24]}, "mrope_section"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"full_attention": {"rope_type": "default"}}, "full_attention"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}, "high_freq_factor"),
        ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}, "YaRN needs a base frequency"),
        ([1], "rope_scaling is"),
    ],
)
def test_rope_that_cannot_be_honoured_is_refused_by_name(rope: object, name: str) -> None:
    with pytest.raises(CheckpointError, match=name):
        read(rope_scaling=rope)


def test_two_rope_objects_that_differ_are_refused() -> None:
    rope = {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(CheckpointError, match="rope_scaling"):
        read(rope_scaling=rope, rope_parameters=rope | {"factor": 3.0})
