"""llama.cpp's own converter: the GGUF file that it makes of a PEFT directory computes what the directory computes.

Run by `make test-converter`, which fetches the converter and says in COHORT_LORA_CONVERTER where it is. The error is
measured against the adapter's own effect on the logits, so that one that is left out or misplaced shows.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from torch import Tensor
from transformers import PreTrainedModel

from model.adapters.adapter import Adapter, BaseWeights
from model.adapters.files import load_adapter
from model.backend import reference_backend
from model.checkpoint.config import ModelConfig
from model.checkpoint.weights import load_checkpoint
from model.decoder import Decoder
from model.lora import stack_adapters
from tests.model.adapter_makers import ALL_LINEAR, ATTENTION, edit_config, edit_tensors, make_peft_adapter
from tests.model.decoding import whole
from tests.model.tiny import FAMILIES, make_model

pytestmark = [
    pytest.mark.converter,
    # PEFT asks transformers by a name that transformers is giving up.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    # What PEFT thinks of tied embeddings and of the forward of activated adapters.
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
]

PROMPT = tuple(range(10, 50))
RANK = 32
"""What Q8_0 needs of B: its blocks hold 32 values of a row. (For other ranks the converter falls back to F16.)"""
TOLERANCES = {"f32": 1e-5, "f16": 3e-3, "bf16": 2e-2, "q8_0": 3e-2}
"""Of the adapter's largest effect on a logit. (Of the converter's types only `auto` is missing, see REFUSED.)"""


@dataclass(frozen=True, slots=True)
class Model:
    """A tiny model of one family and what the converter needs of it."""

    folder: Path
    oracle: PreTrainedModel
    decoder: Decoder
    weights: BaseWeights

    def load(self, path: Path) -> Adapter:
        return load_adapter(path, 0, "name", self.weights)

    def effect(self, adapter: Adapter) -> Tensor:
        stack = stack_adapters([(adapter, 1.0)], self.decoder.adaptable, self.decoder.backend)
        return whole(self.decoder, PROMPT, lora=stack) - whole(self.decoder, PROMPT)


def open_model(family: str, folder: Path, *, tied: bool = False) -> Model:
    oracle = make_model(family, folder, tied=tied)
    checkpoint = load_checkpoint(folder)
    decoder = Decoder(checkpoint.config, checkpoint.tensors, reference_backend())
    return Model(folder, oracle, decoder, BaseWeights(checkpoint.config, decoder.module_shapes, checkpoint.tensors))


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_model("llama", tmp_path_factory.mktemp("llama"))


def run_converter(base: Path, directory: Path, out: Path, file_type: str) -> subprocess.CompletedProcess[str]:
    script = os.environ["COHORT_LORA_CONVERTER"]
    command = [sys.executable, script, "--base", str(base), "--outtype", file_type, "--outfile", str(out)]
    return subprocess.run([*command, str(directory)], capture_output=True, text=True, check=False)


def convert(base: Path, directory: Path, file_type: str = "f32") -> Path:
    out = directory.with_suffix(f".{file_type}.gguf")
    result = run_converter(base, directory, out, file_type)
    assert result.returncode == 0, result.stderr
    return out


def assert_same_effect(model: Model, directory: Path, file_type: str = "f32") -> None:
    converted = model.load(convert(model.folder, directory, file_type))
    original = model.load(directory)
    assert converted.deltas.keys() == original.deltas.keys()
    assert converted.norms.keys() == original.norms.keys()
    wanted = model.effect(original)
    assert wanted.abs().max() > 0.01
    assert (model.effect(converted) - wanted).abs().max() <= TOLERANCES[file_type] * wanted.abs().max()


def lora(**fields: object) -> LoraConfig:
    return LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": list(ATTENTION), **fields})


@pytest.mark.parametrize("file_type", TOLERANCES)
def test_every_type_keeps_the_adapter_to_its_precision(llama: Model, tmp_path: Path, file_type: str) -> None:
    config = lora(r=RANK, target_modules=list(ALL_LINEAR))
    assert_same_effect(llama, make_peft_adapter(llama.oracle, tmp_path / "a", config), file_type)


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": list(ATTENTION)},
        {"target_modules": ["gate_proj", "up_proj", "down_proj"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"target_modules": ["lm_head", "k_proj"]},
        {"rank_pattern": {"q_proj": 2}},
    ],
    ids=str,
)
def test_linear_modules_embedding_and_head(model: Model, tmp_path: Path, fields: Mapping[str, object]) -> None:
    if model.weights.config.experts is not None and "gate_proj" in str(fields):
        pytest.skip("the MLP of this family is its experts")
    assert_same_effect(model, make_peft_adapter(model.oracle, tmp_path / "a", lora(**fields)))


def test_the_embedding_of_a_tied_model(tmp_path: Path) -> None:
    model = open_model("llama", tmp_path / "base", tied=True)
    config = lora(target_modules=["embed_tokens", "q_proj"])
    assert_same_effect(model, make_peft_adapter(model.oracle, tmp_path / "a", config))


def test_the_head_of_a_tied_model_is_one_of_its_own(tmp_path: Path) -> None:
    """llama-server refuses the file that the converter makes of it: its tied models have no `output.weight`."""
    model = open_model("llama", tmp_path / "base", tied=True)
    assert_same_effect(model, make_peft_adapter(model.oracle, tmp_path / "a", lora(target_modules=["lm_head"])))


def test_norms(model: Model, tmp_path: Path) -> None:
    norms = [name for name, _ in model.oracle.named_modules() if name.endswith("_layernorm") or name == "model.norm"]
    directory = make_peft_adapter(model.oracle, tmp_path / "a", lora(modules_to_save=norms))

    def train(tensors: dict[str, Tensor]) -> None:
        generator = torch.Generator().manual_seed(3)
        for name, values in tensors.items():
            if "norm" in name:
                values.add_(torch.randn(values.shape, generator=generator), alpha=0.2)

    edit_tensors(directory, train)
    assert len(model.load(directory).norms) == len(norms)
    assert_same_effect(model, directory)


def test_invocation_tokens(llama: Model, tmp_path: Path) -> None:
    directory = make_peft_adapter(llama.oracle, tmp_path / "a", lora(alora_invocation_tokens=[5, 6, 7]))
    assert llama.load(convert(llama.folder, directory)).invocation_tokens == (5, 6, 7)
    assert_same_effect(llama, directory)


@dataclass(frozen=True, slots=True)
class MixtureNames:
    """What a family calls the modules of its experts."""

    router: str
    expert: str
    gate: str
    down: str
    up: str


MIXTURES = {
    "mixtral": MixtureNames("block_sparse_moe.gate", "block_sparse_moe.experts.{}.{}", "w1", "w2", "w3"),
    "qwen3moe": MixtureNames("mlp.gate", "mlp.experts.{}.{}", "gate_proj", "down_proj", "up_proj"),
}


def expert_tensors(names: MixtureNames, config: ModelConfig) -> dict[str, Tensor]:
    """Return random A and B of every expert and router, by PEFT's names."""
    assert config.experts is not None
    D, F = config.hidden_size, config.experts.intermediate_size
    generator = torch.Generator().manual_seed(4)
    tensors: dict[str, Tensor] = {}

    def add(layer: int, module: str, in_features: int, out_features: int) -> None:
        name = f"base_model.model.model.layers.{layer}.{module}"
        tensors[f"{name}.lora_A.weight"] = torch.randn(4, in_features, generator=generator) * 0.2
        tensors[f"{name}.lora_B.weight"] = torch.randn(out_features, 4, generator=generator) * 0.2

    for layer in range(config.num_layers):
        add(layer, names.router, D, config.experts.count)
        for expert in range(config.experts.count):
            for projection, in_features, out_features in ((names.gate, D, F), (names.up, D, F), (names.down, F, D)):
                add(layer, names.expert.format(expert, projection), in_features, out_features)
    return tensors


@pytest.mark.parametrize("family", MIXTURES)
def test_experts_and_router(family: str, tmp_path: Path) -> None:
    """The converter takes an adapter of every expert, as PEFT wrote them before transformers stacked the experts."""
    model = open_model(family, tmp_path / "base")
    directory = make_peft_adapter(model.oracle, tmp_path / "a", lora())
    added = expert_tensors(MIXTURES[family], model.weights.config)
    edit_tensors(directory, lambda tensors: tensors.update(added))
    modules = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in added}
    edit_config(directory, {"target_modules": sorted({*ATTENTION, *modules})})
    assert_same_effect(model, directory)


def test_the_scaling_of_rslora_is_lost(llama: Model, tmp_path: Path) -> None:
    """The converter ignores `use_rslora` and `alpha_pattern`; docs/adapters.md warns of it."""
    directory = make_peft_adapter(llama.oracle, tmp_path / "a", lora(use_rslora=True))
    converted = llama.load(convert(llama.folder, directory))
    assert {delta.factor for delta in llama.load(directory).deltas.values()} == {3.0}
    assert {delta.factor for delta in converted.deltas.values()} == {1.5}


REFUSED: dict[str, tuple[dict[str, object], str, str]] = {
    "DoRA": ({"use_dora": True}, "f32", "lora_magnitude_vector"),
    "bias": ({"lora_bias": True}, "f32", "lora_B.bias"),
    "saved embedding": ({"modules_to_save": ["embed_tokens"]}, "f32", "Embeddings is present in the adapter"),
    "the type auto": (
        {},
        "auto",
        "object has no attribute 'dim'",
    ),  # it guesses by the first tensor's, and trips over it
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_converter_refuses(llama: Model, tmp_path: Path, name: str) -> None:
    """The PEFT directory is the only form that such an adapter has; docs/adapters.md says so."""
    fields, file_type, message = REFUSED[name]
    directory = make_peft_adapter(llama.oracle, tmp_path / "a", lora(**fields))
    result = run_converter(llama.folder, directory, tmp_path / "a.gguf", file_type)
    assert result.returncode != 0
    assert message in result.stderr
