"""Rows of embedding and head: which tokens they change, by how much, and the same bits in every batch."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from model.adapters.adapter import EmbeddingDelta, TokenRows
from model.backend import Backend, choose_backend, reference_backend
from model.token_rows import EmbeddingLowRank, EmbeddingRows, HeadRows

V, D = 50, 24
BACKENDS = [reference_backend(), choose_backend("cpu", "float32"), choose_backend("cpu", "bfloat16")]
backends = pytest.mark.parametrize("backend", BACKENDS, ids=["reference", "float32", "bfloat16"])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def token_rows(ids: Sequence[int], seed: int = 0) -> TokenRows:
    return TokenRows(torch.tensor(ids, dtype=torch.int64), random(len(ids), D, seed=seed))


@backends
def test_low_rank_deltas_of_a_token_are_summed(backend: Backend) -> None:
    deltas = [
        (EmbeddingDelta(random(V, 3), random(D, 3, seed=1), 0.5), -0.7),
        (EmbeddingDelta(random(V, 5, seed=2).half(), random(D, 5, seed=3).half(), 2.0), 1.5),
    ]
    token_ids = torch.tensor([0, 49, 7, 7])
    got = random(4, D, seed=4)
    want = got.double()
    for delta, scale in deltas:
        want += scale * delta.factor * delta.a.double()[token_ids] @ delta.b.double().T
    EmbeddingLowRank(deltas, backend).add_to(got, token_ids)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


def test_low_rank_deltas_leave_added_tokens_alone() -> None:
    rows = torch.zeros(3, D)
    EmbeddingLowRank([(EmbeddingDelta(random(V, 3), random(D, 3), 1.0), 1.0)], BACKENDS[1]).add_to(
        rows, torch.tensor([50, 49, 1000])
    )
    assert rows.any(1).tolist() == [False, True, False]


@backends
def test_rows_are_added_to_their_tokens_only(backend: Backend) -> None:
    changed = token_rows([0, 7, 49, 60])
    got, before = random(6, D, seed=1), random(6, D, seed=1)
    EmbeddingRows(changed, -0.5, backend).add_to(got, torch.tensor([60, 1, 7, 0, 7, 61]))
    assert torch.equal(got[[1, 5]], before[[1, 5]])
    torch.testing.assert_close(got[[0, 2, 3, 4]], before[[0, 2, 3, 4]] - 0.5 * changed.rows[[3, 1, 0, 1]])


@backends
def test_head_rows_of_all_adapters_are_summed_by_token(backend: Backend) -> None:
    scaled = [(token_rows([2, 9, 51]), 0.5), (token_rows([], seed=1), 1.0), (token_rows([9, 30, 51, 52], seed=2), -2.0)]
    x, logits = random(3, D, seed=3).to(backend.head_ops.dtype), random(3, V + 4, seed=4)
    logits[:, V:] = -torch.inf
    want = logits.double()
    want[:, [51, 52]] = 0
    for changed, scale in scaled:
        want[:, changed.ids] += scale * x.double() @ changed.rows.double().T
    HeadRows(scaled, V, backend).add_to(logits, x)
    assert torch.equal(logits.isinf(), want.isinf())
    torch.testing.assert_close(logits.double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS[1:], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1, 2, 5, 16, 33])
def test_a_token_has_the_same_bits_alone_and_in_any_batch(backend: Backend, size: int) -> None:
    """`size` is the rank, and the number of changed tokens."""
    low_rank = EmbeddingLowRank([(EmbeddingDelta(random(V, size), random(D, size, seed=1), 1.0), 0.3)], backend)
    rows = EmbeddingRows(token_rows(range(0, 2 * size, 2)), 0.7, backend)
    head = HeadRows([(token_rows(range(50 - size, 50)), 0.7)], V, backend)
    token_ids, x = torch.arange(40) % 52, random(40, D, seed=2)
    together, logits = random(40, D, seed=3), random(40, V, seed=4)
    embedded, extended = together.clone(), logits.clone()
    for change in (low_rank, rows):
        change.add_to(embedded, token_ids)
    head.add_to(extended, x)
    for i in range(40):
        for count in (1, 2, 3):
            part, part_logits = together[i : i + count].clone(), logits[i : i + count].clone()
            for change in (low_rank, rows):
                change.add_to(part, token_ids[i : i + count])
            head.add_to(part_logits, x[i : i + count])
            assert torch.equal(part, embedded[i : i + count])
            assert torch.equal(part_logits, extended[i : i + count])
