"""One decoder against each family of transformers; a token's logits have the same bits whatever shares its steps."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from model.adapters.adapter import Adapter, LoraDelta
from model.backend import Backend, choose_backend, reference_backend
from model.checkpoint.weights import load_checkpoint
from model.decoder import Decoder
from model.lora import stack_adapters
from model.outputs import Wanted
from model.runner import step_tensors
from scheduler.batch import Row
from scheduler.cohort import AdapterId
from tests.model.decoding import assert_writes_its_own_slots, junk_cache, logits_of, whole
from tests.model.tiny import FAMILIES, VOCAB_SIZE, make_model

PROMPT_LENGTH = 45
"""Three blocks, the last one not full, and longer than the mistral model's window."""


def prompt(seed: int, length: int = PROMPT_LENGTH) -> list[int]:
    return torch.randint(0, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def backend_of(kind: Literal["reference", "cpu"], dtype: torch.dtype = torch.float32) -> Backend:
    return reference_backend(dtype) if kind == "reference" else choose_backend("cpu", str(dtype).removeprefix("torch."))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, bool], tuple[Path, PreTrainedModel]]:
    """Every family with its own head and with a tied one: the directory, and transformers' model."""
    made = {}
    for family in FAMILIES:
        for tied in (False, True):
            path = tmp_path_factory.mktemp(f"{family}-{tied}")
            made[family, tied] = (path, make_model(family, path, tied=tied))
    return made


Models = Mapping[tuple[str, bool], tuple[Path, PreTrainedModel]]


def decoder_of(models: Models, family: str, backend: Backend, *, tied: bool = False) -> Decoder:
    checkpoint = load_checkpoint(models[family, tied][0])
    return Decoder(checkpoint.config, checkpoint.tensors, backend)


def oracle(models: Models, family: str, tokens: Sequence[int], *, tied: bool = False) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = models[family, tied][1](torch.tensor([tokens])).logits[0]
    return logits


@pytest.mark.parametrize("kind", ["reference", "cpu"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(
    models: Models, family: str, tied: bool, kind: Literal["reference", "cpu"]
) -> None:
    decoder = decoder_of(models, family, backend_of(kind), tied=tied)
    prompts = [prompt(1), prompt(2, 20)]
    # One prompt in chunks that end within, at and after the borders of blocks, then token by token; the other whole.
    schedule = [[7, 0], [9, 20], [1, 0], [20, 0], *[[1, 0]] * 8]
    got = logits_of(decoder, prompts, schedule)
    for tokens, logits in zip(prompts, got, strict=True):
        torch.testing.assert_close(logits, oracle(models, family, tokens, tied=tied), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gemma3", {"query_pre_attn_scalar": 7, "final_logit_softcapping": 3.0}),
        ("gemma3", {"attention_bias": True, "layer_types": ["full_attention"] * 3}),
        ("gemma3", {"layer_types": ["sliding_attention"] * 3}),
        ("mixtral", {"sliding_window": 9, "num_experts_per_tok": 4}),
        ("mixtral", {"num_experts_per_tok": 1}),
        ("qwen3moe", {"norm_topk_prob": False, "mlp_only_layers": [0]}),
        ("qwen3moe", {"decoder_sparse_step": 2, "attention_bias": True}),
        ("qwen3moe", {"use_sliding_window": True, "sliding_window": 9}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    ],
)
def test_variants_of_a_family_have_the_logits_of_transformers(
    family: str, changes: Mapping[str, object], kind: Literal["reference", "cpu"], tmp_path: Path
) -> None:
    model = make_model(family, tmp_path, changes=changes)
    checkpoint = load_checkpoint(tmp_path)
    tokens = prompt(8)
    [got] = logits_of(Decoder(checkpoint.config, checkpoint.tensors, backend_of(kind)), [tokens], [[20], [1], [24]])
    with torch.inference_mode():
        wanted = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_has_the_same_bits_however_its_prompt_is_cut(models: Models, family: str, dtype: torch.dtype) -> None:
    decoder = decoder_of(models, family, backend_of("cpu", dtype))
    tokens = prompt(3)
    expected = whole(decoder, tokens)
    for cut in ([1] * PROMPT_LENGTH, [16, 16, 13], [44, 1], [3, 40, 2]):
        [got] = logits_of(decoder, [tokens], [[count] for count in cut], seed=len(cut))
        assert torch.equal(got, expected), cut


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_has_the_same_bits_whatever_its_neighbours(models: Models, family: str, dtype: torch.dtype) -> None:
    decoder = decoder_of(models, family, backend_of("cpu", dtype))
    lengths = [1 + (7 * i) % 40 for i in range(32)]
    prompts = [prompt(10 + i, length) for i, length in enumerate(lengths)]
    alone = [whole(decoder, tokens) for tokens in prompts]
    for size in (2, 3, 5, 32):
        # First a ragged prefill of all but each prompt's last token, then all the last tokens in one decode step.
        schedule = [[length - 1 for length in lengths[:size]], [1] * size]
        together = logits_of(decoder, prompts[:size], schedule)
        for i, got in enumerate(together):
            assert torch.equal(got, alone[i]), (size, i)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_bfloat16_stays_near_float32(models: Models, family: str) -> None:
    tokens = prompt(4)
    exact = whole(decoder_of(models, family, backend_of("cpu")), tokens)
    for kind in ("reference", "cpu"):
        got = whole(decoder_of(models, family, backend_of(kind, torch.bfloat16)), tokens)
        assert got.dtype == torch.float32
        assert (got - exact).abs().mean() < 0.02 * exact.abs().mean()


def test_returns_the_logits_of_the_asked_tokens_only(models: Models) -> None:
    decoder = decoder_of(models, "llama", backend_of("cpu"))
    tokens = prompt(5, 20)
    expected = whole(decoder, tokens)
    token_ids, step, _ = step_tensors((Row(0, tuple(tokens), 0, (0, 1), sampling=None),), torch.device("cpu"))
    for asked in ([19], [3, 7], []):
        wanted = Wanted(torch.tensor(asked, dtype=torch.int64))
        got = decoder.forward(token_ids, step, wanted, junk_cache(decoder, 2), None).logits
        assert got.shape == (len(asked), VOCAB_SIZE)
        assert torch.equal(got, expected[asked])


def test_writes_its_own_slots_and_no_others(models: Models) -> None:
    assert_writes_its_own_slots(decoder_of(models, "qwen3", backend_of("cpu")), prompt(6))


def random_adapter(decoder: Decoder, load_id: int, seed: int) -> Adapter:
    """Make an adapter on every module there is."""
    generator = torch.Generator().manual_seed(seed)
    deltas = {
        module: LoraDelta(
            a=torch.randn(3, in_features, generator=generator) * in_features**-0.5,
            b=torch.randn(out_features, 3, generator=generator) * 0.3,
            factor=2.0,
        )
        for module, (out_features, in_features) in decoder.module_shapes.items()
    }
    return Adapter(AdapterId(load_id, f"digest{load_id}"), "a", "a", "peft", deltas, 6.0, "", "")


@pytest.mark.parametrize("kind", ["reference", "cpu"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "mixtral", "qwen3moe"])
def test_an_adapter_list_acts_as_if_it_were_merged(
    models: Models, family: str, kind: Literal["reference", "cpu"]
) -> None:
    checkpoint = load_checkpoint(models[family, False][0])
    decoder = Decoder(checkpoint.config, checkpoint.tensors, backend_of(kind))
    scaled = [(random_adapter(decoder, 0, seed=1), 0.5), (random_adapter(decoder, 1, seed=2), -1.25)]
    merged = dict(checkpoint.tensors)
    for adapter, scale in scaled:
        for module, delta in adapter.deltas.items():
            merged[f"{module}.weight"] = merged[f"{module}.weight"] + scale * delta.factor * delta.b @ delta.a
    stack = stack_adapters(scaled, decoder.adaptable, decoder.backend)
    tokens = prompt(7)
    got = whole(decoder, tokens, lora=stack)
    torch.testing.assert_close(
        got, whole(Decoder(checkpoint.config, merged, decoder.backend), tokens), atol=3e-4, rtol=1e-4
    )
    assert (got - whole(decoder, tokens)).abs().mean() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma3", "mixtral", "qwen3moe"])
def test_adapted_tokens_too_have_the_same_bits_in_every_batch(models: Models, family: str, dtype: torch.dtype) -> None:
    decoder = decoder_of(models, family, backend_of("cpu", dtype))
    stack = stack_adapters([(random_adapter(decoder, 0, seed=1), 0.7)], decoder.adaptable, decoder.backend)
    prompts = [prompt(20 + i, 12) for i in range(7)]
    together = logits_of(decoder, prompts, [[5] * 7, *[[1] * 7] * 7], lora=stack)
    for tokens, got in zip(prompts, together, strict=True):
        assert torch.equal(got, whole(decoder, tokens, lora=stack))


@pytest.mark.parametrize("family", ["gemma3", "mixtral"])
def test_adapted_bfloat16_stays_near_float32(models: Models, family: str) -> None:
    tokens = prompt(9)
    logits = []
    for backend in (backend_of("cpu"), backend_of("cpu", torch.bfloat16), backend_of("reference", torch.bfloat16)):
        decoder = decoder_of(models, family, backend)
        stack = stack_adapters([(random_adapter(decoder, 0, seed=1), 0.7)], decoder.adaptable, backend)
        logits.append(whole(decoder, tokens, lora=stack))
    for got in logits[1:]:
        assert (got - logits[0]).abs().mean() < 0.05 * logits[0].abs().mean()


def test_experts_and_their_routers_are_projections_like_others(models: Models) -> None:
    decoder = decoder_of(models, "qwen3moe", reference_backend())
    names = [p.name for p in decoder.projections if p.name.startswith("layers.1.")]
    experts = [f"layers.1.experts.{e}.{part}" for e in range(6) for part in ("gate_up", "down")]
    assert names == ["layers.1.qkv", "layers.1.o", "layers.1.router", *experts]
    assert decoder.module_shapes["model.layers.1.mlp.gate"] == (6, 64)
    assert decoder.module_shapes["model.layers.1.mlp.experts.5.down_proj"] == (64, 32)
    assert {p.name for p in decoder.projections if p.in_head_dtype} == {"layers.0.router", "layers.1.router", "head"}


def test_names_the_modules_that_adapters_can_touch(models: Models) -> None:
    decoder = decoder_of(models, "qwen3", reference_backend())
    state = models["qwen3", False][1].state_dict()
    assert {module: tuple(state[f"{module}.weight"].shape) for module in decoder.module_shapes} == decoder.module_shapes
    assert [p.name for p in decoder.projections[:5]] == [
        "layers.0.qkv",
        "layers.0.o",
        "layers.0.gate_up",
        "layers.0.down",
        "layers.1.qkv",
    ]


class _Lent(Mapping[str, Tensor]):
    """Tensors read on access, that knows how many of them are still alive at the next access."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self.most_alive = 0

    def __getitem__(self, name: str) -> Tensor:
        self.most_alive = max(self.most_alive, len(self._alive))
        tensor = self._tensors[name].clone()
        self._alive.add(tensor)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@pytest.mark.parametrize("family", ["qwen2", "mixtral"])
@pytest.mark.parametrize("kind", ["reference", "cpu"])
def test_loading_keeps_no_tensor_of_the_file(models: Models, family: str, kind: Literal["reference", "cpu"]) -> None:
    checkpoint = load_checkpoint(models[family, False][0])
    lent = _Lent(checkpoint.tensors)
    Decoder(checkpoint.config, lent, backend_of(kind))
    assert lent.most_alive == 0
