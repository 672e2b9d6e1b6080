"""A mixture of experts is the weighted sum of those that a token picks, and no neighbour changes a bit of it."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from model.adapted import AdaptedLinear
from model.backend import Backend, choose_backend
from model.checkpoint.config import Experts
from model.linear import PlainLinear, pack_linear
from model.lora import LoraStack
from model.mlp import ExpertsMlp, GatedMlp, Mlp

D, F = 32, 24


class Multiply:
    """An expert that multiplies by a number and remembers how many tokens it saw."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self.seen: list[int] = []

    def __call__(self, x: Tensor, lora: LoraStack | None) -> Tensor:
        self.seen.append(len(x))
        return x * self._factor


def mixture(config: Experts, router: Tensor, experts: Sequence[Mlp]) -> ExpertsMlp:
    return ExpertsMlp(config, AdaptedLinear("router", PlainLinear(router, None)), torch.float32, experts)


@pytest.mark.parametrize("are_normalised", [False, True])
def test_weighs_the_picked_experts_by_their_probability(are_normalised: bool) -> None:
    router = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])  # (E, D)
    experts = [Multiply(1.0), Multiply(10.0), Multiply(100.0)]
    mlp = mixture(Experts(3, 2, F, are_normalised), router, experts)
    x = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    got = mlp(x, None)
    for token, logits in enumerate((torch.tensor([2.0, 1.0, -3.0]), torch.tensor([1.0, 3.0, -4.0]))):
        probabilities = logits.softmax(0)
        first, second = (probabilities[:2] / probabilities[:2].sum() if are_normalised else probabilities[:2]).tolist()
        torch.testing.assert_close(got[token], x[token] * (first + 10 * second))
    assert [expert.seen for expert in experts] == [[2], [2], []]


def test_an_expert_computes_only_the_tokens_that_picked_it() -> None:
    experts = [Multiply(1.0), Multiply(2.0)]
    mlp = mixture(Experts(2, 1, F, True), torch.tensor([[1.0], [-1.0]]), experts)
    got = mlp(torch.tensor([[3.0], [-3.0], [4.0]]), None)
    assert got.tolist() == [[3.0], [-6.0], [4.0]]
    assert [expert.seen for expert in experts] == [[2], [1]]


def random_mixture(config: Experts, backend: Backend) -> ExpertsMlp:
    generator = torch.Generator().manual_seed(config.count)

    def linear(out_features: int, in_features: int, dtype: torch.dtype) -> AdaptedLinear:
        weight = torch.randn(out_features, in_features, generator=generator) * in_features**-0.5
        like = choose_backend("cpu", str(dtype).removeprefix("torch."))
        return AdaptedLinear("", pack_linear(weight, None, like))

    experts = [
        GatedMlp(linear(2 * F, D, backend.dtype), linear(D, F, backend.dtype), backend.ops.silu_mul)
        for _ in range(config.count)
    ]
    return ExpertsMlp(config, linear(config.count, D, torch.float32), torch.float32, experts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("count", "per_token"), [(4, 1), (8, 2), (60, 5), (128, 8)])
def test_a_token_has_the_same_bits_alone_and_in_any_batch(count: int, per_token: int, dtype: str) -> None:
    backend = choose_backend("cpu", dtype)
    mlp = random_mixture(Experts(count, per_token, F, True), backend)
    x = torch.randn(300, D, generator=torch.Generator().manual_seed(1)).to(backend.dtype)
    together = mlp(x, None)
    for begin, end in ((0, 1), (5, 6), (299, 300), (3, 20), (100, 233)):
        assert torch.equal(mlp(x[begin:end].contiguous(), None), together[begin:end])
