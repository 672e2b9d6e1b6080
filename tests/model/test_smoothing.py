"""Factors of channels, and what they make of an adapter's changes."""

import torch
from torch import Tensor

from model.lora_sum import DeltaSum
from model.smoothing import (
    ALPHA,
    Smoothing,
    balance,
    column_ranges,
    merged,
    repeat_for_query_heads,
    share_by_kv_head,
)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_factor_shares_the_range_between_activation_and_weight() -> None:
    activations, weights = torch.tensor([100.0, 1.0, 4.0]), torch.tensor([0.1, 1.0, 0.5])
    factors = balance(activations, weights)
    torch.testing.assert_close(factors, activations**ALPHA * weights ** (ALPHA - 1))
    # At 0.5 both would end equally high; above it the activations end lower.
    assert ((activations / factors).max() / (activations / factors).min()) < 100


def test_channels_without_range_get_a_finite_factor() -> None:
    for activations, weights in (([0.0, 2.0], [1.0, 0.0]), ([0.0, 0.0], [0.0, 0.0])):
        factors = balance(torch.tensor(activations), torch.tensor(weights))
        assert factors.isfinite().all()
        assert (factors > 0).all()


def test_column_ranges_are_over_all_weights() -> None:
    got = column_ranges([torch.tensor([[1.0, -2.0], [0.5, 1.0]]), torch.tensor([[-3.0, 0.0]]).bfloat16()])
    assert got.tolist() == [3.0, 2.0]


def test_query_heads_of_a_kv_head_share_factors() -> None:
    ranges = torch.arange(1.0, 13).view(6, 2)  # 2 KV heads, 3 query heads each, of size 2
    shared = share_by_kv_head(ranges.flatten(), 2, 2)
    assert shared.tolist() == [5, 6, 11, 12]
    assert repeat_for_query_heads(shared, 6, 2).tolist() == [5, 6] * 3 + [11, 12] * 3


def test_a_change_of_a_product_is_that_of_the_smoothed_one() -> None:
    inputs, outputs = rand(5).exp(), rand(4, seed=1).exp()
    change = DeltaSum(rand(2, 5, seed=2), rand(4, 2, seed=3), rand(4, seed=4), rand(4, seed=5))
    smoothing = Smoothing({"p": inputs}, {"p": outputs}, {})
    got = smoothing.of_change("p", change)
    x, y = rand(5, seed=6), rand(4, seed=7)
    assert change.gain is not None
    assert change.offset is not None
    assert got.gain is not None
    assert got.offset is not None
    want = change.gain * y + change.offset + change.b @ (change.a @ x)
    smoothed = got.gain * (y / outputs) + got.offset + got.b @ (got.a @ (x / inputs))
    torch.testing.assert_close(smoothed * outputs, want)


def test_what_is_not_smoothed_does_not_change() -> None:
    change, weight = DeltaSum(rand(2, 5), rand(4, 2), None, None), rand(5)
    smoothing = Smoothing({"p": torch.ones(5)}, {}, {"n": torch.full((5,), 2.0)})
    assert smoothing.of_change("q", change) is change
    assert smoothing.of_norm("m", weight) is weight
    assert torch.equal(smoothing.of_norm("n", weight), weight / 2)


def test_layers_are_merged() -> None:
    one, two = torch.ones(1), torch.ones(2)
    got = merged([Smoothing({"a": one}, {"a": two}, {"n": one}), Smoothing({"b": two}, {}, {"m": two})])
    assert (set(got.inputs), set(got.outputs), set(got.norms)) == ({"a", "b"}, {"a"}, {"n", "m"})
