"""Embedding, head and rows of tokens: what is kept, and files that contradict themselves."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from torch import Tensor
from transformers import PreTrainedModel

from model.adapters.adapter import BaseWeights
from model.adapters.content import AdapterContent
from model.adapters.peft import read_peft
from model.adapters.tensors import AdapterError
from tests.model.adapter_makers import base_weights, edit_config, edit_tensors, make_peft_adapter
from tests.model.tiny import VOCAB_SIZE, make_model

pytestmark = [
    # PEFT asks transformers by a name that transformers is giving up, and says much about tied models.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
]

EMBEDDING, HEAD = "base_model.model.model.embed_tokens", "base_model.model.lm_head"


class Model:
    """A tiny model, and adapters for it."""

    def __init__(self, path: Path, *, is_tied: bool) -> None:
        self.oracle: PreTrainedModel = make_model("llama", path, tied=is_tied)
        self.weights: BaseWeights = base_weights(path)

    def write(self, directory: Path, **fields: object) -> Path:
        config = LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": ["q_proj"], **fields})
        return make_peft_adapter(self.oracle, directory, config)

    def refusal(self, directory: Path) -> str:
        with pytest.raises(AdapterError) as refused:
            read_peft(directory, self.weights)
        return str(refused.value)

    def read(self, directory: Path) -> AdapterContent:
        return read_peft(directory, self.weights)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("tied"), is_tied=True)


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("untied"), is_tied=False)


class Unread(Mapping[str, Tensor]):
    """The base model's tensors, which nobody may read."""

    def __init__(self, own: Mapping[str, Tensor]) -> None:
        self._own = own

    def __getitem__(self, name: str) -> Tensor:
        raise AssertionError(f"{name} was read")

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


@pytest.mark.parametrize("target", ["q_proj", "lm_head"])
def test_a_plain_adapter_reads_nothing_of_the_base_model(untied: Model, tmp_path: Path, target: str) -> None:
    path = untied.write(tmp_path / "a", target_modules=[target])
    edit_tensors(path, lambda tensors: tensors.pop(f"{HEAD}.base_layer.weight", None))
    base = BaseWeights(untied.weights.config, untied.weights.module_shapes, Unread(untied.weights.tensors))
    assert len(read_peft(path, base).deltas) == (1 if target == "lm_head" else 2)


def test_the_base_models_own_matrices_are_not_kept(untied: Model, tmp_path: Path) -> None:
    content = untied.read(untied.write(tmp_path / "a", target_modules=["embed_tokens", "lm_head"]))
    assert content.embedding is not None
    assert content.embedding.a.shape == (VOCAB_SIZE, 4)
    assert content.deltas.keys() == {"lm_head"}
    assert (content.embedding_rows, content.head_rows) == (None, None)


def test_only_trained_rows_of_a_saved_matrix_are_kept(untied: Model, tmp_path: Path) -> None:
    path = untied.write(tmp_path / "a", modules_to_save=["embed_tokens"])
    own = untied.weights.tensors["model.embed_tokens.weight"].clone()
    own[[3, 200]] += 1
    edit_tensors(path, lambda tensors: tensors.update({f"{EMBEDDING}.weight": own}))
    rows = untied.read(path).embedding_rows
    assert rows is not None
    assert rows.ids.tolist() == [3, 200]
    torch.testing.assert_close(rows.rows, torch.ones(2, 64))


def test_what_loading_writes_to_a_tied_matrix_changes_both(tied: Model, tmp_path: Path) -> None:
    path = tied.write(tmp_path / "a", target_modules=["embed_tokens", "q_proj"])
    edit_tensors(path, lambda tensors: tensors[f"{EMBEDDING}.base_layer.weight"][7].add_(1))
    content = tied.read(path)
    assert content.embedding_rows is not None
    assert content.head_rows is not None
    assert content.embedding_rows.ids.tolist() == content.head_rows.ids.tolist() == [7]


def scale(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: tensors[name] * 2})


def copy(name: str, source: str, factor: float) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: tensors[source] * factor})


CONTRADICTIONS: dict[str, tuple[dict[str, object], Callable[[dict[str, Tensor]], object], str]] = {
    "two matrices of a tied model": (
        {"target_modules": ["embed_tokens", "lm_head"]},
        scale(f"{HEAD}.base_layer.weight"),
        r"embed_tokens\.base_layer\.weight' and '.*lm_head\.base_layer\.weight' differ",
    ),
    "saved matrices that should be one": (
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        scale(f"{HEAD}.weight"),
        r"embed_tokens\.weight' and '.*lm_head\.weight' differ",
    ),
    "deltas that should be one": (
        {"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
        scale(f"{HEAD}.lora_B.weight"),
        r"ensure_weight_tying is true .*lm_head\.lora_A\.weight' and '.*lm_head\.lora_B\.weight' are not",
    ),
    "a matrix saved twice": (
        {"modules_to_save": ["embed_tokens"]},
        copy(f"{EMBEDDING}.modules_to_save.weight", f"{EMBEDDING}.weight", 2),
        r"embed_tokens\.weight' and '.*modules_to_save\.weight' differ",
    ),
    "rows of a tied model": (
        {"trainable_token_indices": [3, 5]},
        copy(f"{HEAD}.token_adapter.trainable_tokens_delta", f"{EMBEDDING}.token_adapter.trainable_tokens_delta", 2),
        r"embed_tokens\.token_adapter\..*' and '.*lm_head\.token_adapter\..*' differ",
    ),
    "no matrix": (
        {"modules_to_save": ["embed_tokens"]},
        lambda tensors: tensors.pop(f"{EMBEDDING}.weight"),
        r"modules_to_save .* names 'model\.embed_tokens', but .* has no tensor",
    ),
    "no rows": (
        {"trainable_token_indices": [3, 5]},
        lambda tensors: tensors.pop(f"{EMBEDDING}.token_adapter.trainable_tokens_delta"),
        r"trainable_token_indices .* names 'model\.embed_tokens', but .* has no tensor",
    ),
    "too few rows": (
        {"trainable_token_indices": [3, 5]},
        lambda tensors: tensors.update({f"{EMBEDDING}.token_adapter.trainable_tokens_delta": torch.ones(1, 64)}),
        r"trainable_tokens_delta' has shape \(1, 64\), wanted is \(2, 64\)",
    ),
    "rows of another width": (
        {"modules_to_save": ["embed_tokens"]},
        lambda tensors: tensors.update({f"{EMBEDDING}.weight": torch.ones(VOCAB_SIZE, 32)}),
        r"embed_tokens\.weight' has shape \(265, 32\), wanted is \(265 or more, 64\)",
    ),
    "a delta of another vocabulary": (
        {"target_modules": ["embed_tokens"]},
        lambda tensors: tensors.update({f"{EMBEDDING}.lora_embedding_A": torch.ones(4, VOCAB_SIZE + 1)}),
        r"lora_embedding_A' has shape \(4, 266\), wanted is \(4, 265\)",
    ),
    "a norm of another size": (
        {"modules_to_save": ["model.norm"]},
        lambda tensors: tensors.update({"base_model.model.model.norm.weight": torch.ones(32)}),
        r"norm\.weight' has shape \(32,\), wanted is \(64,\)",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_file_that_contradicts_itself_is_refused(tied: Model, tmp_path: Path, name: str) -> None:
    fields, edit, message = CONTRADICTIONS[name]
    path = tied.write(tmp_path / "a", **fields)
    edit_tensors(path, edit)
    assert re.search(message, tied.refusal(path))


def test_added_tokens_must_follow_on_the_base_models(tied: Model, tmp_path: Path) -> None:
    path = tied.write(tmp_path / "a", trainable_token_indices=[3, 5])
    for ids, missing in (([3, VOCAB_SIZE + 1], VOCAB_SIZE), ([3, 2**30], VOCAB_SIZE)):
        edit_config(path, {"trainable_token_indices": ids})
        assert re.search(rf"adds tokens up to {ids[1]} .* has no row of token {missing}", tied.refusal(path))
    edit_config(path, {"trainable_token_indices": [3, VOCAB_SIZE]})
    rows = tied.read(path).head_rows
    assert rows is not None
    assert rows.ids.tolist() == [3, VOCAB_SIZE]


def test_without_target_modules_the_tensors_say_what_is_adapted(untied: Model, tmp_path: Path) -> None:
    path = untied.write(tmp_path / "a", target_modules=["embed_tokens", "lm_head", "v_proj"])
    edit_config(path, {"target_modules": None})
    content = untied.read(path)
    assert content.embedding is not None
    assert content.deltas.keys() == {"lm_head", *(f"model.layers.{i}.self_attn.v_proj" for i in (0, 1))}
