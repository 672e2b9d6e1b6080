"""The kernels between int8 products against plain torch: codes within a level, and the same bits in any batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from model.kernels_int8 import Int8Ops, quantise
from model.layers import Ops, TorchOps
from model.scaled_rows import Rows, ScaledRows
from tests.model.int8 import integers, meant, random_values

DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-5
REFERENCE = TorchOps(torch.float32)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_quantised(got: ScaledRows, exact: Tensor) -> None:
    """The highest of each row of `exact` (T, n) is 127 of its levels, and the others are rounded to such."""
    peaks = exact.double().abs().amax(dim=1)
    torch.testing.assert_close(got.scales.double(), peaks / 127, rtol=1e-5, atol=1e-9)
    assert (integers(got).abs().amax(dim=1) == torch.where(peaks > 0, 127, 0)).all()
    assert ((meant(got) - exact.double()).abs() <= 0.501 * got.scales.double().unsqueeze(1)).all()


def same_in_any_batch(compute: Callable[[Tensor], ScaledRows], T: int) -> None:
    together = compute(torch.arange(T))
    for rows in (torch.tensor([0]), torch.tensor([T // 2]), torch.tensor([T - 1, 0, T // 3]), torch.arange(T - 64, T)):
        got = compute(rows)
        assert torch.equal(got.values, together.values[rows])
        assert torch.equal(got.scales, together.scales[rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "n"), [(1, 576), (5, 40), (3, 7), (200, 576)])
def test_quantises_each_row_by_its_own_peak(T: int, n: int, dtype: torch.dtype) -> None:
    x = (rand(T, n) * torch.logspace(-3, 3, T).unsqueeze(1)).to(dtype)
    assert_quantised(quantise(x), x)


def test_rounds_to_nearest_and_ties_to_even() -> None:
    x = torch.tensor([[127, 0.5, 1.5, -0.5, -1.5, 2.5, 0.49, -126.6, 0]])
    assert integers(quantise(x)).tolist() == [[127, 0, 2, 0, -2, 2, 0, -127, 0]]


def test_a_row_of_zeros_is_zeros() -> None:
    got = quantise(torch.zeros(2, 20))
    assert not integers(got).any()
    assert (got.scales > 0).all()
    assert got.scales.isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_gets_no_number_for_scale(value: float) -> None:
    x = rand(3, 40)
    x[1, 17] = value
    assert quantise(x).scales.isnan().tolist() == [False, True, False]
    normed = Int8Ops(torch.float32).add_rms_norm(x.clone(), None, torch.ones(40), EPS)
    assert normed.scales.isnan().tolist() == [False, True, False]
    gated = Int8Ops(torch.float32).silu_mul(ScaledRows(x, torch.ones(3)))
    assert gated.scales.isnan().tolist()[::2] == [False, False]
    assert not gated.scales[1].isfinite() or value == float("-inf")  # silu(-inf) is a limit: 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_y_norm", [False, True])
@pytest.mark.parametrize(("T", "D"), [(1, 576), (5, 40), (3, 7), (200, 576)])
def test_add_rms_norm_adds_what_is_meant_and_norms(T: int, D: int, with_y_norm: bool, dtype: torch.dtype) -> None:
    y, weight = random_values(T, D, dtype), rand(D, seed=1)
    y_norm = rand(D, seed=2) if with_y_norm else None
    residual = rand(T, D, seed=3) * 3
    expected_residual = residual.clone()
    expected = REFERENCE.add_rms_norm(expected_residual, meant(y).float(), weight, EPS, y_norm)
    assert_quantised(Int8Ops(dtype).add_rms_norm(residual, y, weight, EPS, y_norm), expected)
    torch.testing.assert_close(residual, expected_residual, rtol=1e-5, atol=1e-5)


def test_add_rms_norm_without_addend_leaves_the_residual() -> None:
    residual, weight = rand(3, 64), rand(64, seed=1)
    before = residual.clone()
    got = Int8Ops(torch.bfloat16).add_rms_norm(residual, None, weight, EPS)
    assert_quantised(got, REFERENCE.add_rms_norm(before, None, weight, EPS))
    assert torch.equal(residual, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", ["silu", "gelu"])
@pytest.mark.parametrize(("T", "F"), [(1, 1536), (4, 24), (2, 5), (60, 1536)])
def test_gates_what_is_meant(T: int, F: int, gate: str, dtype: torch.dtype) -> None:
    rows = random_values(T, 2 * F, dtype)
    ops, exact = Int8Ops(dtype), meant(rows).float()
    if gate == "silu":
        assert_quantised(ops.silu_mul(rows), REFERENCE.silu_mul(exact))
    else:
        assert_quantised(ops.gelu_mul(rows), REFERENCE.gelu_mul(exact))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_have_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    ops, T = Int8Ops(dtype), 150
    residual, y, weight = rand(T, 576), random_values(T, 576, dtype), rand(576, seed=1)
    gate_up, x = random_values(T, 3072, dtype), rand(T, 576, seed=2).to(dtype)
    same_in_any_batch(lambda rows: ops.add_rms_norm(residual[rows], y[rows], weight, EPS), T)
    same_in_any_batch(lambda rows: ops.add_rms_norm(residual[rows], y[rows], weight, EPS, weight), T)
    same_in_any_batch(lambda rows: ops.silu_mul(gate_up[rows]), T)
    same_in_any_batch(lambda rows: ops.gelu_mul(gate_up[rows]), T)
    same_in_any_batch(lambda rows: quantise(x[rows]), T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
def test_rope_store_rotates_what_is_meant(normed: bool, dtype: torch.dtype) -> None:
    T, H, K, h = 7, 4, 2, 24
    qkv = random_values(T, (H + 2 * K) * h, dtype)
    cos, sin, slots = rand(T, h // 2, seed=1), rand(T, h // 2, seed=2), torch.randperm(48)[:T]
    q_norm, k_norm = (rand(h, seed=3), rand(h, seed=4)) if normed else (None, None)

    def run(ops: Ops, rows: Rows, dtype: torch.dtype) -> list[Tensor]:
        k_cache, v_cache = torch.zeros(3, 16, K, h, dtype=dtype), torch.zeros(3, 16, K, h, dtype=dtype)
        q = ops.rope_store(rows, cos, sin, q_norm, k_norm, EPS, k_cache, v_cache, slots)
        return [q, k_cache, v_cache]

    expected = run(REFERENCE, meant(qkv).float(), torch.float32)
    tolerance = 2.0**-8 if dtype == torch.bfloat16 else 1e-5
    for got, want in zip(run(Int8Ops(dtype), qkv, dtype), expected, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.float(), want, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [0, 5])
def test_low_rank_changes_what_is_meant(rank: int, dtype: torch.dtype) -> None:
    T, n, out = 21, 40, 70
    x, y = quantise(rand(T, n)), random_values(T, out, dtype)
    y = ScaledRows(y.values, x.scales)
    a, b, gain, offset = rand(rank, n, seed=1), rand(out, rank, seed=2), rand(out, seed=3), rand(out, seed=4) * 10
    expected = gain.double() * meant(y) + offset.double() + meant(x) @ a.double().t() @ b.double().t()
    Int8Ops(dtype).low_rank(a, b, gain, offset).add_to(y, x)
    tolerance = 2.0**-8 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(meant(y), expected, rtol=tolerance, atol=1e-4)
