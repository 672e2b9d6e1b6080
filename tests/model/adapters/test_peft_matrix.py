"""Every feature of PEFT's LoRA × {alone, mixed with another adapter} × every family it applies to, against PEFT itself.

The oracle is PEFT's own forward: `PeftModel.from_pretrained` on a fresh base model, `load_adapter`, `set_scale`. PEFT
cannot scale what replaces the base model's own weights (biases, saved modules, rows of tokens): for the mix these are
put between the base model's and the trained ones by hand, in PEFT's modules. The feature's adapter is the first that
PEFT applies, because PEFT's DoRA depends on what was applied before it; here no order matters.
"""

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftConfig, PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from model.adapters.adapter import Adapter
from model.adapters.files import load_adapter
from model.adapters.tensors import AdapterError
from model.backend import choose_backend
from model.checkpoint.weights import load_checkpoint
from model.decoder import Decoder
from model.kv_cache import KVCache
from model.lora import stack_adapters
from model.outputs import Wanted
from model.runner import step_tensors
from scheduler.batch import Row
from tests.model.adapter_makers import (
    ATTENTION,
    attach,
    base_weights,
    edit_config,
    edit_tensors,
    make_peft_adapter,
    set_scales,
)
from tests.model.peft_features import HONOURED, NUM_ADDED, Feature
from tests.model.peft_refusals import REFUSED, Refusal
from tests.model.tiny import VOCAB_SIZE, make_model

pytestmark = [
    # PEFT asks transformers by a name that transformers is giving up, and says much about tied and resized models.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:peft"),
]

PROMPT = tuple(range(10, 40))
ADDED = tuple(VOCAB_SIZE + i for i in range(NUM_ADDED))


class Base:
    """A tiny model of one family, and transformers' model as PEFT's base."""

    def __init__(self, family: str, is_tied: bool, path: Path) -> None:
        self.oracle: PreTrainedModel = make_model(family, path, tied=is_tied)
        self.oracle.name_or_path = str(path)  # where PEFT looks whether the vocabulary was resized
        checkpoint = load_checkpoint(path)
        self.decoder = Decoder(checkpoint.config, checkpoint.tensors, choose_backend("cpu", "float32"))
        self.weights = base_weights(path)
        plain = LoraConfig(r=7, lora_alpha=9, target_modules=["q_proj", "v_proj"])
        self.other = make_peft_adapter(self.oracle, path / "other", plain, seed=2)

    def resized(self) -> PreTrainedModel:
        """Return PEFT's base model with rows of zeros for added tokens, as users make it before they load."""
        model = copy.deepcopy(self.oracle)
        model.resize_token_embeddings(VOCAB_SIZE + NUM_ADDED, mean_resizing=False)
        with torch.no_grad():
            model.get_input_embeddings().weight[VOCAB_SIZE:] = 0
            model.get_output_embeddings().weight[VOCAB_SIZE:] = 0
        return model

    def load(self, path: Path, load_id: int = 0) -> Adapter:
        return load_adapter(path, load_id, "name", self.weights)

    def logits(self, tokens: tuple[int, ...], *scaled: tuple[Adapter, float]) -> Tensor:
        row = Row(request_id=0, token_ids=tokens, start=0, block_table=(2, 0, 1), sampling=None)
        token_ids, step, _ = step_tensors((row,), torch.device("cpu"))
        kv = KVCache(self.decoder.config, 3, self.decoder.backend)
        stack = stack_adapters(scaled, self.decoder.adaptable, self.decoder.backend)
        return self.decoder.forward(token_ids, step, Wanted(torch.arange(len(tokens))), kv, stack).logits


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Base]:
    return {}


def base_of(
    bases: dict[tuple[str, bool], Base], tmp_path_factory: pytest.TempPathFactory, family: str, is_tied: bool
) -> Base:
    if (family, is_tied) not in bases:
        bases[family, is_tied] = Base(family, is_tied, tmp_path_factory.mktemp(family))
    return bases[family, is_tied]


def write(feature: Feature | Refusal, base: PreTrainedModel, directory: Path, dtype: torch.dtype) -> Path:
    fields = {"r": 4, "lora_alpha": 6, "target_modules": list(ATTENTION), **feature.fields}
    make_peft_adapter(base, directory, LoraConfig(**fields), dtype=dtype)
    edit_config(directory, feature.edits)
    return directory


def write_feature(feature: Feature, base: PreTrainedModel, directory: Path) -> Path:
    if feature.write is None:
        return write(feature, base, directory, feature.dtype)
    feature.write(base, directory)
    return directory


def peft_logits(
    base: PreTrainedModel, tokens: tuple[int, ...], own: Path, other: Path, scales: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Compute what PEFT computes with `own` alone, and with both at their scales; `own` may replace weights."""
    originals = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    paths = {"own": own, "other": other}
    if PeftConfig.from_pretrained(own).trainable_token_indices is not None:
        paths = {"other": other, "own": own}  # PEFT cannot load another adapter after one that has rows of tokens
    model, logits = attach(base, paths), []
    with torch.no_grad():
        model.base_model.set_adapter(["own"])
        logits.append(model(torch.tensor([tokens])).logits[0])
        model.base_model.set_adapter(["own", "other"])
        set_scales(model, {"own": scales[0], "other": scales[1]})
        scale_replaced(model, originals, scales[0])
        logits.append(model(torch.tensor([tokens])).logits[0])
    return logits[0], logits[1]


def scale_replaced(model: PeftModel, originals: Mapping[str, Tensor], scale: float) -> None:
    """Put what replaces weights of the base model between those and the trained ones."""
    for full_name, parameter in model.named_parameters():
        name = full_name.removeprefix("base_model.model.")
        if name.endswith(".trainable_tokens_delta.own"):
            rows = model.get_submodule(full_name.removesuffix(".trainable_tokens_delta.own"))
            path = name.removesuffix(".token_adapter.trainable_tokens_delta.own")
            original = originals[f"{path}.weight"][rows.token_indices["own"]]
        else:
            for infix in (".modules_to_save.own", ".original_module", ".token_adapter", ".base_layer"):
                name = name.replace(infix, "")
            if name not in originals:
                continue
            original = originals[name]
        parameter.copy_(original + scale * (parameter - original))


def assert_close(got: Tensor, wanted: Tensor) -> None:
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() <= 1e-4 * wanted.abs().max()


CASES = [
    pytest.param(feature, family, id=f"{feature.name}: {feature.what}-{family}")
    for feature in HONOURED
    for family in feature.families
]


@pytest.mark.parametrize(("feature", "family"), CASES)
def test_an_honoured_feature_computes_what_peft_computes(
    bases: dict[tuple[str, bool], Base],
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    feature: Feature,
    family: str,
) -> None:
    base = base_of(bases, tmp_path_factory, family, feature.is_tied)
    fresh = base.resized() if feature.is_resized else base.oracle
    tokens = (*PROMPT[:20], *ADDED, *PROMPT[20:]) if feature.is_resized else PROMPT
    own = write_feature(feature, fresh, tmp_path / "own")
    adapter, plain = base.load(own, 0), base.load(base.other, 1)
    alone, mixed = peft_logits(fresh, tokens, own, base.other, (0.5, -0.3))
    assert_close(base.logits(tokens, (adapter, 1.0)), alone)
    assert_close(base.logits(tokens, (adapter, 0.5), (plain, -0.3)), mixed)
    assert_close(base.logits(tokens, (plain, -0.3), (adapter, 0.5)), mixed)
    assert (alone - mixed).abs().max() > 1e-2 * alone.abs().max()


@pytest.mark.parametrize("refusal", REFUSED, ids=lambda refusal: f"{refusal.name}: {refusal.what}")
def test_a_refused_feature_is_refused_with_its_message(
    bases: dict[tuple[str, bool], Base], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, refusal: Refusal
) -> None:
    base = base_of(bases, tmp_path_factory, refusal.family, False)
    write(refusal, base.resized() if refusal.is_resized else base.oracle, tmp_path / "own", torch.float32)
    if refusal.edit_tensors is not None:
        edit_tensors(tmp_path / "own", refusal.edit_tensors)
    with pytest.raises(AdapterError) as refused:
        base.load(tmp_path / "own")
    assert refusal.message in str(refused.value)
