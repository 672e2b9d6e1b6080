"""The fused CPU kernels against plain torch, bit for bit the same for a row in any batch."""

from collections.abc import Callable

import pytest
import torch
from numba import njit
from torch import Tensor

from model.cpu import kernels as kernels_cpu
from model.cpu.arrays import as_array
from model.cpu.kernels import CpuOps
from model.layers import TorchOps

DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-5


def _close(got: Tensor, expected: Tensor) -> None:
    """Equal up to the rounding of the float32 arithmetic, which may cross a rounding boundary of bfloat16."""
    tolerance = 2.0**-7 if got.dtype == torch.bfloat16 else 2e-6
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=1e-6)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _same_alone_and_in_any_batch(compute: Callable[[Tensor], Tensor], T: int) -> None:
    """`compute` takes indices of rows; large T is split among threads, one row never is."""
    together = compute(torch.arange(T))
    for t in (0, T // 2, T - 1):
        assert torch.equal(compute(torch.tensor([t]))[0], together[t])
    some = torch.tensor([T - 1, 0, T // 3])
    assert torch.equal(compute(some), together[some])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "D"), [(1, 576), (5, 40), (3, 7), (200, 576)])
def test_add_rms_norm_adds_in_place_and_norms(dtype: torch.dtype, T: int, D: int) -> None:
    g = _generator()
    y, weight = torch.randn(T, D, generator=g).to(dtype), torch.randn(D, generator=g)
    residual = torch.randn(T, D, generator=g) * 3
    expected_residual = residual.clone()
    expected = TorchOps(dtype).add_rms_norm(expected_residual, y, weight, EPS)
    _close(CpuOps(dtype).add_rms_norm(residual, y, weight, EPS), expected)
    assert torch.equal(residual, expected_residual)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "D"), [(1, 640), (5, 40), (3, 7), (200, 576)])
def test_add_rms_norm_norms_the_addend_too_where_asked(dtype: torch.dtype, T: int, D: int) -> None:
    g = _generator()
    y, weight, y_norm = (
        torch.randn(T, D, generator=g).to(dtype),
        torch.randn(D, generator=g),
        torch.randn(D, generator=g),
    )
    residual = torch.randn(T, D, generator=g) * 3
    expected_residual = residual.clone()
    expected = TorchOps(dtype).add_rms_norm(expected_residual, y, weight, EPS, y_norm)
    _close(CpuOps(dtype).add_rms_norm(residual, y, weight, EPS, y_norm), expected)
    _close(residual, expected_residual)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_without_addend_leaves_the_residual(dtype: torch.dtype) -> None:
    residual, weight = torch.randn(3, 64, generator=_generator()), torch.ones(64)
    before = residual.clone()
    _close(
        CpuOps(dtype).add_rms_norm(residual, None, weight, EPS), TorchOps(dtype).add_rms_norm(before, None, weight, EPS)
    )
    assert torch.equal(residual, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_add_rms_norm_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    g = _generator()
    residual, y = torch.randn(150, 576, generator=g), torch.randn(150, 576, generator=g).to(dtype)
    weight = torch.randn(576, generator=g)
    _same_alone_and_in_any_batch(
        lambda rows: CpuOps(dtype).add_rms_norm(residual[rows], y[rows], weight, EPS), len(residual)
    )
    _same_alone_and_in_any_batch(
        lambda rows: CpuOps(dtype).add_rms_norm(residual[rows], y[rows], weight, EPS, weight), len(residual)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "F"), [(1, 1536), (4, 24), (2, 5), (60, 1536)])
def test_silu_mul_gates(dtype: torch.dtype, T: int, F: int) -> None:
    gate_up = (torch.randn(T, 2 * F, generator=_generator()) * 8).to(dtype)
    _close(CpuOps(dtype).silu_mul(gate_up), TorchOps(dtype).silu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "F"), [(1, 1536), (4, 24), (2, 5), (60, 1536)])
def test_gelu_mul_gates(dtype: torch.dtype, T: int, F: int) -> None:
    gate_up = (torch.randn(T, 2 * F, generator=_generator()) * 8).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=1)  # in float32, 1 + tanh cancels for very negative gates
    exact = torch.nn.functional.gelu(gate, approximate="tanh") * up
    _close(CpuOps(dtype).gelu_mul(gate_up), exact.to(dtype))


def test_silu_mul_is_right_where_the_exponential_leaves_its_range() -> None:
    gate = torch.tensor([-1e4, -200.0, -100.0, -89.0, -88.5, -0.0, 88.5, 1e4, float("inf")])
    got = CpuOps(torch.float32).silu_mul(torch.cat([gate, torch.ones(9)]).view(1, 18))
    torch.testing.assert_close(got[0], torch.nn.functional.silu(gate), rtol=1e-6, atol=1e-30)


def test_gelu_mul_is_right_where_the_exponential_leaves_its_range() -> None:
    gate = torch.tensor([-1e30, -1e4, -20.0, -8.0, -5.0, -0.0, 5.0, 1e4, 1e30, float("inf")])
    got = CpuOps(torch.float32).gelu_mul(torch.cat([gate, torch.ones(10)]).view(1, 20))
    exact = torch.nn.functional.gelu(gate.double(), approximate="tanh").float()
    torch.testing.assert_close(got[0], exact, rtol=1e-6, atol=1e-7)


def test_gates_pass_nan_on() -> None:
    assert CpuOps(torch.float32).silu_mul(torch.tensor([[float("nan"), 1.0]])).isnan().all()
    assert CpuOps(torch.float32).gelu_mul(torch.tensor([[float("nan"), 1.0]])).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_gate_and_up_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    gate_up = torch.randn(50, 3072, generator=_generator()).to(dtype)
    _same_alone_and_in_any_batch(lambda rows: CpuOps(dtype).silu_mul(gate_up[rows]), len(gate_up))
    _same_alone_and_in_any_batch(lambda rows: CpuOps(dtype).gelu_mul(gate_up[rows]), len(gate_up))


class _Heads:
    """Inputs of `rope_store`: T tokens at scattered slots of a cache full of -1."""

    def __init__(self, T: int, H: int, K: int, h: int, dtype: torch.dtype, normed: bool) -> None:
        g = _generator(h)
        self.dtype, self.K, self.h = dtype, K, h
        self.num_blocks = -(-T // 16) + 2
        self.qkv = torch.randn(T, (H + 2 * K) * h, generator=g).to(dtype)
        self.cos, self.sin = torch.randn(T, h // 2, generator=g), torch.randn(T, h // 2, generator=g)
        self.q_norm = torch.randn(h, generator=g) if normed else None
        self.k_norm = torch.randn(h, generator=g) if normed else None
        self.slots = torch.randperm(self.num_blocks * 16, generator=g)[:T]

    def run(self, ops: CpuOps | TorchOps, rows: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the cache."""
        k_cache = torch.full((self.num_blocks, 16, self.K, self.h), -1, dtype=self.dtype)
        v_cache = k_cache.clone()
        qkv, cos, sin, slots = self.qkv[rows], self.cos[rows], self.sin[rows], self.slots[rows]
        q = ops.rope_store(qkv, cos, sin, self.q_norm, self.k_norm, EPS, k_cache, v_cache, slots)
        return q, k_cache, v_cache


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("T", "H", "K", "h"), [(1, 9, 3, 64), (5, 2, 2, 8), (7, 8, 1, 24), (3, 4, 2, 256), (80, 6, 2, 80)]
)
def test_rope_store_rotates_and_writes_the_cache(
    dtype: torch.dtype, normed: bool, T: int, H: int, K: int, h: int
) -> None:
    case = _Heads(T, H, K, h, dtype, normed)
    got, expected = case.run(CpuOps(dtype)), case.run(TorchOps(dtype))
    _close(got[0], expected[0])
    _close(got[1], expected[1])
    assert torch.equal(got[2], expected[2])
    untouched = torch.ones(case.num_blocks * 16, dtype=torch.bool)
    untouched[case.slots] = False
    assert (got[1].view(-1, K, h)[untouched] == -1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
def test_a_row_of_rope_store_has_the_same_bits_in_any_batch(dtype: torch.dtype, normed: bool) -> None:
    case = _Heads(70, 9, 3, 64, dtype, normed)

    def compute(rows: Tensor) -> Tensor:
        q, k_cache, v_cache = case.run(CpuOps(dtype), rows)
        written = [cache.view(-1, 3, 64)[case.slots[rows]] for cache in (k_cache, v_cache)]
        return torch.cat([q, *written], dim=1)

    _same_alone_and_in_any_batch(compute, 70)


def test_other_dtypes_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"torch\.float16"):
        as_array(torch.zeros(2, dtype=torch.float16))


def test_a_second_process_would_load_the_compiled_kernel_from_disk() -> None:
    CpuOps(torch.float32).silu_mul(torch.zeros(1, 32))  # now at the latest it is compiled
    restarted = njit(nogil=True, cache=True, error_model="numpy")(kernels_cpu._gate_mul.py_func)  # type: ignore[attr-defined]
    restarted(as_array(torch.zeros(1, 32)), False, as_array(torch.zeros(1, 16)), 1)
    assert sum(restarted.stats.cache_hits.values()) == 1
    assert not restarted.stats.cache_misses
