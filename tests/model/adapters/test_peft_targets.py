"""Which modules a config names, against PEFT's own functions; and the names that modules had in training."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

from model.adapters.adapter import BaseWeights
from model.adapters.peft_config import read_peft_config
from model.adapters.peft_targets import Spelling, Targets, spelling_of
from model.adapters.tensors import AdapterError
from model.bounded_regex import Budget
from tests.model.adapter_makers import base_weights
from tests.model.tiny import make_model

PLAIN = Spelling(is_mixtral=False, text_part="model.")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseWeights]:
    found = {}
    for family in ("llama", "mixtral", "qwen3moe"):
        path = tmp_path_factory.mktemp(family)
        make_model(family, path)
        found[family] = base_weights(path)
    return found


def targets(
    base: BaseWeights,
    directory: Path,
    fields: Mapping[str, object],
    spelling: Spelling = PLAIN,
    budget: Budget | None = None,
) -> Targets:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **fields}))
    return Targets(read_peft_config(directory), base, spelling, budget or Budget())


NAMES = st.sampled_from(
    [
        *(
            "q_proj",
            "self_attn.q_proj",
            "layers.1.mlp.up_proj",
            "model.layers.0.mlp.down_proj",
            "lm_head",
            "proj",
            "mlp",
        ),
        *("v.proj", "embed_tokens", "model.layers.1.self_attn.o_proj", "1.self_attn.k_proj"),
    ]
)
EXPRESSIONS = st.sampled_from(
    [r".*", r".*q_proj", r"model\.layers\.\d+\.mlp\..*", r".*\.(q|k)_proj|lm_head", r"(?!.*mlp).*_proj", r"nothing"]
)
NAMED = st.one_of(st.lists(NAMES, max_size=4), EXPRESSIONS)
PATTERNS = st.dictionaries(
    st.one_of(NAMES, st.sampled_from([r"layers\.\d\.mlp\..*", "^model", ".*[qk]_proj", "(q_|k_)proj"])),
    st.integers(1, 64),
    max_size=4,
)


@settings(deadline=None, max_examples=200)
@given(NAMED, NAMED, st.lists(NAMES, max_size=2), st.lists(st.integers(0, 2), max_size=2), st.booleans())
def test_the_modules_that_a_config_names_are_peft_s(
    bases: dict[str, BaseWeights],
    tmp_path_factory: pytest.TempPathFactory,
    target_modules: object,
    exclude_modules: object,
    modules_to_save: list[str],
    layers: list[int],
    has_pattern: bool,
) -> None:
    fields: dict[str, object] = {
        "target_modules": target_modules,
        "exclude_modules": exclude_modules or None,
        "modules_to_save": modules_to_save or None,
    }
    if not isinstance(target_modules, str):
        fields |= {
            "layers_to_transform": layers or None,
            "layers_pattern": ["layers"] if has_pattern and layers else None,
        }
    config = LoraConfig(**fields)
    ours = targets(bases["llama"], tmp_path_factory.getbasetemp() / "config", fields)
    for module in (*bases["llama"].module_shapes, "model.embed_tokens"):
        wanted = bool(check_target_module_exists(config, module))
        assert (ours.key_of_module(module) is not None) == wanted, module


@settings(deadline=None, max_examples=200)
@given(PATTERNS, PATTERNS, st.booleans())
def test_ranks_and_alphas_are_peft_s(
    bases: dict[str, BaseWeights],
    tmp_path_factory: pytest.TempPathFactory,
    ranks: dict[str, int],
    alphas: dict[str, int],
    use_rslora: bool,
) -> None:
    fields = {"r": 8, "lora_alpha": 5, "rank_pattern": ranks, "alpha_pattern": alphas, "use_rslora": use_rslora}
    ours = targets(bases["llama"], tmp_path_factory.getbasetemp() / "config", fields)
    for module in bases["llama"].module_shapes:
        rank = ranks.get(get_pattern_key(ranks.keys(), module), 8)
        alpha = alphas.get(get_pattern_key(alphas.keys(), module), 5)
        assert ours.rank(module) == rank
        assert ours.factor(module) == alpha / (rank**0.5 if use_rslora else rank)


def test_a_saved_module_is_named_by_any_end_of_its_path(bases: dict[str, BaseWeights], tmp_path: Path) -> None:
    ours = targets(bases["llama"], tmp_path, {"modules_to_save": ["norm"]})
    paths = ["model.norm", "model.layers.0.input_layernorm", "model.layers.0.self_attn.q_proj", "lm_head"]
    assert [path for path, _ in ours.saved(paths)] == paths[:2]


def test_experts_go_by_the_names_that_they_had_in_training(bases: dict[str, BaseWeights], tmp_path: Path) -> None:
    mixtral = spelling_of(["model.layers.0.block_sparse_moe.gate.lora_A.weight"], bases["mixtral"])
    ours = targets(bases["mixtral"], tmp_path, {"target_modules": ["w1", "experts.2.w3", "gate"]}, mixtral)
    expert = "model.layers.1.mlp.experts.2"
    assert ours.key_of_module(f"{expert}.gate_proj") == "model.layers.1.block_sparse_moe.experts.2.w1"
    assert ours.key_of_module(f"{expert}.up_proj") == "model.layers.1.block_sparse_moe.experts.2.w3"
    assert ours.key_of_module(f"{expert}.down_proj") is None
    assert ours.key_of_module("model.layers.1.mlp.experts.1.up_proj") is None
    assert ours.key_of_module("model.layers.1.mlp.gate") == "model.layers.1.block_sparse_moe.gate"
    # In transformers 5 Mixtral has no modules of these names, and its stacked parameters have others.
    ours = targets(bases["mixtral"], tmp_path, {"target_modules": ["gate_proj", "up_proj", "down_proj"]}, mixtral)
    assert not any(ours.key_of_module(module) for module in bases["mixtral"].module_shapes)
    ours = targets(bases["mixtral"], tmp_path, {"target_parameters": ["experts.down_proj", "gate.weight"]}, mixtral)
    assert ours.key_of_stack("model.layers.1.mlp.experts.down_proj") == "model.layers.1.mlp.experts.down_proj"
    assert ours.key_of_stack("model.layers.1.mlp.experts.gate_up_proj") is None
    assert ours.key_of_weight("model.layers.1.mlp.gate") == "model.layers.1.block_sparse_moe.gate.weight"


@pytest.mark.parametrize("text_part", ["model.language_model.", "language_model.model."])
def test_the_language_part_of_a_model_that_sees_is_found(
    bases: dict[str, BaseWeights], tmp_path: Path, text_part: str
) -> None:
    names = [f"{text_part}layers.0.self_attn.q_proj.lora_A.weight"]
    spelling = spelling_of(names, bases["llama"])
    expression = r".*language_model.*\.q_proj"
    ours = targets(bases["llama"], tmp_path, {"target_modules": expression}, spelling)
    assert ours.key_of_module("model.layers.1.self_attn.q_proj") == f"{text_part}layers.1.self_attn.q_proj"
    assert ours.key_of_module("lm_head") is None


COSTLY = "(.|..)*" * 40 + "x"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target_modules", COSTLY),
        ("exclude_modules", COSTLY),
        ("modules_to_save", [COSTLY]),
        ("rank_pattern", {COSTLY: 4}),
        ("rank_pattern", {f"module_{i}": 4 for i in range(100)}),
        ("alpha_pattern", {f"module_{i}": 4 for i in range(100)}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_all_matching_has_one_budget(bases: dict[str, BaseWeights], tmp_path: Path, field: str, value: object) -> None:
    ours = targets(bases["qwen3moe"], tmp_path, {field: value}, budget=Budget(500))

    def ask() -> None:
        for module in bases["qwen3moe"].module_shapes:
            ours.key_of_module(module)
            ours.factor(module)

    with pytest.raises(AdapterError, match=f"of {field} takes too long to match"):
        ask()
