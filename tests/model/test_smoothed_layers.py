"""Smoothed decoders compute what the others do, and their ranges are those of the whole decoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.backend import BackendError, choose_backend
from model.calibration import CalibrationRun, Ranges
from model.config import ModelConfig
from model.decoder import Decoder
from model.decoder_weights import WeightLoader, layer_projections
from model.weights import load_checkpoint
from tests.model.decoding import logits_of, whole
from tests.model.int8 import needs_int8
from tests.model.tiny import VOCAB_SIZE, make_model

DENSE = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
OUTLIERS = 30.0


@dataclass(frozen=True)
class Tiny:
    """A tiny model of a family, some of whose channels are far louder than others, as those of real ones are."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tiny]:
    tiny = {}
    for family in DENSE:
        path = tmp_path_factory.mktemp(family)
        make_model(family, path)
        checkpoint = load_checkpoint(path)
        tensors = {name: tensor.clone() for name, tensor in checkpoint.tensors.items()}
        for name, tensor in tensors.items():
            if "layers" in name and name.endswith(("layernorm.weight", "v_proj.weight", "up_proj.weight")):
                tensor[3] *= OUTLIERS
            if name.endswith(("q_proj.weight", "k_proj.weight", "gate_proj.weight")):
                tensor[:, 3] /= OUTLIERS
        tiny[family] = Tiny(checkpoint.config, tensors)
    return tiny


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (40, 17, 1, 33)]


def decoder_of(tiny: Tiny, dtype: str, *, smoothed: bool) -> Decoder:
    return Decoder(tiny.config, tiny.tensors, choose_backend("cpu", dtype), prompts() if smoothed else ())


@pytest.mark.parametrize("family", DENSE)
def test_ranges_of_a_text_are_those_that_the_decoder_has(models: Mapping[str, Tiny], family: str) -> None:
    tiny = models[family]
    decoder, seen = decoder_of(tiny, "float32", smoothed=False), Ranges()
    for prompt in prompts():
        whole(decoder, prompt, lora=seen)
    loader = WeightLoader(tiny.config, tiny.tensors, decoder.backend)
    run = CalibrationRun(tiny.config, decoder.backend, loader.embedding(), prompts())
    for i in range(tiny.config.num_layers):
        ranges = run.advance(loader.layer(i))
        assert set(ranges) == {projection.name for projection in layer_projections(tiny.config, i)}
        for name, got in ranges.items():
            torch.testing.assert_close(got, seen.by_projection[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", DENSE)
def test_smoothing_changes_no_logit_where_nothing_is_rounded(models: Mapping[str, Tiny], family: str) -> None:
    plain, smoothed = (decoder_of(models[family], "float32", smoothed=smoothed) for smoothed in (False, True))
    for factors in smoothed.adaptable.smoothing.inputs.values():
        assert factors.max() > 1.5 * factors.min()
    for prompt in prompts():
        want = whole(plain, prompt)
        torch.testing.assert_close(whole(smoothed, prompt), want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


def error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


@needs_int8
@pytest.mark.parametrize("family", DENSE)
def test_int8_is_near_float32_and_nearer_smoothed(models: Mapping[str, Tiny], family: str) -> None:
    tiny, text = models[family], list(range(3, 60))
    want = whole(decoder_of(tiny, "float32", smoothed=False), text)
    rough, smoothed = (error(whole(decoder_of(tiny, "int8", smoothed=each), text), want) for each in (False, True))
    assert smoothed < 0.15
    assert smoothed < rough


@needs_int8
@pytest.mark.parametrize("family", DENSE)
def test_in_int8_a_token_has_the_same_bits_alone_in_a_batch_and_in_chunks(
    models: Mapping[str, Tiny], family: str
) -> None:
    decoder = decoder_of(models[family], "int8", smoothed=True)
    texts = [text for text in prompts() if len(text) > 1] * 20
    schedule = [[len(text) - 1 for text in texts], [1] * len(texts)]
    for text, got in zip(texts[:3], logits_of(decoder, texts, schedule), strict=False):
        assert torch.equal(got, whole(decoder, text))
    [in_chunks] = logits_of(decoder, [texts[0]], [[1], [9], [1], [29]])
    assert torch.equal(in_chunks, whole(decoder, texts[0]))


@needs_int8
@pytest.mark.parametrize("family", ["mixtral", "qwen3moe"])
def test_int8_refuses_experts(family: str, tmp_path: Path) -> None:
    make_model(family, tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    with pytest.raises(BackendError, match=r"mixtures of experts \(.*\), choose auto or bfloat16"):
        Decoder(checkpoint.config, checkpoint.tensors, choose_backend("cpu", "int8"), prompts())


@needs_int8
def test_layers_are_read_once(models: Mapping[str, Tiny]) -> None:
    class Counted(dict[str, Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            reads.append(name)
            return super().__getitem__(name)

    reads: list[str] = []
    tiny = models["llama"]
    Decoder(tiny.config, Counted(tiny.tensors), choose_backend("cpu", "int8"), prompts())
    in_layers = [name for name in reads if ".layers." in name]
    assert len(in_layers) == len(set(in_layers))
