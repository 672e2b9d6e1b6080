"""Fields of adapter_config.json: which refuse the adapter and how, and which change nothing."""

import json
import re
import time
from pathlib import Path

import pytest

from tests.model.adapter_makers import edit_config
from tests.model.written_peft import Original, Written

# PEFT asks transformers by a name that transformers is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("peft"))


@pytest.fixture
def written(original: Original, tmp_path: Path) -> Written:
    return Written(original, tmp_path / "adapter")


REFUSED_FIELDS: list[tuple[str, object]] = [
    ("peft_type", None),
    ("bias", "some"),
    ("bias", True),
    ("use_dora", "yes"),
    ("lora_bias", 1),
    ("fan_in_fan_out_", True),
    ("modules_to_save", "lm_head"),
    ("modules_to_save", [3]),
    ("alora_invocation_tokens", "##!"),
    ("alora_invocation_tokens", 5),
    ("alora_invocation_tokens", [1, -2]),
    ("alora_invocation_tokens", [1, "2"]),
    ("alora_invocation_tokens", [True]),
    ("trainable_token_indices", [5, 5]),
    ("trainable_token_indices", [-1]),
    ("trainable_token_indices", {"embed_tokens": 5}),
    ("trainable_token_indices", {"embed_tokens": [1.5]}),
    ("trainable_token_indices", 5),
    ("target_parameters", "mlp.experts.gate_up_proj"),
    ("target_parameters", {"mlp.experts.gate_up_proj": True}),
    ("ensure_weight_tying", "no"),
    ("a_field_of_tomorrow", 0),
    ("a_field_of_tomorrow", "on"),
    ("r", 0),
    ("r", -4),
    ("r", 1 << 40),
    ("r", 10**400),
    ("r", "4"),
    ("r", True),
    ("r", 4.0),
    ("lora_alpha", "8"),
    ("lora_alpha", None),
    ("lora_alpha", float("nan")),
    ("lora_alpha", float("inf")),
    ("lora_alpha", 10**400),
    ("use_rslora", 1),
    ("rank_pattern", ["q_proj"]),
    ("rank_pattern", {"q_proj": -1}),
    ("rank_pattern", {"q_(proj": 4}),
    ("alpha_pattern", {"q_proj": "8"}),
    ("target_modules", 3),
    ("target_modules", ["q_proj", 3]),
    ("target_modules", ["q_proj", None]),
    ("target_modules", "q_(proj"),
    ("target_modules", "(" * 3000 + ")" * 3000),
    ("exclude_modules", {"q_proj": True}),
    ("exclude_modules", "q_(proj"),
    ("layers_to_transform", "all"),
    ("layers_to_transform", [0, "1"]),
    ("layers_to_transform", [True]),
    ("layers_pattern", ["lay(ers"]),
    ("layers_pattern", [f"layers_{i}" for i in range(10_000)]),
    ("modules_to_save", [f"module_{i}" for i in range(100_000)]),
]


@pytest.mark.parametrize(("field", "value"), REFUSED_FIELDS, ids=lambda value: json.dumps(value)[:40])
def test_a_field_that_cannot_be_honoured_is_named_with_its_value(written: Written, field: str, value: object) -> None:
    edit_config(written.path, {field: value})
    message = written.refusal()
    assert field in message
    assert len(message) < 1000
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    assert any(json.dumps(shown)[:150] in message for shown in (value, *inner))


NEUTRAL_FIELDS: list[tuple[str, object]] = [
    ("lora_dropout", 0.5),
    ("inference_mode", True),
    ("task_type", "CAUSAL_LM"),
    ("revision", "main"),
    ("base_model_name_or_path", "somebody/something"),
    ("auto_mapping", {"base_model_class": "LlamaForCausalLM"}),
    ("megatron_core", "megatron.core"),
    ("qalora_group_size", 32),
    ("loftq_config", {"loftq_bits": 4}),
    ("eva_config", {"rho": 2.0}),
    ("runtime_config", {"ephemeral_gpu_offload": False}),
    ("ensure_weight_tying", True),
    ("fan_in_fan_out", True),
    ("unsloth_fixed", True),
    ("merge_weights", True),
    ("init_lora_weights", False),
    ("init_lora_weights", "orthogonal"),
    ("init_lora_weights", "eva"),
    ("bias", None),
    ("bias", "none"),
    ("modules_to_save", []),
    ("target_parameters", []),
    ("trainable_token_indices", []),
    ("trainable_token_indices", {}),
    ("alora_invocation_tokens", None),
    ("alora_invocation_tokens", []),
    ("alora_invocation_tokens", [1, 2]),
    ("a_field_of_tomorrow", None),
    ("another_field_of_tomorrow", False),
    ("a_table_of_tomorrow", {}),
]


@pytest.mark.parametrize(("field", "value"), NEUTRAL_FIELDS, ids=lambda value: json.dumps(value)[:40])
def test_a_field_that_changes_nothing_is_accepted(written: Written, field: str, value: object) -> None:
    edit_config(written.path, {field: value})
    written.load()


# What stands in the configs of trainers, beside the fields that the fixture has.
TRAINERS: dict[str, dict[str, object]] = {
    "Unsloth": {
        "auto_mapping": {
            "base_model_class": "LlamaForCausalLM",
            "parent_library": "transformers.models.llama.modeling_llama",
            "unsloth_fixed": True,
        },
        "base_model_name_or_path": "unsloth/llama-3.2-1b-instruct-unsloth-bnb-4bit",
        "target_modules": r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?"
        r"(?:q_proj|v_proj|down_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|ffn)\."
        r"(?:(?:q_proj|v_proj|down_proj)))",
        "lora_dropout": 0,
        "megatron_core": "megatron.core",
        "qalora_group_size": 16,
        "loftq_config": {},
        "corda_config": None,
        "use_qalora": False,
    },
    "LLaMA-Factory": {
        "target_modules": ["v_proj", "down_proj", "q_proj"],
        "modules_to_save": None,
        "peft_version": "0.17.1",
    },
    "axolotl": {"target_modules": ["down_proj", "v_proj", "q_proj"], "lora_dropout": 0.05, "task_type": "CAUSAL_LM"},
    "PEFT's first version": {"enable_lora": None, "merge_weights": False, "bias": "none", "fan_in_fan_out": False},
}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_trainers_write_is_read(written: Written, trainer: str) -> None:
    before = written.load().digest()
    edit_config(written.path, TRAINERS[trainer])
    assert written.load().digest() == before


def test_a_directory_without_a_config_is_refused(written: Written) -> None:
    (written.path / "adapter_config.json").unlink()
    assert re.search(r"cannot read .*adapter_config\.json: No such file", written.refusal())


@pytest.mark.parametrize("text", ["{", "[]", "\xff"], ids=["cut off", "list", "other encoding"])
def test_a_config_that_is_not_a_json_object_is_refused(written: Written, text: str) -> None:
    (written.path / "adapter_config.json").write_bytes(text.encode("latin-1"))
    assert "adapter_config.json" in written.refusal()


EXPENSIVE = ["(.+)+x", ".*" * 40 + "x", "(.?)" * 60 + "x", "(.|.)*(.|.)*(.|.)*x"]


@pytest.mark.parametrize("pattern", EXPENSIVE)
@pytest.mark.parametrize("field", ["target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"])
def test_no_expression_keeps_the_reader_busy(written: Written, field: str, pattern: str) -> None:
    value: object = {pattern: 4} if field.endswith("pattern") else pattern
    edit_config(written.path, {field: value})
    began = time.perf_counter()
    if field == "target_modules":
        assert "do not name" in written.refusal()
    else:
        written.load()
    assert time.perf_counter() - began < 10  # not the age of the universe, which re would take
