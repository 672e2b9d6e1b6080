"""Steps over scattered pages, for tests of attention and kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.attention import AttentionStep
from model.runner import step_tensors
from scheduler.batch import BLOCK_SIZE, Row


@dataclass(frozen=True, slots=True)
class Case:
    """Queries, caches and step of one attention call."""

    q: Tensor  # (T, H, h)
    k_cache: Tensor  # (N, P, K, h)
    v_cache: Tensor  # (N, P, K, h)
    step: AttentionStep
    scale: float


def random_case(
    lengths: Sequence[tuple[int, int]],
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """Make random rows of (context length, query tokens), their pages scattered over a cache full of random numbers."""
    generator = torch.Generator().manual_seed(seed)
    rows = scattered_rows([(context - queries, [0] * queries) for context, queries in lengths], seed)
    num_blocks = 1 + max(block for row in rows for block in row.block_table)
    _, step, _ = step_tensors(rows, torch.device("cpu"))
    shape = (num_blocks, BLOCK_SIZE, num_kv_heads, head_dim)
    return Case(
        q=torch.randn(len(step.slots), num_heads, head_dim, generator=generator).to(dtype),
        k_cache=torch.randn(shape, generator=generator).to(dtype),
        v_cache=torch.randn(shape, generator=generator).to(dtype),
        step=step,
        scale=head_dim**-0.5,
    )


def scattered_rows(starts_and_tokens: Sequence[tuple[int, Sequence[int]]], seed: int = 0) -> tuple[Row, ...]:
    """Make rows of (start, token ids), each with just enough blocks, in random places."""
    counts = [-(-(start + len(tokens)) // BLOCK_SIZE) for start, tokens in starts_and_tokens]
    blocks = torch.randperm(2 * sum(counts), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = []
    for i, ((start, tokens), count) in enumerate(zip(starts_and_tokens, counts, strict=True)):
        table, blocks = tuple(blocks[:count]), blocks[count:]
        rows.append(Row(request_id=i, token_ids=tuple(tokens), start=start, block_table=table, sampling=None))
    return tuple(rows)
