"""The arithmetic of adapter lists against plain sums, its bits alone and in a batch, and the cache of stacks."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from model.adapter import Adapter, LoraDelta
from model.backend import Backend, choose_backend, reference_backend
from model.lora import Adaptable, LoraStack, Projection, stack_adapters
from model.lora_cache import LoraCache
from scheduler.cohort import BASE, AdapterId, CohortKey, cohort_key

QKV = Projection("qkv", 24, (("q", 32), ("k", 16), ("v", 16)))
O = Projection("o", 32, (("o", 24),))  # noqa: E741
BOTH = Adaptable((QKV, O), vocab_size=50, hidden_size=24)
SHAPES = {module: (out, p.in_features) for p in (QKV, O) for module, out in p.parts}


def backend(dtype: torch.dtype = torch.float32, fast: bool = True) -> Backend:
    name = str(dtype).removeprefix("torch.")
    return choose_backend("cpu", name) if fast else reference_backend(dtype)


def added(stack: LoraStack, name: str, y: Tensor, x: Tensor) -> Tensor:
    """y plus the stack's delta, as a new tensor."""
    got = y.clone()
    stack.add_to(name, got, x)
    return got


def make_adapter(load_id: int, modules: Sequence[str], rank: int = 4, factor: float = 0.5) -> Adapter:
    generator = torch.Generator().manual_seed(load_id)
    deltas = {}
    for module in modules:
        out_features, in_features = SHAPES[module]
        a, b = torch.randn(rank, in_features, generator=generator), torch.randn(out_features, rank, generator=generator)
        deltas[module] = LoraDelta(a, b, factor)
    return Adapter(AdapterId(load_id, f"digest-{load_id}"), f"adapter-{load_id}", "", "peft", deltas, 8.0, "", "")


def plain_delta(scaled: Sequence[tuple[Adapter, float]], projection: Projection, x: Tensor) -> Tensor:
    """Σ scale · factor · B (A x), part by part and adapter by adapter, in float64."""
    parts = []
    for module, out_features in projection.parts:
        total = torch.zeros(x.shape[0], out_features, dtype=torch.float64)
        for adapter, scale in scaled:
            if delta := adapter.deltas.get(module):
                total += scale * delta.factor * (x.double() @ delta.a.double().T @ delta.b.double().T)
        parts.append(total)
    return torch.cat(parts, dim=1)


def inputs(num_tokens: int, projection: Projection, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(99)
    out_features = sum(out for _, out in projection.parts)
    x = torch.randn(num_tokens, projection.in_features, generator=generator)
    return x.to(dtype), torch.randn(num_tokens, out_features, generator=generator).to(dtype)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("num_tokens", [1, 5, 40])
@pytest.mark.parametrize(
    "scaled",
    [
        [(make_adapter(0, "qkvo"), 1.0)],
        [(make_adapter(0, "qkvo"), 0.5), (make_adapter(1, "qkvo", rank=3, factor=2.0), -1.25)],
        [(make_adapter(0, "q"), 0.5), (make_adapter(1, "ko", rank=7), 1.1), (make_adapter(2, "kv", rank=1), 3.0)],
    ],
    ids=["one", "two", "three on different parts"],
)
def test_a_stack_adds_the_sum_of_its_deltas(scaled: list[tuple[Adapter, float]], num_tokens: int, fast: bool) -> None:
    stack = stack_adapters(scaled, BOTH, backend(fast=fast))
    for projection in (QKV, O):
        x, y = inputs(num_tokens, projection)
        wanted = y.double() + plain_delta(scaled, projection, x)
        got = added(stack, projection.name, y, x)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-4)


def test_adding_leaves_the_input_as_it_is() -> None:
    stack = stack_adapters([(make_adapter(0, "qkv"), 1.0)], BOTH, backend())
    x, y = inputs(5, QKV)
    before = x.clone()
    stack.add_to("qkv", y, x)
    assert torch.equal(x, before)


def test_a_projection_that_the_list_does_not_touch_costs_nothing() -> None:
    stack = stack_adapters([(make_adapter(0, "qk"), 1.0)], BOTH, backend())
    x, y = inputs(5, O)
    assert not stack.touches("o")
    assert torch.equal(added(stack, "o", y, x), y)


def test_a_part_that_the_list_does_not_touch_keeps_its_values() -> None:
    stack = stack_adapters([(make_adapter(0, "qv"), 1.0)], BOTH, backend())
    x, y = inputs(5, QKV)
    got = added(stack, "qkv", y, x)
    assert torch.equal(got[:, 32:48], y[:, 32:48])
    assert not torch.equal(got, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(dtype: torch.dtype) -> None:
    scaled = [(make_adapter(0, "qkvo", rank=8), 0.5), (make_adapter(1, "qo", rank=3), 0.7)]
    stack = stack_adapters(scaled, BOTH, backend(dtype))
    for projection in (QKV, O):
        x, y = inputs(40, projection, dtype)
        together = added(stack, projection.name, y, x)
        for row in range(40):
            alone = added(stack, projection.name, y[row : row + 1], x[row : row + 1])
            assert torch.equal(alone[0], together[row])


def test_scales_are_folded_before_the_compute_type_rounds() -> None:
    # 1 + 2**-9 is not a bfloat16, its product with 2 / (1 + 2**-9) is.
    delta = LoraDelta(torch.ones(1, 32), torch.full((24, 1), 1 + 2**-9), 2 / (1 + 2**-9))
    adapter = Adapter(AdapterId(0, ""), "", "", "peft", {"o": delta}, 1.0, "", "")
    stack = stack_adapters([(adapter, 1.0)], BOTH, backend(torch.bfloat16))
    y = torch.zeros(1, 24, dtype=torch.bfloat16)
    stack.add_to("o", y, torch.ones(1, 32, dtype=torch.bfloat16))
    assert torch.equal(y.float(), torch.full((1, 24), 64.0))


def test_an_adapter_knows_its_largest_rank_and_its_size() -> None:
    deltas = {**make_adapter(0, "q", rank=3).deltas, **make_adapter(0, "o", rank=5).deltas}
    adapter = Adapter(AdapterId(0, ""), "", "", "peft", deltas, 1.0, "", "")
    assert adapter.max_rank == 5
    assert adapter.num_bytes == 4 * (3 * (24 + 32) + 5 * (32 + 24))


A, B = make_adapter(0, "qkvo"), make_adapter(1, "qkvo")
ONE_STACK = stack_adapters([(A, 1.0)], BOTH, backend()).num_bytes


def make_cache(max_bytes: int) -> LoraCache:
    return LoraCache([A, B], BOTH, backend(), max_bytes)


def key(*scales: tuple[Adapter, float]) -> CohortKey:
    return cohort_key((adapter.id, scale) for adapter, scale in scales)


def test_the_base_key_has_no_stack() -> None:
    assert make_cache(10 * ONE_STACK).get(BASE) is None


def test_a_key_of_zero_scales_is_the_base_key() -> None:
    assert make_cache(10 * ONE_STACK).get(key((A, 0.0), (B, -0.0))) is None


def test_a_stack_is_built_once_for_each_key() -> None:
    cache = make_cache(10 * ONE_STACK)
    assert cache.get(key((A, 1.0))) is cache.get(key((A, 1.0)))
    assert cache.get(key((A, 1.0))) is not cache.get(key((A, 0.5)))
    assert cache.num_bytes == 2 * ONE_STACK


def test_the_list_used_longest_ago_makes_room() -> None:
    cache = make_cache(2 * ONE_STACK)
    first, second = cache.get(key((A, 1.0))), cache.get(key((A, 2.0)))
    cache.get(key((A, 1.0)))
    cache.get(key((A, 3.0)))
    assert cache.num_bytes == 2 * ONE_STACK
    assert cache.get(key((A, 1.0))) is first
    assert cache.get(key((A, 2.0))) is not second


def test_a_stack_larger_than_the_bound_is_kept_while_it_is_the_only_one() -> None:
    cache = make_cache(ONE_STACK - 1)
    stack = cache.get(key((A, 1.0)))
    assert cache.get(key((A, 1.0))) is stack
    cache.get(key((B, 1.0)))
    assert cache.num_bytes == ONE_STACK


def test_dropping_an_adapter_frees_every_stack_that_it_takes_part_in() -> None:
    cache = make_cache(10 * ONE_STACK)
    kept = cache.get(key((B, 1.0)))
    cache.get(key((A, 1.0)))
    cache.get(key((A, 1.0), (B, 1.0)))
    cache.drop(A.id.load_id)
    assert cache.num_bytes == ONE_STACK
    assert cache.get(key((B, 1.0))) is kept
    with pytest.raises(KeyError):
        cache.get(key((A, 1.0)))


def test_an_adapter_added_later_can_be_used() -> None:
    cache = make_cache(10 * ONE_STACK)
    late = make_adapter(7, "q")
    cache.add(late)
    stack = cache.get(key((late, 1.0)))
    assert stack is not None
    assert stack.touches("qkv")
