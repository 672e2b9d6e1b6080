"""The vector arithmetic of the CPU kernels against numpy in float64 and torch's own rounding."""

import numpy as np
import torch
from numpy.typing import NDArray

from model.cpu.jit import compiled
from model.cpu.simd import WIDTH, Array, exp, load, load_upto, store, store_upto, transpose

Floats = NDArray[np.float32]


@compiled
def _exp_all(x: Array, out: Array) -> None:
    for i in range(0, x.size, WIDTH):
        store(out, i, exp(load(x, i)))


@compiled
def _copy(x: Array, out: Array) -> None:
    for i in range(0, x.size, WIDTH):
        store_upto(out, i, load_upto(x, i, x.size - i), x.size - i)


@compiled
def _transpose(x: Array, start: int, stride: int, out: Array, index: int, pitch: int) -> None:
    transpose(x, start, stride, out, index, pitch)


def _exp(x: Floats) -> Floats:
    out = np.full_like(x, np.nan)
    _exp_all(x, out)
    return out


def test_exp_is_within_2e_7_of_the_true_value_wherever_it_is_a_normal_number() -> None:
    x = np.linspace(-87.33, 88, 1 << 20, dtype=np.float32)
    true = np.exp(x.astype(np.float64))
    assert np.max(np.abs(_exp(x) - true) / true) < 2e-7


def test_exp_is_exact_at_0_and_saturates_at_the_ends() -> None:
    x = np.zeros(WIDTH, np.float32)
    x[:6] = 0, -0.0, -np.inf, -88, 1000, np.nan
    out = _exp(x)
    assert out[:4].tolist() == [1, 1, 0, 0]
    assert out[4] == _exp(np.full(WIDTH, 88, np.float32))[0]
    assert np.isnan(out[5])


def test_storing_bfloat16_rounds_as_torch_does_for_every_kind_of_number() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    ties = (bits & 0xFFFF0000) | 0x8000
    special = np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 1, 0x7FFFFFFF, 0x7F800001], np.uint32)
    x = np.concatenate([bits, ties, special]).view(np.float32)
    out = np.empty(x.size, np.uint16)
    _copy(x, out)
    expected = torch.from_numpy(x).to(torch.bfloat16)
    got = torch.from_numpy(out).view(torch.bfloat16)
    assert torch.equal(got.isnan(), expected.isnan())
    number = ~expected.isnan()
    assert torch.equal(got[number].view(torch.int16), expected[number].view(torch.int16))


def test_loading_bfloat16_is_exact_and_partial_vectors_touch_nothing_else() -> None:
    for size in (1, 7, 16, 21):
        x = torch.randn(size).to(torch.bfloat16)
        out = np.full(size + 3, -5, np.float32)
        _copy(x.view(torch.uint16).numpy(), out[:size])
        assert out[:size].tolist() == x.tolist()
        assert out[size:].tolist() == [-5, -5, -5]


def test_transpose_turns_rows_of_either_type_into_columns() -> None:
    x = torch.randn(16, 40)
    out = np.zeros((33, 20), np.float32)
    _transpose(x.numpy(), 3, 40, out, 20 + 2, 20)
    assert np.array_equal(out[1:17, 2:18], x[:, 3:19].numpy().T)
    half = x.to(torch.bfloat16)
    _transpose(half.view(torch.uint16).numpy(), 3, 40, out, 20 + 2, 20)
    assert np.array_equal(out[1:33, 2:18], half[:, 3:35].float().numpy().T)
