"""Random lists of random adapters, with every kind of part, against a model whose weights are changed in float64.

And what holds to the last bit: a token alone and in a batch, and the base model where no adapter has a scale.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from model.adapters.adapter import Adapter
from model.backend import choose_backend, reference_backend
from model.checkpoint.weights import load_checkpoint
from model.decoder import Decoder
from model.lora import LoraStack, stack_adapters
from model.lora_cache import LoraCache
from scheduler.cohort import cohort_key
from tests.model.changed_weights import PARTS, Plan, changed_model, make_adapter, tokens_without_head
from tests.model.decoding import logits_of, whole
from tests.model.two_families import two_families


class Base:
    """A tiny model: transformers', and the decoder on each backend."""

    def __init__(self, model: PreTrainedModel, path: Path) -> None:
        self.oracle = model
        model.save_pretrained(path)
        checkpoint = load_checkpoint(path)
        backends = {
            "reference": reference_backend(),
            "float32": choose_backend("cpu", "float32"),
            "bfloat16": choose_backend("cpu", "bfloat16"),
        }
        self.decoders = {
            name: Decoder(checkpoint.config, checkpoint.tensors, backend) for name, backend in backends.items()
        }

    def stack(self, scaled: Sequence[tuple[Adapter, float]], backend: str) -> LoraStack:
        decoder = self.decoders[backend]
        return stack_adapters(scaled, decoder.adaptable, decoder.backend)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Base]:
    models = two_families(40, 24, 40, 16)
    return {name: Base(model, tmp_path_factory.mktemp(name)) for name, model in models.items()}


plans = st.builds(
    Plan,
    seed=st.integers(0, 2**31),
    parts=st.frozensets(st.sampled_from(PARTS), min_size=1),
    rank=st.integers(1, 5),
    factor=st.sampled_from([0.5, 1.0, 1.7]),
)
scales = st.floats(-1.5, 1.5).filter(lambda scale: abs(scale) > 0.01)
lists = st.lists(st.tuples(plans, scales), min_size=1, max_size=3)
EXACT = ("float32", "bfloat16")
families = st.sampled_from(["qwen3", "llama"])


def adapters_of(base: Base, planned: Sequence[tuple[Plan, float]]) -> list[tuple[Adapter, float]]:
    return [(make_adapter(base.oracle, i, plan), scale) for i, (plan, scale) in enumerate(planned)]


def prompt(seed: int, length: int, vocab_size: int) -> list[int]:
    return torch.randint(0, vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_near(got: Tensor, want: Tensor, tolerance: float = 1e-4) -> None:
    assert got.shape == want.shape
    assert torch.equal(got == -torch.inf, want == -torch.inf)
    finite = want > -torch.inf
    size = 1 + float(want[finite].abs().max())
    assert float((got[finite].double() - want[finite].double()).abs().max()) <= tolerance * size


@settings(max_examples=80, deadline=None)
@given(family=families, planned=lists, seed=st.integers(0, 1000))
def test_a_list_computes_what_the_model_with_changed_weights_computes(
    bases: Mapping[str, Base], family: str, planned: list[tuple[Plan, float]], seed: int
) -> None:
    base = bases[family]
    scaled = adapters_of(base, planned)
    changed = changed_model(base.oracle, scaled)
    vocab_size = len(changed.lm_head.weight)
    tokens = prompt(seed, 12, vocab_size)
    with torch.no_grad():
        want = changed(torch.tensor([tokens])).logits[0]  # (T, V of the list)
    want[:, tokens_without_head(base.oracle, scaled)] = -torch.inf
    for backend in ("reference", "float32"):
        stack = base.stack(scaled, backend)
        assert stack.vocab_size == vocab_size
        assert_near(whole(base.decoders[backend], tokens, lora=stack), want)


@settings(max_examples=30, deadline=None)
@given(family=families, planned=lists.filter(lambda planned: len(planned) > 1), seed=st.integers(0, 1000))
def test_the_order_of_a_list_does_not_matter(
    bases: Mapping[str, Base], family: str, planned: list[tuple[Plan, float]], seed: int
) -> None:
    base = bases[family]
    scaled = adapters_of(base, planned)
    stack = base.stack(scaled, "float32")
    tokens = prompt(seed, 12, stack.vocab_size)
    got = whole(base.decoders["float32"], tokens, lora=stack)
    assert_near(whole(base.decoders["float32"], tokens, lora=base.stack(scaled[::-1], "float32")), got)


@settings(max_examples=40, deadline=None)
@given(family=families, planned=lists, dtype=st.sampled_from(EXACT), lengths=st.lists(st.integers(2, 9)))
def test_a_token_has_the_same_bits_alone_and_in_any_batch(
    bases: Mapping[str, Base], family: str, planned: list[tuple[Plan, float]], dtype: str, lengths: list[int]
) -> None:
    base, lengths = bases[family], [7, *lengths]
    stack = base.stack(adapters_of(base, planned), dtype)
    prompts = [prompt(i, length, stack.vocab_size) for i, length in enumerate(lengths)]
    schedule = [[length - 1 for length in lengths], [1] * len(lengths)]
    together = logits_of(base.decoders[dtype], prompts, schedule, lora=stack)
    for tokens, got in zip(prompts, together, strict=True):
        assert torch.equal(got, whole(base.decoders[dtype], tokens, lora=stack))


@settings(max_examples=20, deadline=None)
@given(family=families, planned=lists, dtype=st.sampled_from(EXACT))
def test_at_scale_zero_it_is_the_base_model_to_the_last_bit(
    bases: Mapping[str, Base], family: str, planned: list[tuple[Plan, float]], dtype: str
) -> None:
    base = bases[family]
    decoder = base.decoders[dtype]
    adapters = [adapter for adapter, _ in adapters_of(base, planned)]
    cache = LoraCache(adapters, decoder.adaptable, decoder.backend, max_bytes=1 << 20)
    tokens = prompt(0, 12, 40)
    without = whole(decoder, tokens)
    at_zero = cache.get(cohort_key((adapter.id, 0.0) for adapter in adapters))
    assert torch.equal(whole(decoder, tokens, lora=at_zero), without)
    cache.get(cohort_key((adapter.id, 1.0) for adapter in adapters))
    assert torch.equal(whole(decoder, tokens), without)
