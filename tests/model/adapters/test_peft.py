"""Files of PEFT directories that must be refused, and what the message names."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.model.adapter_makers import edit_config, edit_tensors
from tests.model.written_peft import Original, Written

# PEFT asks transformers by a name that transformers is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

Q = "base_model.model.model.layers.0.self_attn.q_proj"
Edit = Callable[[dict[str, Tensor]], None]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("peft"))


@pytest.fixture
def written(original: Original, tmp_path: Path) -> Written:
    return Written(original, tmp_path / "adapter")


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
    deltas = written.load().deltas
    assert "model.layers.0.self_attn.q_proj" not in deltas
    assert "model.layers.1.self_attn.q_proj" in deltas


def test_pickled_weights_are_refused_with_a_way_out(written: Written) -> None:
    (written.path / "adapter_model.safetensors").rename(written.path / "adapter_model.bin")
    assert re.search(r"adapter_model\.bin is a pickle.*convert it to adapter_model\.safetensors", written.refusal())


def test_a_directory_without_weights_is_refused(written: Written) -> None:
    (written.path / "adapter_model.safetensors").unlink()
    assert "has no adapter_model.safetensors" in written.refusal()


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
