"""The dense reference against torch's own attention on contiguous keys and values."""

import pytest
import torch
from torch.nn import functional as F

from model.attention import DenseAttention
from scheduler.batch import BLOCK_SIZE
from tests.model.steps import Case, random_case

RAGGED = [(1, 1), (16, 16), (17, 1), (40, 7), (33, 33), (64, 3)]
"""(context, queries): a first token, whole prompts, decode rows, chunks; at, before and after the borders of blocks."""


def contiguous(case: Case, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Read a row's keys and values token by token, straight from the definition of the layout."""
    table, length = case.step.block_tables[row].tolist(), int(case.step.context_lens[row])
    places = [(table[p // BLOCK_SIZE], p % BLOCK_SIZE) for p in range(length)]
    return tuple(torch.stack([cache[block, at] for block, at in places]) for cache in (case.k_cache, case.v_cache))  # type: ignore[return-value]


@pytest.mark.parametrize("window", [None, 1, 5, 16, 100])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 2), (3, 1)])
def test_agrees_with_torch_on_each_row(num_heads: int, num_kv_heads: int, window: int | None) -> None:
    case = random_case(RAGGED, num_heads=num_heads, num_kv_heads=num_kv_heads)
    got = DenseAttention().attend(case.q, case.k_cache, case.v_cache, case.step, case.scale, window)
    assert got.shape == (len(case.q), num_heads * 32)
    for s, (context, queries) in enumerate(RAGGED):
        begin = int(case.step.query_starts[s])
        keys, values = contiguous(case, s)
        at = torch.arange(context - queries, context)[:, None] - torch.arange(context)
        visible = (at >= 0) & (at < (window or context))
        want = F.scaled_dot_product_attention(
            case.q[begin : begin + queries].transpose(0, 1),
            keys.transpose(0, 1).repeat_interleave(num_heads // num_kv_heads, 0),
            values.transpose(0, 1).repeat_interleave(num_heads // num_kv_heads, 0),
            attn_mask=visible,
            scale=case.scale,
        )  # (H, queries, h)
        torch.testing.assert_close(got[begin : begin + queries], want.transpose(0, 1).flatten(1), atol=1e-5, rtol=0)


def test_a_window_of_one_returns_the_tokens_own_value() -> None:
    case = random_case([(20, 1)], num_heads=1, num_kv_heads=1)
    _, values = contiguous(case, 0)
    got = DenseAttention().attend(case.q, case.k_cache, case.v_cache, case.step, case.scale, 1)
    assert torch.equal(got[0], values[19, 0])


def test_what_lies_behind_the_context_does_not_matter() -> None:
    case = random_case([(21, 4)])
    before = DenseAttention().attend(case.q, case.k_cache, case.v_cache, case.step, case.scale, None)
    last_block = int(case.step.block_tables[0, 1])
    for cache in (case.k_cache, case.v_cache):
        cache[last_block, 21 - BLOCK_SIZE :] = float("nan")
    after = DenseAttention().attend(case.q, case.k_cache, case.v_cache, case.step, case.scale, None)
    assert torch.equal(before, after)


def test_keeps_the_dtype_and_rounds_once() -> None:
    case = random_case(RAGGED, dtype=torch.bfloat16)
    got = DenseAttention().attend(case.q, case.k_cache, case.v_cache, case.step, case.scale, None)
    q, k_cache, v_cache = case.q.float(), case.k_cache.float(), case.v_cache.float()
    exact = DenseAttention().attend(q, k_cache, v_cache, case.step, case.scale, None)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, exact.bfloat16())
