"""The reference operations against transformers' modules and plain formulas; each row by itself, bit for bit."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from model.layers import RotaryTable, TorchOps

DTYPES = [torch.float32, torch.bfloat16]
H, K, HEAD_DIM, NUM_BLOCKS, BLOCK = 4, 2, 16, 3, 16


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ulps(dtype: torch.dtype) -> float:
    """Allow one rounding of the result."""
    return 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_adds_in_place_and_norms_the_sum(dtype: torch.dtype) -> None:
    residual, y, weight = rand(5, 48), rand(5, 48, dtype=dtype, seed=1), rand(48, seed=2)
    total = residual + y.float()
    oracle = LlamaRMSNorm(48, eps=1e-5)
    oracle.weight.data = weight
    got = TorchOps(dtype).add_rms_norm(residual, y, weight, 1e-5)
    assert got.dtype == dtype
    assert torch.equal(residual, total)
    torch.testing.assert_close(got.float(), oracle(total).detach(), atol=1e-6, rtol=ulps(dtype))


def test_add_rms_norm_without_a_summand_leaves_the_residual() -> None:
    residual, weight = rand(3, 48), rand(48, seed=2)
    before = residual.clone()
    got = TorchOps(torch.float32).add_rms_norm(residual, None, weight, 1e-5)
    assert torch.equal(residual, before)
    assert torch.equal(got, TorchOps(torch.float32).add_rms_norm(before, torch.zeros(3, 48), weight, 1e-5))


def test_epsilon_keeps_a_zero_row_finite() -> None:
    got = TorchOps(torch.float32).add_rms_norm(torch.zeros(1, 8), None, torch.ones(8), 1e-5)
    assert torch.equal(got, torch.zeros(1, 8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul_gates_with_the_first_half(dtype: torch.dtype) -> None:
    gate, up = rand(4, 24, dtype=dtype), rand(4, 24, dtype=dtype, seed=1)
    got = TorchOps(dtype).silu_mul(torch.cat((gate, up), dim=1))
    want = gate.double() / (1 + (-gate.double()).exp()) * up.double()
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=ulps(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_mul_gates_in_the_tanh_form(dtype: torch.dtype) -> None:
    gate, up = rand(4, 24, dtype=dtype), rand(4, 24, dtype=dtype, seed=1)
    got = TorchOps(dtype).gelu_mul(torch.cat((gate, up), dim=1))
    x = gate.double()
    want = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) * up.double()
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=ulps(dtype))


def test_the_addend_is_normed_by_itself_where_it_has_a_norm() -> None:
    residual, y, weight, y_norm = rand(3, 48), rand(3, 48, seed=1), rand(48, seed=2), rand(48, seed=3)
    normed = TorchOps(torch.float32).add_rms_norm(y.clone(), None, y_norm, 1e-5)
    wanted = TorchOps(torch.float32).add_rms_norm(residual + normed, None, weight, 1e-5)
    assert torch.equal(TorchOps(torch.float32).add_rms_norm(residual, y, weight, 1e-5, y_norm), wanted)


@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_store_rotates_as_transformers_does_and_writes_at_the_slots(dtype: torch.dtype, with_norms: bool) -> None:
    T = 5
    positions, slots = torch.tensor([[0, 1, 7, 300, 4]]), torch.tensor([40, 3, 17, 16, 0])
    rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=H * HEAD_DIM, num_attention_heads=H))
    full_cos, full_sin = rotary(rand(1), positions)  # (1, T, h): each half twice
    q_norm, k_norm = (rand(HEAD_DIM, seed=3), rand(HEAD_DIM, seed=4)) if with_norms else (None, None)
    qkv = rand(T, (H + 2 * K) * HEAD_DIM, dtype=dtype)
    caches = torch.full((2, NUM_BLOCKS, BLOCK, K, HEAD_DIM), 7.0, dtype=dtype)

    cos, sin = full_cos[0, :, : HEAD_DIM // 2], full_sin[0, :, : HEAD_DIM // 2]
    q = TorchOps(dtype).rope_store(qkv, cos, sin, q_norm, k_norm, 1e-5, caches[0], caches[1], slots)

    heads = qkv.float().view(1, T, -1, HEAD_DIM).transpose(1, 2)  # (1, heads, T, h)
    want_q, want_k, want_v = heads[:, :H], heads[:, H : H + K], heads[:, H + K :]
    if q_norm is not None and k_norm is not None:
        want_q, want_k = normed(want_q, q_norm), normed(want_k, k_norm)
    want_q, want_k = apply_rotary_pos_emb(want_q, want_k, full_cos, full_sin)
    stored_k, stored_v = caches.view(2, -1, K, HEAD_DIM)[:, slots]
    assert q.dtype == dtype
    for got, want in ((q, want_q), (stored_k, want_k), (stored_v, want_v)):
        torch.testing.assert_close(got.float(), want[0].transpose(0, 1), atol=ulps(dtype), rtol=ulps(dtype))
    untouched = torch.ones(NUM_BLOCKS * BLOCK, dtype=torch.bool).index_fill(0, slots, False)
    assert bool((caches.view(2, -1, K, HEAD_DIM)[:, untouched] == 7.0).all())


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [576, 100])
def test_norms_treat_a_row_alike_in_every_batch(dtype: torch.dtype, width: int) -> None:
    ops, weight = TorchOps(dtype), rand(width, seed=2)
    residual, y = rand(256, width), rand(256, width, dtype=dtype, seed=1)
    together = ops.add_rms_norm(residual.clone(), y, weight, 1e-5)
    for count in (1, 2, 3, 17, 100):
        some = ops.add_rms_norm(residual[5 : 5 + count].clone(), y[5 : 5 + count], weight, 1e-5)
        assert torch.equal(some, together[5 : 5 + count])


def test_rotary_table_agrees_with_transformers() -> None:
    rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=H * HEAD_DIM, num_attention_heads=H))
    positions = torch.tensor([0, 1, 31, 2047, 2048, 5000])
    cos, sin = rotary(rand(1), positions[None])
    table = RotaryTable(rotary.inv_freq, 1.0, torch.device("cpu"))
    got_cos, got_sin = table.at(positions, 5001)
    torch.testing.assert_close(got_cos, cos[0, :, : HEAD_DIM // 2], atol=1e-7, rtol=0)
    torch.testing.assert_close(got_sin, sin[0, :, : HEAD_DIM // 2], atol=1e-7, rtol=0)


def test_a_position_has_the_same_angles_whatever_was_asked_before() -> None:
    frequencies = torch.tensor([1.0, 0.1, 0.013])
    grown, fresh = (RotaryTable(frequencies, 1.0, torch.device("cpu")) for _ in range(2))
    for end in (1, 2048, 2049, 6000):
        grown.at(torch.tensor([0]), end)
    positions = torch.tensor([3, 2049, 5999])
    assert all(map(torch.equal, grown.at(positions, 6000), fresh.at(positions, 6000)))


def test_rotary_magnitude_multiplies_cosine_and_sine() -> None:
    plain, scaled = (RotaryTable(torch.tensor([0.5]), m, torch.device("cpu")) for m in (1.0, 1.5))
    at = torch.tensor([0, 3])
    assert all(torch.equal(b, 1.5 * a) for a, b in zip(plain.at(at, 4), scaled.at(at, 4), strict=True))
