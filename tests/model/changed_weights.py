"""Adapters of every kind of part at once, and what a list of them is: a transformers model with its weights changed.

The formulas are those of model/adapters/adapter.py, written out on whole matrices in float64.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from model.adapters.adapter import Adapter, Dora, EmbeddingDelta, LoraDelta, TokenRows
from scheduler.cohort import AdapterId

Item = TypeVar("Item")

PARTS = (
    "deltas",
    "delta biases",
    "dora",
    "biases",
    "norms",
    "embedding",
    "embedding rows",
    "head",
    "head rows",
    "added tokens",
)
"""What an adapter can have; 'delta biases' and 'dora' are of its deltas and its head, 'added tokens' of its rows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An adapter to be made: half of the modules, norms and tokens, of those parts that it has."""

    seed: int
    parts: frozenset[str]
    rank: int
    factor: float


def make_adapter(base: PreTrainedModel, load_id: int, plan: Plan) -> Adapter:
    """Make the adapter of a plan, with random numbers everywhere."""
    return _Maker(base, plan).adapter(AdapterId(load_id, f"digest {plan}"))


class _Maker:
    def __init__(self, base: PreTrainedModel, plan: Plan) -> None:
        self._base = base
        self._plan = plan
        self._generator = torch.Generator().manual_seed(plan.seed)
        self._V, self._D = base.config.vocab_size, base.config.hidden_size

    def adapter(self, adapter_id: AdapterId) -> Adapter:
        has = self._plan.parts.__contains__
        linears = [name for name, module in self._base.named_modules() if isinstance(module, nn.Linear)]
        norms = [name for name, module in self._base.named_modules() if name.endswith("norm")]
        adapted = [name for name in self._some(linears) if has("head" if name == "lm_head" else "deltas")]
        return Adapter(
            adapter_id, "a", "a", "peft", {name: self._delta(name) for name in adapted}, 1.0, "", "",
            biases={name: self._random(self._module(name).out_features) for name in self._some(linears)}
            if has("biases") else {},
            norms={name: self._random(*self._module(name).weight.shape) * 0.2 for name in self._some(norms)}
            if has("norms") else {},
            embedding=EmbeddingDelta(
                self._random(self._V, self._plan.rank), self._random(self._D, self._plan.rank), self._plan.factor
            )
            if has("embedding") else None,
            embedding_rows=self._token_rows() if has("embedding rows") else None,
            head_rows=self._token_rows() if has("head rows") else None,
        )  # fmt: skip

    def _delta(self, name: str) -> LoraDelta:
        weight, rank, factor = self._module(name).weight.double(), self._plan.rank, self._plan.factor
        a, b = self._random(rank, weight.shape[1]) * 0.3, self._random(weight.shape[0], rank) * 0.3
        bias = self._random(weight.shape[0]) if "delta biases" in self._plan.parts else None
        dora = None
        if "dora" in self._plan.parts:
            product = b.double() @ a.double()
            dora = Dora(
                magnitude=(weight.norm(dim=1) * (1 + 0.3 * self._random(weight.shape[0]))).float(),
                base_sq=weight.square().sum(1),
                cross=2 * (weight * product).sum(1),
                delta_sq=product.square().sum(1),
                base_bias=None if (own := self._module(name).bias) is None else own.detach().float(),
            )
        return LoraDelta(a, b, factor, bias, dora)

    def _token_rows(self) -> TokenRows:
        ids = self._some(range(self._V + (5 if "added tokens" in self._plan.parts else 0)))
        return TokenRows(torch.tensor(ids, dtype=torch.int64), self._random(len(ids), self._D))

    def _module(self, name: str) -> nn.Linear:
        module: nn.Linear = self._base.get_submodule(name)  # norms are asked for their weight only
        return module

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator) * 0.5

    def _some(self, items: Sequence[Item]) -> list[Item]:
        """About half of the items, one at least."""
        kept = [item for item in items if torch.rand((), generator=self._generator) < 0.5]
        return kept or [items[0]]


@torch.no_grad()
def changed_model(base: PreTrainedModel, scaled: Sequence[tuple[Adapter, float]]) -> PreTrainedModel:
    """Return the model in float64 with a list's changes made to its weights: head untied, vocabulary as large as the
    list's. Rows of added tokens are zeros where no adapter has one.
    """
    model = copy.deepcopy(base).double()
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            _change_linear(module, name, scaled)
        elif name.endswith("norm"):
            for adapter, scale in scaled:
                if name in adapter.norms:
                    module.weight += scale * adapter.norms[name]
    _change_rows(model, scaled)
    return model


def _change_linear(linear: nn.Linear, name: str, scaled: Sequence[tuple[Adapter, float]]) -> None:
    weight, own_bias = linear.weight.clone(), linear.bias
    bias = torch.zeros(linear.out_features, dtype=torch.float64) if own_bias is None else own_bias.clone()
    for adapter, scale in scaled:
        if delta := adapter.deltas.get(name):
            strength = scale * delta.factor
            changed = linear.weight + strength * delta.b.double() @ delta.a.double()
            gain = torch.ones(linear.out_features, dtype=torch.float64)
            if delta.dora is not None:
                gain = delta.dora.magnitude / changed.norm(dim=1)
            weight += gain[:, None] * changed - linear.weight
            if delta.bias is not None:
                bias += gain * strength * delta.bias
        if name in adapter.biases:
            bias += scale * adapter.biases[name]
    linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)


def _change_rows(model: PreTrainedModel, scaled: Sequence[tuple[Adapter, float]]) -> None:
    end = max(model.config.vocab_size, *(adapter.vocabulary_end for adapter, _ in scaled))
    embedding, head, bias = (
        torch.cat((old, old.new_zeros(end - len(old), *old.shape[1:])))
        for old in (model.model.embed_tokens.weight, model.lm_head.weight, model.lm_head.bias)
    )
    for adapter, scale in scaled:
        if (delta := adapter.embedding) is not None:
            embedding[: len(delta.a)] += scale * delta.factor * delta.a.double() @ delta.b.double().T
        for matrix, rows in ((embedding, adapter.embedding_rows), (head, adapter.head_rows)):
            if rows is not None:
                matrix[rows.ids] += scale * rows.rows
    model.model.embed_tokens.weight = nn.Parameter(embedding)
    model.lm_head.weight, model.lm_head.bias = nn.Parameter(head), nn.Parameter(bias)


def tokens_without_head(base: PreTrainedModel, scaled: Sequence[tuple[Adapter, float]]) -> list[int]:
    """Return the added tokens that no adapter of the list gives a row in the head: theirs is no logit."""
    end = max(base.config.vocab_size, *(adapter.vocabulary_end for adapter, _ in scaled))
    given = {token_id for adapter, _ in scaled if adapter.head_rows for token_id in adapter.head_rows.ids.tolist()}
    return [token_id for token_id in range(base.config.vocab_size, end) if token_id not in given]
