"""Attention over paged KV: the contract, and the dense reference that every fast path is compared with.

A row of the step owns consecutive query tokens; its keys and values lie in pages named by its block table. Queries are
the last tokens of their context: the mask is causal, aligned at the bottom right. Knows no weights and no requests.

S rows, T tokens in the step, H query heads, K KV heads, h head size, N blocks, P tokens per block.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """Where the tokens of one step stand, the same for every layer. Tensors are contiguous, on the compute device."""

    query_starts: Tensor
    """(S + 1,) int32: row s owns the tokens query_starts[s] … query_starts[s + 1] - 1; at least one each."""
    context_lens: Tensor
    """(S,) int32: tokens of row s in the cache after this step; its last query stands at context_lens[s] - 1."""
    block_tables: Tensor
    """(S, max_blocks) int32: the row's blocks in order; entries past its context are 0 and never read."""
    max_query: int
    max_context: int
    slots: Tensor
    """(T,) int64: where the token's key and value go, block · P + offset."""
    positions: Tensor
    """(T,) int64: the token's position in its sequence."""


class Attention(Protocol):
    """Causal attention over paged KV; the keys and values of the step's own tokens are already in the cache."""

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: AttentionStep, scale: float, window: int | None
    ) -> Tensor:
        """Return softmax(scale · q kᵀ) v for every token of the step.

        q (T, H, h) and the caches (N, P, K, h) have one dtype; query head i reads KV head i // (H / K). With a window w
        a query at position p sees positions p - w + 1 … p. Returns (T, H · h) in q's dtype.
        """
        ...


class DenseAttention:
    """The reference: gathers each row's pages and takes the plain softmax in float32. Slow, on any device."""

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: AttentionStep, scale: float, window: int | None
    ) -> Tensor:
        T, H, h = q.shape
        starts, lens = step.query_starts.tolist(), step.context_lens.tolist()
        out = torch.empty_like(q)
        for s, length in enumerate(lens):
            tokens = slice(starts[s], starts[s + 1])
            keys = _gather(k_cache, step.block_tables[s], length, H)
            values = _gather(v_cache, step.block_tables[s], length, H)
            out[tokens] = _attend_row(q[tokens].float(), keys, values, scale, window).to(q.dtype)
        return out.view(T, H * h)


def _gather(cache: Tensor, block_table: Tensor, length: int, num_heads: int) -> Tensor:
    """Copy one row's context out of its pages, in float32, a KV head repeated for each of its query heads."""
    P, K = cache.shape[1:3]
    pages = cache[block_table[: -(-length // P)].long()]
    return pages.flatten(0, 1)[:length].float().repeat_interleave(num_heads // K, dim=1)  # (length, H, h)


def _attend_row(q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
    """Attend with the queries (n, H, h) of one row to its whole context (L, H, h)."""
    n, L = q.shape[0], keys.shape[0]
    query_at = torch.arange(L - n, L, device=q.device).unsqueeze(1)  # (n, 1)
    key_at = torch.arange(L, device=q.device)
    visible = key_at <= query_at
    if window is not None:
        visible &= key_at > query_at - window
    scores = torch.einsum("nhd,lhd->hnl", q, keys) * scale
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)  # (H, n, L)
    return torch.einsum("hnl,lhd->nhd", weights, values)
