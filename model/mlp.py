"""The MLP of a layer: one that all tokens go through, or a mixture of experts, a few of which each token picks.

Experts run one after the other on the tokens that picked them, in ascending order, and a token's sum is formed in that
order in float32. So a token's result has the same bits whatever its neighbours, as long as the matrix products treat
rows alike. Sources: arXiv 2002.05202 (gated MLP), arXiv 2401.04088 (Mixtral), and transformers' `MixtralSparseMoeBlock`
and `Qwen3MoeSparseMoeBlock`.

T tokens in the step, D hidden, F of the MLP or of one expert, E experts, k experts per token.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from model.adapted import AdaptedLinear
from model.checkpoint.config import Experts
from model.lora import LoraStack


class Mlp(Protocol):
    """The second half of a layer, between its norm and the residual stream."""

    def __call__(self, x: Tensor, lora: LoraStack | None) -> Tensor:
        """Map x (T, D) to (T, D), both in the compute dtype, under an adapter list."""
        ...


class GatedMlp:
    """down(act(gate(x)) · up(x))."""

    def __init__(self, gate_up: AdaptedLinear, down: AdaptedLinear, activate: Callable[[Tensor], Tensor]) -> None:
        """gate_up D → 2F, down F → D; `activate` makes act(gate) · up (T, F) of (T, 2F)."""
        self._gate_up = gate_up
        self._down = down
        self._activate = activate

    def __call__(self, x: Tensor, lora: LoraStack | None) -> Tensor:
        return self._down(self._activate(self._gate_up(x, lora)), lora)


class ExpertsMlp:
    """The sum of a token's experts, weighted by their probabilities."""

    def __init__(
        self, config: Experts, router: AdaptedLinear, router_dtype: torch.dtype, experts: Sequence[Mlp]
    ) -> None:
        """router D → E, which reads and gives `router_dtype`."""
        self._config = config
        self._router = router
        self._router_dtype = router_dtype
        self._experts = experts

    def __call__(self, x: Tensor, lora: LoraStack | None) -> Tensor:
        weights, chosen = self._route(x, lora)
        sums = torch.zeros(x.shape, dtype=torch.float32, device=x.device)  # (T, D)
        for expert, picks in _picks_by_expert(chosen, self._config.count):
            tokens = picks // self._config.per_token  # (n,), each at most once
            y = self._experts[expert](x[tokens], lora).float() * weights.flatten()[picks].unsqueeze(1)  # (n, D)
            sums.index_add_(0, tokens, y)
        return sums.to(x.dtype)

    def _route(self, x: Tensor, lora: LoraStack | None) -> tuple[Tensor, Tensor]:
        """Return the weights (T, k) float32 of each token's experts, and which they are (T, k) int64."""
        logits = self._router(x.to(self._router_dtype), lora)  # (T, E)
        weights, chosen = logits.float().softmax(dim=-1).topk(self._config.per_token, dim=-1)
        if self._config.are_normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights, chosen


def _picks_by_expert(chosen: Tensor, num_experts: int) -> Iterator[tuple[int, Tensor]]:
    """Yield each expert that a token has picked, ascending, with the places (n,) in chosen (T, k) where it stands."""
    order = chosen.flatten().argsort(stable=True)  # (T · k,)
    start = 0
    for expert, count in enumerate(chosen.flatten().bincount(minlength=num_experts).tolist()):
        if count:
            yield expert, order[start : start + count]
        start += count
