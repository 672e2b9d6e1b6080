"""PEFT directories that must be refused, and what the message names."""

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from torch import Tensor
from transformers import PreTrainedModel

from model.adapter_content import AdapterContent
from model.adapter_peft import read_peft
from model.adapter_tensors import AdapterError
from tests.model.adapter_makers import base_weights, edit_config, edit_tensors, make_peft_adapter
from tests.model.tiny import make_model

# PEFT asks transformers by a name that transformers is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

Q = "base_model.model.model.layers.0.self_attn.q_proj"
Edit = Callable[[dict[str, Tensor]], None]


class Written:
    """A PEFT directory for a tiny model: q, v and down, rank 4."""

    def __init__(self, oracle: PreTrainedModel, original: Path, path: Path) -> None:
        self.path = path
        self.base = base_weights(original.parent / "base")

    def load(self) -> AdapterContent:
        return read_peft(self.path, self.base)

    def refusal(self) -> str:
        with pytest.raises(AdapterError) as refused:
            self.load()
        return str(refused.value)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    path = tmp_path_factory.mktemp("peft")
    oracle = make_model("llama", path / "base")
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])
    return oracle, make_peft_adapter(oracle, path / "adapter", config)


@pytest.fixture
def written(original: tuple[PreTrainedModel, Path], tmp_path: Path) -> Written:
    oracle, path = original
    return Written(oracle, path, shutil.copytree(path, tmp_path / "adapter"))


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
]


@pytest.mark.parametrize(("field", "value"), REFUSED_FIELDS, ids=lambda value: json.dumps(value))
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


@pytest.mark.parametrize(("field", "value"), NEUTRAL_FIELDS, ids=lambda value: json.dumps(value))
def test_a_field_that_changes_nothing_is_accepted(written: Written, field: str, value: object) -> None:
    edit_config(written.path, {field: value})
    written.load()


def rename(old: str, new: str) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[new] = tensors.pop(old)

    return edit


def replace(name: str, make: Callable[[Tensor], Tensor]) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name] = make(tensors[name]).contiguous()

    return edit


def remove(*names: str) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        for name in names:
            del tensors[name]

    return edit


def add(*names: str) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors.update({name: torch.ones(4, 64) for name in names})

    return edit


def poison(value: float) -> Callable[[Tensor], Tensor]:
    def make(tensor: Tensor) -> Tensor:
        poisoned = tensor.clone()
        poisoned[1, 2] = value
        return poisoned

    return make


REFUSED_TENSORS: dict[str, tuple[Edit, str]] = {
    "unknown module": (
        rename(f"{Q}.lora_A.weight", "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"),
        r"q_proj\.lora_B\.weight' has no matching lora_A\.weight",
    ),
    "unknown module as well": (
        add("base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"),
        r"layers\.7\.self_attn\.q_proj\.lora_A\.weight' adapts .* not a module of the base model",
    ),
    "module without the prefix of a causal model": (
        add("base_model.model.layers.0.self_attn.q_proj.lora_A.weight"),
        r"base_model\.model\.layers\.0\.self_attn\.q_proj\.lora_A\.weight' .* not a module of the base model",
    ),
    "name without any prefix": (
        add("model.layers.0.self_attn.q_proj.lora_A.weight"),
        r"'model\.layers\.0\.self_attn\.q_proj\.lora_A\.weight' is of no known kind",
    ),
    "output head": (add("base_model.model.lm_head.lora_A.weight"), r"lm_head\.lora_A\.weight' .* do not name"),
    "embeddings": (
        add("base_model.model.model.embed_tokens.lora_embedding_A"),
        r"embed_tokens\.lora_embedding_A' .* do not name",
    ),
    "embeddings as a linear module": (
        add("base_model.model.model.embed_tokens.lora_A.weight"),
        r"embed_tokens\.lora_A\.weight' .* do not name",
    ),
    "saved module": (
        add("base_model.model.model.norm.weight"),
        r"norm\.weight' replaces a whole module, which modules_to_save .* does not name",
    ),
    "linear module": (
        add("base_model.model.model.layers.0.mlp.up_proj.weight"),
        r"up_proj\.weight' replaces a whole module, which modules_to_save .* does not name",
    ),
    "magnitude of DoRA": (add(f"{Q}.lora_magnitude_vector"), r"lora_magnitude_vector' .* use_dora is not true"),
    "bias of B": (add(f"{Q}.lora_B.bias"), r"lora_B\.bias' .* lora_bias is not true"),
    "bias": (add(f"{Q}.base_layer.bias"), r"base_layer\.bias' is a bias, but bias is 'none'"),
    "rows of tokens": (
        add("base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"),
        r"trainable_tokens_delta' holds rows of tokens, but trainable_token_indices .* does not name",
    ),
    "name with an adapter's name in it": (
        rename(f"{Q}.lora_A.weight", f"{Q}.lora_A.default.weight"),
        r"lora_A\.default\.weight' is of no known kind.*without the adapter's name",
    ),
    "no B": (remove(f"{Q}.lora_B.weight"), r"q_proj\.lora_A\.weight' has no matching lora_B\.weight"),
    "no A": (remove(f"{Q}.lora_A.weight"), r"q_proj\.lora_B\.weight' has no matching lora_A\.weight"),
    "A for another width": (
        replace(f"{Q}.lora_A.weight", lambda a: a[:, :60]),
        r"q_proj\.lora_A\.weight' has shape \(4, 60\), wanted is \(4, 64\)",
    ),
    "B for another width": (
        replace(f"{Q}.lora_B.weight", lambda b: b[:60]),
        r"q_proj\.lora_B\.weight' has shape \(60, 4\), wanted is \(64, 4\)",
    ),
    "ranks of A and B that differ": (
        replace(f"{Q}.lora_B.weight", lambda b: b[:, :3]),
        r"q_proj\.lora_B\.weight' has shape \(64, 3\), wanted is \(64, 4\)",
    ),
    "vector": (replace(f"{Q}.lora_A.weight", lambda a: a[0]), r"q_proj\.lora_A\.weight' has shape \(64,\)"),
    "scalar": (replace(f"{Q}.lora_A.weight", lambda a: a[0, 0]), r"q_proj\.lora_A\.weight' has shape \(\)"),
    "no ranks": (replace(f"{Q}.lora_A.weight", lambda a: a[:0]), r"q_proj\.lora_A\.weight' has shape \(0, 64\)"),
    "too large": (
        replace(f"{Q}.lora_B.weight", lambda b: b * 1e38 * 10),
        r"q_proj\.lora_B\.weight' (is too large|contains)",
    ),
    "the same part twice": (
        add(f"{Q}.lora_magnitude_vector", f"{Q}.lora_magnitude_vector.weight"),
        r"lora_magnitude_vector' and '.*lora_magnitude_vector\.weight' are the same thing twice",
    ),
    "NaN": (replace(f"{Q}.lora_B.weight", poison(float("nan"))), r"q_proj\.lora_B\.weight' contains NaN or infinity"),
    "infinity": (replace(f"{Q}.lora_A.weight", poison(float("-inf"))), r"q_proj\.lora_A\.weight' contains NaN or inf"),
    "integers": (
        replace(f"{Q}.lora_A.weight", lambda a: a.to(torch.int8)),
        r"q_proj\.lora_A\.weight' is torch\.int8, it must be one of float32, bfloat16, float16",
    ),
    "module that no target names": (
        lambda tensors: tensors.update(
            {f"{Q.replace('q_proj', 'k_proj')}.lora_A.weight": torch.ones(4, 64)}
            | {f"{Q.replace('q_proj', 'k_proj')}.lora_B.weight": torch.ones(32, 4)}
        ),
        r"k_proj\.lora_A\.weight' is on a module that target_modules and target_parameters",
    ),
    "targeted module without tensors": (
        remove(f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"),
        r"target_modules .* names 'model\.layers\.0\.self_attn\.q_proj', but .* has no tensor for it",
    ),
    "nothing": (lambda tensors: tensors.clear(), r"holds no tensors"),
}


@pytest.mark.parametrize("name", REFUSED_TENSORS)
def test_a_tensor_that_cannot_be_used_is_named(written: Written, name: str) -> None:
    edit, message = REFUSED_TENSORS[name]
    edit_tensors(written.path, edit)
    assert re.search(message, written.refusal())


@pytest.mark.parametrize("changes", [{"r": 5}, {"rank_pattern": {"q_proj": 3}}], ids=str)
def test_a_rank_that_the_config_does_not_give_is_refused(written: Written, changes: dict[str, object]) -> None:
    edit_config(written.path, changes)
    message = r"lora_A\.weight' has shape \(4, \d+\), by adapter_config\.json dimension 0 should be the rank [53]"
    assert re.search(message, written.refusal())


def test_without_target_modules_the_tensors_decide(written: Written) -> None:
    edit_config(written.path, {"target_modules": None})
    edit_tensors(written.path, remove(f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"))
    deltas = read_peft(written.path, written.base).deltas
    assert "model.layers.0.self_attn.q_proj" not in deltas
    assert "model.layers.1.self_attn.q_proj" in deltas


def test_pickled_weights_are_refused_with_a_way_out(written: Written) -> None:
    (written.path / "adapter_model.safetensors").rename(written.path / "adapter_model.bin")
    assert re.search(r"adapter_model\.bin is a pickle.*convert it to adapter_model\.safetensors", written.refusal())


def test_a_directory_without_weights_is_refused(written: Written) -> None:
    (written.path / "adapter_model.safetensors").unlink()
    assert "has no adapter_model.safetensors" in written.refusal()


def test_a_directory_without_a_config_is_refused(written: Written) -> None:
    (written.path / "adapter_config.json").unlink()
    assert re.search(r"cannot read .*adapter_config\.json: No such file", written.refusal())


@pytest.mark.parametrize("text", ["{", "[]", "\xff"], ids=["cut off", "list", "other encoding"])
def test_a_config_that_is_not_a_json_object_is_refused(written: Written, text: str) -> None:
    (written.path / "adapter_config.json").write_bytes(text.encode("latin-1"))
    assert "adapter_config.json" in written.refusal()


def test_damaged_weights_are_refused(written: Written) -> None:
    path = written.path / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert re.search(r"cannot read .*adapter_model\.safetensors", written.refusal())


def test_a_shard_is_refused(written: Written) -> None:
    (written.path / "adapter_model.safetensors").rename(written.path / "adapter_model-00001-of-00002.safetensors")
    assert re.search(
        r"but adapter_model-00001-of-00002\.safetensors: PEFT writes and reads one file", written.refusal()
    )


def test_a_pointer_of_git_lfs_is_refused(written: Written) -> None:
    (written.path / "adapter_model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0")
    assert "git lfs pull" in written.refusal()


def test_a_directory_that_is_no_adapter_is_refused(written: Written) -> None:
    for file in written.path.iterdir():
        file.unlink()
    assert re.search(r"cannot read .*adapter_config\.json: No such file", written.refusal())


def test_the_adapter_does_not_change_when_its_file_does(written: Written) -> None:
    content = written.load()
    before = content.digest()
    path = written.path / "adapter_model.safetensors"
    with path.open("r+b") as file:
        file.seek(-4096, 2)
        file.write(bytes(4096))
    assert content.digest() == before


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
