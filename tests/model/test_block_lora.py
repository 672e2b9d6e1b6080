"""Adapter lists on the decoder of integers: every part of an adapter against the reference in float32."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from model.adapters.adapter import Adapter
from model.backend import choose_backend, reference_backend
from model.block_decoder import BlockDecoder
from model.block_lora import BlockLowRank, _balance
from model.checkpoint.gguf_names import load_blocks
from model.checkpoint.weights import load_checkpoint
from model.cpu.block_weight import BlockWeight, quantise_blocks
from model.cpu.jit import compiles_for
from model.decoder import Decoder
from model.lora import stack_adapters
from model.lora_cache import LoraCache
from model.lora_sum import DeltaSum
from scheduler.cohort import cohort_key
from tests.model.changed_weights import PARTS, Plan, make_adapter
from tests.model.decoding import logits_of, whole
from tests.model.two_families import two_families

needs_vnni = pytest.mark.skipif(not compiles_for("avx512vnni"), reason="the CPU has no AVX-512 VNNI")


class Base:
    """A tiny model: transformers', and the decoders of its weights as integers and as what these stand for."""

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        self.made = model
        model.save_pretrained(folder)
        checkpoint = load_checkpoint(folder)
        self.blocks = BlockDecoder(checkpoint.config, checkpoint.tensors, choose_backend("cpu", "int8", checkpoint))
        tensors = {
            name: _values(load_blocks(checkpoint.tensors, name)) if tensor.ndim == 2 else tensor
            for name, tensor in checkpoint.tensors.items()
        }
        self.reference = Decoder(checkpoint.config, tensors, reference_backend())


def _values(weight: BlockWeight) -> Tensor:
    return torch.from_numpy(weight.rows(np.arange(weight.out_features)))


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Base]:
    models = two_families(265, 64, 96, 32)
    return {name: Base(model, tmp_path_factory.mktemp(name)) for name, model in models.items()}


plans = st.builds(
    Plan,
    seed=st.integers(0, 2**31),
    parts=st.frozensets(st.sampled_from(PARTS), min_size=1),
    rank=st.sampled_from([1, 3, 16, 33, 40]),
    factor=st.sampled_from([0.5, 1.0, 1.7]),
)
scales = st.floats(-1.0, 1.0).filter(lambda scale: abs(scale) > 0.01)
lists = st.lists(st.tuples(plans, scales), min_size=1, max_size=3)
families = st.sampled_from(["qwen3", "llama"])


def adapters_of(base: Base, planned: Sequence[tuple[Plan, float]]) -> list[tuple[Adapter, float]]:
    return [(make_adapter(base.made, i, plan), scale) for i, (plan, scale) in enumerate(planned)]


def prompt(seed: int, length: int, vocab_size: int) -> list[int]:
    return torch.randint(0, vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_list_is_the_references(base: Base, scaled: Sequence[tuple[Adapter, float]], seed: int = 0) -> None:
    stack = stack_adapters(scaled, base.blocks.adaptable, base.blocks.backend)
    plain = stack_adapters(scaled, base.reference.adaptable, base.reference.backend)
    assert stack.vocab_size == plain.vocab_size
    tokens = prompt(seed, 12, stack.vocab_size)
    got, wanted = whole(base.blocks, tokens, lora=stack), whole(base.reference, tokens, lora=plain)
    assert torch.equal(got == -torch.inf, wanted == -torch.inf)
    finite = wanted > -torch.inf
    error = (got[finite] - wanted[finite]).abs()
    assert float(error.mean()) <= 0.02 * float(wanted[finite].abs().mean())


@needs_vnni
@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_an_adapter_acts(bases: Mapping[str, Base], family: str, part: str) -> None:
    companions = {"delta biases": {"deltas"}, "dora": {"deltas", "head"}, "added tokens": {"embedding rows"}}
    parts, base = frozenset({part} | companions.get(part, set())), bases[family]
    scaled = adapters_of(base, [(Plan(seed, parts, rank=16, factor=1.0), 0.6) for seed in range(4)])
    assert_list_is_the_references(base, scaled)
    stack = stack_adapters(scaled, base.blocks.adaptable, base.blocks.backend)
    tokens = prompt(0, 12, 265)
    changed, own = whole(base.blocks, tokens, lora=stack)[:, :265], whole(base.blocks, tokens)
    assert float((changed - own).abs().mean()) > 0.01 * float(own.abs().mean())


@needs_vnni
@settings(max_examples=60, deadline=None)
@given(family=families, planned=lists, seed=st.integers(0, 1000))
def test_a_list_computes_what_the_reference_computes(
    bases: Mapping[str, Base], family: str, planned: list[tuple[Plan, float]], seed: int
) -> None:
    assert_list_is_the_references(bases[family], adapters_of(bases[family], planned), seed)


@needs_vnni
@settings(max_examples=30, deadline=None)
@given(family=families, planned=lists, lengths=st.lists(st.integers(2, 9), max_size=20))
def test_a_token_has_the_same_bits_alone_and_in_any_batch(
    bases: Mapping[str, Base], family: str, planned: list[tuple[Plan, float]], lengths: list[int]
) -> None:
    decoder, lengths = bases[family].blocks, [7, *lengths]
    stack = stack_adapters(adapters_of(bases[family], planned), decoder.adaptable, decoder.backend)
    prompts = [prompt(i, length, stack.vocab_size) for i, length in enumerate(lengths)]
    schedule = [[length - 1 for length in lengths], [1] * len(lengths)]
    for tokens, got in zip(prompts, logits_of(decoder, prompts, schedule, lora=stack), strict=True):
        assert torch.equal(got, whole(decoder, tokens, lora=stack))


@needs_vnni
@settings(max_examples=20, deadline=None)
@given(family=families, planned=lists)
def test_at_scale_zero_it_is_the_base_model_to_the_last_bit(
    bases: Mapping[str, Base], family: str, planned: list[tuple[Plan, float]]
) -> None:
    decoder = bases[family].blocks
    adapters = [adapter for adapter, _ in adapters_of(bases[family], planned)]
    cache = LoraCache(adapters, decoder.adaptable, decoder.backend, max_bytes=1 << 24)
    tokens = prompt(0, 12, 265)
    without = whole(decoder, tokens)
    assert torch.equal(whole(decoder, tokens, lora=cache.get(cohort_key((a.id, 0.0) for a in adapters))), without)
    whole(decoder, [tokens[0]], lora=cache.get(cohort_key((a.id, 1.0) for a in adapters)))
    assert torch.equal(whole(decoder, tokens), without)


@needs_vnni
def test_an_evicted_list_leaves_nothing_behind(bases: Mapping[str, Base]) -> None:
    base = bases["llama"]
    decoder = base.blocks
    [(adapter, _)] = adapters_of(base, [(Plan(1, frozenset(PARTS), 4, 1.0), 1.0)])
    cache = LoraCache([adapter], decoder.adaptable, decoder.backend, max_bytes=1 << 24)
    gc.collect()
    before = len(decoder._of_lists)
    whole(decoder, [3, 4], lora=cache.get(cohort_key([(adapter.id, 1.0)])))
    assert len(decoder._of_lists) == before + 1
    cache.drop(adapter.id.load_id)
    gc.collect()
    assert len(decoder._of_lists) == before


def random_sum(a_size: float, b_size: float, seed: int = 0, out: int = 40, rank: int = 3) -> DeltaSum:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(rank, 64, generator=generator).double() * a_size
    b = torch.randn(out, rank, generator=generator).double() * b_size
    return DeltaSum(a.float(), b.float(), None, None)


@settings(max_examples=60, deadline=None)
@given(
    a_exponent=st.integers(-30, 30),
    exponent=st.integers(-6, 6),
    rank=st.integers(1, 70),
    seed=st.integers(0, 100),
)
def test_factors_of_any_size_keep_their_product(a_exponent: int, exponent: int, rank: int, seed: int) -> None:
    change = random_sum(10.0**a_exponent, 10.0 ** (exponent - a_exponent), seed, rank=rank)
    low_rank = BlockLowRank([change])
    [module] = low_rank.modules
    assert low_rank.a is not None
    assert module.b is not None
    whole_rank = -(-rank // 16) * 16
    assert (low_rank.a.out_features, len(module.tiles)) == (whole_rank, whole_rank // 16)
    wanted = change.b.double() @ change.a.double()
    got = _unpacked(module.b)[:40].double() @ _values(low_rank.a).double()
    assert float((got - wanted).norm()) < 0.02 * float(wanted.norm())


def _unpacked(b: NDArray[np.uint16]) -> Tensor:
    """B (out up to sixteens, R up to sixteens) of what the kernels read."""
    return torch.from_numpy(b).view(torch.bfloat16).permute(0, 3, 1, 2, 4).reshape(b.shape[0] * 16, -1)


def test_the_factors_of_modules_that_read_the_same_follow_each_other() -> None:
    changes = [random_sum(1.0, 1.0, 1, rank=20), None, random_sum(1.0, 1.0, 2, rank=3)]
    low_rank = BlockLowRank(changes)
    assert [module.tiles for module in low_rank.modules] == [range(2), range(2, 2), range(2, 3)]
    assert low_rank.a is not None
    a_of_the_last = quantise_blocks(F.pad(_balanced_a(changes[2]), (0, 0, 0, 13)))
    begin = low_rank.a_address(low_rank.modules[2]) - low_rank.a.address
    assert low_rank.a.memory[begin:].tobytes() == a_of_the_last.memory.tobytes()


def _balanced_a(change: DeltaSum | None) -> Tensor:
    assert change is not None
    a, b = torch.empty_like(change.a), torch.empty_like(change.b)
    assert _balance(change.a.numpy(), change.b.numpy(), a.numpy(), b.numpy())
    return a


@settings(max_examples=60, deadline=None)
@given(a_exponent=st.integers(-30, 30), b_exponent=st.integers(-30, 30), seed=st.integers(0, 100))
def test_balancing_is_exact_and_makes_ranks_equally_large(a_exponent: int, b_exponent: int, seed: int) -> None:
    change = random_sum(10.0**a_exponent, 10.0**b_exponent, seed)
    change.a[1] = 0
    change.b[:, 2] = 0
    a, b = torch.empty(3, 64), torch.empty(40, 3)
    fits = _balance(change.a.numpy(), change.b.numpy(), a.numpy(), b.numpy())
    assert fits == bool((a.abs().max() <= 30000) & (b.abs().max() <= 30000))
    first = a[0].abs().max() / b[:, 0].abs().max()
    assert 0.5 <= first <= 2
    factor = 2.0 ** torch.log2(a[0, 0].double() / change.a[0, 0].double()).round()
    assert torch.equal(a[0].double(), change.a[0].double() * factor)
    assert torch.equal(b[:, 0].double(), change.b[:, 0].double() / factor)
    assert torch.equal(a[2], change.a[2])
    assert torch.equal(b[:, 1], change.b[:, 1])
    assert not a[1].any()
    assert not b[:, 2].any()


@pytest.mark.parametrize("size", [1e10, float("inf"), float("nan")])
@pytest.mark.parametrize("is_in_a", [True, False])
def test_factors_that_no_block_holds_give_nan(size: float, is_in_a: bool) -> None:
    sizes = (size, 1.0) if is_in_a else (1.0, size)
    low_rank = BlockLowRank([random_sum(*sizes)])
    [module] = low_rank.modules
    assert (low_rank.a, module.tiles, module.b) == (None, range(0), None)
    assert module.offset is not None
    assert np.isnan(module.offset[:40]).all()


def test_a_single_nan_is_seen() -> None:
    change = random_sum(1.0, 1.0)
    change.a[1, 63] = torch.nan
    low_rank = BlockLowRank([change])
    assert low_rank.a is None
    assert low_rank.modules[0].offset is not None


def test_a_module_that_the_list_does_not_touch_has_no_change() -> None:
    first, second = BlockLowRank([random_sum(1.0, 1.0), None]).modules
    assert first.b is not None
    assert (second.tiles, second.b, second.gain, second.offset) == (range(1, 1), None, None, None)


def test_a_module_of_rank_zero_has_only_its_offset() -> None:
    change = DeltaSum(torch.zeros(0, 64), torch.zeros(24, 0), None, torch.ones(24))
    [module] = BlockLowRank([change]).modules
    assert (module.tiles, module.b, module.gain) == (range(0), None, None)
    assert module.offset is not None
    assert module.offset.tolist() == [1.0] * 24 + [0.0] * 8


def test_counts_its_bytes() -> None:
    first, second = random_sum(1.0, 1.0), random_sum(1.0, 1.0, out=24)
    low_rank = BlockLowRank([replace(first, gain=torch.ones(40)), replace(second, gain=torch.ones(24))])
    factors = [(2 * 576, 3 * 512), (2 * 576, 2 * 512)]  # A: two blocks of a tile; B: tiles of 16 ranks
    assert low_rank.num_bytes == sum(map(sum, factors)) + 4 * (48 + 32)
