"""Attention calls over scattered pages, for tests of attention and kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.attention import AttentionStep
from model.runner import step_tensors
from scheduler.batch import BLOCK_SIZE, Row
from tests.model.decoding import scattered_tables


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
    num_blocks, tables = scattered_tables([context for context, _ in lengths], seed)
    rows = tuple(
        Row(i, (0,) * queries, context - queries, table, sampling=None)
        for i, ((context, queries), table) in enumerate(zip(lengths, tables, strict=True))
    )
    _, step, _ = step_tensors(rows, torch.device("cpu"))
    shape = (num_blocks, BLOCK_SIZE, num_kv_heads, head_dim)
    return Case(
        q=torch.randn(len(step.slots), num_heads, head_dim, generator=generator).to(dtype),
        k_cache=torch.randn(shape, generator=generator).to(dtype),
        v_cache=torch.randn(shape, generator=generator).to(dtype),
        step=step,
        scale=head_dim**-0.5,
    )
