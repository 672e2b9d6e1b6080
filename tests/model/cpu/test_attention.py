"""Paged attention on CPUs against the dense reference, and bit for bit the same however the work is cut.

Cache slots that no context covers hold NaN throughout: a kernel that reads one cannot stay unnoticed.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.attention import AttentionStep, DenseAttention
from model.cpu.attention import PagedAttention

DTYPES = [torch.float32, torch.bfloat16]
P = 16


@dataclass
class Sequence:
    """One row's queries, keys and values, (L, heads, h) each, and its scattered blocks."""

    q: Tensor
    k: Tensor
    v: Tensor
    blocks: list[int]

    def __len__(self) -> int:
        return len(self.q)


def make_sequences(lengths: list[int], H: int, K: int, h: int, dtype: torch.dtype, seed: int = 0) -> list[Sequence]:
    g = torch.Generator().manual_seed(seed)
    blocks = torch.randperm(sum(-(-L // P) for L in lengths) + 3, generator=g).tolist()
    sequences = []
    for L in lengths:
        q, k, v = (torch.randn(L, heads, h, generator=g).to(dtype) for heads in (H, K, K))
        sequences.append(Sequence(q * 2, k, v, [blocks.pop() for _ in range(-(-L // P))]))
    return sequences


def make_step(rows: list[tuple[Sequence, int, int]]) -> tuple[Tensor, Tensor, Tensor, AttentionStep]:
    """Rows are (sequence, start, end): the queries of this step; the cache holds what precedes `end`, and else NaN."""
    K, h = rows[0][0].k.shape[1:]
    num_blocks = 1 + max(block for sequence, _, _ in rows for block in sequence.blocks)
    k_cache = torch.full((num_blocks, P, K, h), float("nan"), dtype=rows[0][0].k.dtype)
    v_cache = k_cache.clone()
    tables = torch.zeros(len(rows), max(len(sequence.blocks) for sequence, _, _ in rows), dtype=torch.int32)
    slots = []
    for s, (sequence, start, end) in enumerate(rows):
        tables[s, : len(sequence.blocks)] = torch.tensor(sequence.blocks)
        at = torch.tensor([sequence.blocks[p // P] * P + p % P for p in range(end)])
        k_cache.view(-1, K, h)[at] = sequence.k[:end]
        v_cache.view(-1, K, h)[at] = sequence.v[:end]
        slots.append(at[start:])
    lengths = torch.tensor([end - start for _, start, end in rows])
    step = AttentionStep(
        query_starts=torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int()]),
        context_lens=torch.tensor([end for _, _, end in rows], dtype=torch.int32),
        block_tables=tables,
        max_query=int(lengths.max()),
        max_context=max(end for _, _, end in rows),
        slots=torch.cat(slots),
        positions=torch.cat([torch.arange(start, end) for _, start, end in rows]),
    )
    return torch.cat([sequence.q[start:end] for sequence, start, end in rows]), k_cache, v_cache, step


def attend(rows: list[tuple[Sequence, int, int]], window: int | None = None) -> Tensor:
    q, k_cache, v_cache, step = make_step(rows)
    return PagedAttention().attend(q, k_cache, v_cache, step, q.shape[2] ** -0.5, window)


def assert_matches_the_reference(
    rows: list[tuple[Sequence, int, int]], window: int | None, tolerance: float = 3e-5
) -> None:
    q, k_cache, v_cache, step = make_step(rows)
    scale = q.shape[2] ** -0.5
    expected = DenseAttention().attend(q, k_cache, v_cache, step, scale, window)
    got = PagedAttention().attend(q, k_cache, v_cache, step, scale, window)
    assert got.dtype == q.dtype
    rounding = 2.0**-7 if q.dtype == torch.bfloat16 else 0.0
    torch.testing.assert_close(got, expected, rtol=rounding, atol=tolerance)


windows = st.one_of(st.none(), st.integers(1, 150))


@given(
    rows=st.lists(st.tuples(st.integers(0, 180), st.integers(1, 70)), min_size=1, max_size=6),
    heads=st.sampled_from([(1, 1), (9, 3), (4, 4), (7, 1), (8, 2), (80, 1)]),
    h=st.sampled_from([8, 16, 24, 40, 64, 72, 80, 128]),
    window=windows,
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_any_ragged_batch_equals_the_dense_reference(
    rows: list[tuple[int, int]], heads: tuple[int, int], h: int, window: int | None, dtype: torch.dtype, seed: int
) -> None:
    sequences = make_sequences([start + count for start, count in rows], *heads, h, dtype, seed)
    spans = [(sequence, start, len(sequence)) for sequence, (start, _) in zip(sequences, rows, strict=True)]
    assert_matches_the_reference(spans, window)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 300])
def test_the_largest_head_and_a_long_context_equal_the_dense_reference(dtype: torch.dtype, window: int | None) -> None:
    [long, short] = make_sequences([1100, 3], 4, 2, 256, dtype)
    assert_matches_the_reference([(short, 2, 3), (long, 1040, 1100)], window)


@given(
    length=st.integers(1, 260),
    cuts=st.lists(st.integers(1, 259), max_size=5),
    window=windows,
    dtype=st.sampled_from(DTYPES),
    h=st.sampled_from([24, 64]),
)
@settings(max_examples=25, deadline=None)
def test_chunks_of_a_prompt_have_the_bits_of_the_whole(
    length: int, cuts: list[int], window: int | None, dtype: torch.dtype, h: int
) -> None:
    [sequence] = make_sequences([length], 6, 2, h, dtype)
    whole = attend([(sequence, 0, length)], window)
    edges = [0, *sorted({cut for cut in cuts if cut < length}), length]
    chunks = [attend([(sequence, start, end)], window) for start, end in pairwise(edges)]
    assert torch.equal(torch.cat(chunks), whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 40])
def test_decoding_token_by_token_has_the_bits_of_prefill(dtype: torch.dtype, window: int | None) -> None:
    [sequence] = make_sequences([140], 9, 3, 64, dtype)
    whole = attend([(sequence, 0, 140)], window)
    for p in (0, 1, 15, 16, 17, 63, 64, 65, 100, 127, 128, 139):
        assert torch.equal(attend([(sequence, p, p + 1)], window)[0], whole[p]), p


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_at_any_place_in_a_batch(dtype: torch.dtype) -> None:
    sequences = make_sequences([1, 16, 17, 64, 65, 130, 300, 31], 9, 3, 64, dtype)
    counts = [1, 16, 1, 30, 1, 77, 1, 31]
    rows = [(sequence, len(sequence) - count, len(sequence)) for sequence, count in zip(sequences, counts, strict=True)]
    alone = [attend([row]) for row in rows]
    for order in (range(8), range(7, -1, -1), (3, 0, 6, 1, 7, 5, 2, 4)):
        together = attend([rows[i] for i in order])
        assert torch.equal(together, torch.cat([alone[i] for i in order]))


def test_scores_far_apart_neither_overflow_nor_lose_the_maximum() -> None:
    [sequence] = make_sequences([200], 2, 1, 8, torch.float32)
    sequence.q.mul_(100)
    sequence.k[150].mul_(50)  # scores up to 1e5, whose own rounding is 1e-2
    assert_matches_the_reference([(sequence, 100, 200)], None, tolerance=1e-2)


def test_nan_in_a_visible_key_reaches_its_readers_and_nobody_else() -> None:
    sequences = make_sequences([90, 40], 2, 1, 16, torch.float32)
    sequences[0].k[70] = float("nan")
    out = attend([(sequences[0], 0, 90), (sequences[1], 0, 40)])
    assert not out[:70].isnan().any()
    assert out[70:90].isnan().all()
    assert not out[90:].isnan().any()


def test_two_threads_may_attend_at_once() -> None:
    [sequence] = make_sequences([300], 6, 2, 64, torch.float32)
    expected = attend([(sequence, 0, 300)])
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: attend([(sequence, 0, 300)]), range(6)))
    assert all(torch.equal(result, expected) for result in results)
