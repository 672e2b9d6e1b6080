"""The arithmetic of adapter lists against plain sums, part by part, and its bits alone and in a batch."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.adapters.adapter import Adapter, EmbeddingDelta, LoraDelta, TokenRows
from model.backend import Backend, choose_backend, reference_backend
from model.lora import Adaptable, LoraStack, Projection, stack_adapters
from scheduler.cohort import AdapterId

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
    assert stack.change("o") is None
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


def with_parts(load_id: int = 0, **parts: object) -> Adapter:
    return replace(make_adapter(load_id, ""), **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("fast", [True, False])
def test_biases_are_added_scaled(fast: bool) -> None:
    biased = with_parts(biases={"k": torch.arange(16.0)})
    delta = make_adapter(1, "q").deltas["q"]
    lora_biased = with_parts(deltas={"q": replace(delta, bias=torch.arange(32.0), factor=3.0)})
    scaled = [(biased, 0.5), (lora_biased, -2.0), (biased, 1.0)]
    x, y = inputs(5, QKV)
    want = y.double() + plain_delta(scaled, QKV, x)
    want[:, 32:48] += 1.5 * torch.arange(16.0)
    want[:, :32] += -6.0 * torch.arange(32.0)
    got = added(stack_adapters(scaled, BOTH, backend(fast=fast)), "qkv", y, x)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("fast", [True, False])
def test_a_bias_alone_needs_no_factors(fast: bool) -> None:
    stack = stack_adapters([(with_parts(biases={"o": torch.full((24,), 2.0)}), 0.25)], BOTH, backend(fast=fast))
    x, y = inputs(3, O)
    assert stack.change("o") is not None
    assert torch.equal(added(stack, "o", y, x), y + 0.5)


def test_norms_are_sums_over_the_list() -> None:
    one, other = with_parts(norms={"n": torch.ones(4), "m": torch.ones(4)}), with_parts(1, norms={"n": torch.ones(4)})
    stack = stack_adapters([(one, 0.5), (other, -2.0)], BOTH, backend())
    weight = torch.arange(4.0)
    assert torch.equal(stack.norm("n", weight), weight - 1.5)
    assert torch.equal(stack.norm("m", weight), weight + 0.5)
    assert stack.norm("another", weight) is weight
    assert torch.equal(weight, torch.arange(4.0))


def test_the_head_is_computed_in_its_own_dtype() -> None:
    slow = backend(torch.bfloat16, fast=False)
    head = Adaptable((Projection("head", 24, (("lm_head", 50),), in_head_dtype=True),), vocab_size=50, hidden_size=24)
    adapter = with_parts(deltas={"lm_head": LoraDelta(torch.randn(2, 24), torch.randn(50, 2), 1.0)})
    stack = stack_adapters([(adapter, 1.0)], head, slow)
    x, y = torch.randn(3, 24), torch.randn(3, 50)
    want = y.double() + x.double() @ (adapter.deltas["lm_head"].b @ adapter.deltas["lm_head"].a).double().T
    torch.testing.assert_close(added(stack, "head", y, x).double(), want, rtol=1e-5, atol=1e-4)


def test_the_vocabulary_grows_to_the_last_token_that_an_adapter_has_a_row_of() -> None:
    def vocab_size(*ends: int) -> int:
        rows = [TokenRows(torch.tensor([end - 1]), torch.ones(1, 24)) for end in ends]
        scaled = [(with_parts(i, embedding_rows=each), 1.0) for i, each in enumerate(rows)]
        return stack_adapters(scaled, BOTH, backend()).vocab_size

    assert (vocab_size(7), vocab_size(50), vocab_size(51), vocab_size(60, 3, 55)) == (50, 50, 51, 60)


def test_a_list_without_rows_of_tokens_leaves_the_logits_alone() -> None:
    stack = stack_adapters([(make_adapter(0, "q"), 1.0)], BOTH, backend())
    logits = torch.randn(3, 50)
    assert stack.extend_logits(logits, torch.randn(3, 24)) is logits


def test_added_tokens_without_a_row_in_the_head_have_no_logit() -> None:
    embedding_rows = TokenRows(torch.tensor([52]), torch.ones(1, 24))
    head_rows = TokenRows(torch.tensor([3, 51]), torch.stack((torch.ones(24), 2 * torch.ones(24))))
    adapter = with_parts(embedding_rows=embedding_rows, head_rows=head_rows)
    stack = stack_adapters([(adapter, 0.5)], BOTH, backend())
    logits = stack.extend_logits(torch.zeros(2, 50), torch.ones(2, 24))
    assert logits.shape == (2, 53)
    assert logits[:, 50:].tolist() == [[-torch.inf, 24.0, -torch.inf]] * 2
    assert logits[:, :5].tolist() == [[0, 0, 0, 12.0, 0]] * 2


def test_a_module_that_the_model_does_not_have_is_never_dropped_silently() -> None:
    for adapter in (
        with_parts(biases={"r": torch.ones(4)}),
        with_parts(deltas={"r": make_adapter(0, "q").deltas["q"]}),
    ):
        with pytest.raises(AssertionError, match="unknown modules"):
            stack_adapters([(adapter, 1.0)], BOTH, backend())


def test_a_stack_counts_all_that_it_holds() -> None:
    # Rows of the embedding stay where the adapter has them.
    rows = TokenRows(torch.tensor([1, 2]), torch.ones(2, 24))
    base = make_adapter(0, "o", rank=32)  # no padding
    low_rank = stack_adapters([(base, 1.0)], BOTH, backend()).num_bytes
    assert low_rank == 4 * 32 * (32 + 32)  # 24 outputs are padded to 32
    whole = replace(
        base,
        biases={"o": torch.ones(24)},
        norms={"n": torch.ones(24)},
        embedding=EmbeddingDelta(torch.ones(50, 3), torch.ones(24, 3), 1.0),
        embedding_rows=rows,
        head_rows=rows,
    )
    more = 4 * 24 + 4 * 24 + 4 * 24 * 3 + (2 * 8 + 4 * 2 * 24)
    assert stack_adapters([(whole, 1.0)], BOTH, backend()).num_bytes == low_rank + more


def test_an_adapter_knows_its_size() -> None:
    deltas = {**make_adapter(0, "q", rank=3).deltas, **make_adapter(0, "o", rank=5).deltas}
    adapter = Adapter(AdapterId(0, ""), "", "", "peft", deltas, 1.0, "", "")
    assert adapter.num_bytes == 4 * (3 * (24 + 32) + 5 * (32 + 24))
