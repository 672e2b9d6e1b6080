"""The glue around the flash kernels, over stand-ins on the CPU; the kernels themselves where there is a GPU."""

import pytest
import torch
from torch import Tensor

from model.attention import Attention, AttentionStep, DenseAttention
from model.attention_flash import (
    AttentionUnavailable,
    FlashAttention,
    TorchVarlenAttention,
    check_against_reference,
    cuda_attention,
)
from tests.model.flash_stand_in import flash_attn_varlen_func, varlen_attn
from tests.model.steps import random_case

DECODE = [(1, 1), (16, 1), (17, 1), (35, 1)]
MIXED = [(40, 1), (3, 1), (37, 4), (20, 16), (18, 18)]
"""Decode rows, chunks in the middle of a prompt, whole prompts."""


def _both() -> list[Attention]:
    return [FlashAttention(flash_attn_varlen_func), TorchVarlenAttention(varlen_attn)]


@pytest.mark.parametrize("attention", _both(), ids=["vllm", "torch"])
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("lengths", [DECODE, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (6, 2)])
def test_agrees_with_the_reference(
    attention: Attention, lengths: list[tuple[int, int]], num_heads: int, num_kv_heads: int, window: int | None
) -> None:
    case = random_case(lengths, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=16)
    args = (case.q, case.k_cache, case.v_cache, case.step, case.scale, window)
    torch.testing.assert_close(attention.attend(*args), DenseAttention().attend(*args), atol=1e-5, rtol=0)


class _Recording:
    """Keeps the running sums it is called with."""

    def __init__(self) -> None:
        self.context_starts: list[Tensor] = []

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        block_table: Tensor,
    ) -> Tensor:
        self.context_starts.append(cu_seqlens_k)
        return q


def test_sums_the_context_lengths_once_per_step() -> None:
    recording = _Recording()
    attention = FlashAttention(recording)
    first, second = random_case([(20, 1), (7, 7)]), random_case([(9, 2)])
    for case in (first, first, second):
        attention.attend(case.q, case.k_cache, case.v_cache, case.step, case.scale, None)
    assert [starts.tolist() for starts in recording.context_starts] == [[0, 20, 27], [0, 20, 27], [0, 9]]
    assert recording.context_starts[0] is recording.context_starts[1]


def test_a_right_kernel_passes_the_check() -> None:
    for attention in _both():
        check_against_reference(attention, torch.device("cpu"), torch.bfloat16)


class _Wrong:
    """Counts the causal mask from the top left."""

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: AttentionStep, scale: float, window: int | None
    ) -> Tensor:
        return DenseAttention().attend(q.flip(0), k_cache, v_cache, step, scale, window)


class _Refusing:
    """Takes pages of 256 tokens only."""

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: AttentionStep, scale: float, window: int | None
    ) -> Tensor:
        raise RuntimeError("page_block_size must be a multiple of 256")


def test_a_wrong_kernel_fails_the_check() -> None:
    with pytest.raises(AttentionUnavailable, match="_Wrong differs from the reference by"):
        check_against_reference(_Wrong(), torch.device("cpu"), torch.float32)


def test_a_kernel_that_refuses_the_pages_is_named_with_its_reason() -> None:
    with pytest.raises(AttentionUnavailable, match=r"_Refusing refuses .* 16 tokens: page_block_size must"):
        check_against_reference(_Refusing(), torch.device("cpu"), torch.float32)


def test_without_a_kernel_the_error_says_what_would_work() -> None:
    with pytest.raises(AttentionUnavailable, match=r"no attention kernel for cpu: .*[Ff]lash.*; .*[Vv]arlen"):
        cuda_attention(torch.device("cpu"), torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("lengths", [DECODE, MIXED], ids=["decode", "mixed"])
def test_the_kernel_on_the_card_agrees_with_the_reference(lengths: list[tuple[int, int]], window: int | None) -> None:
    device = torch.device("cuda")
    case = random_case(lengths, head_dim=64, dtype=torch.bfloat16)
    want = DenseAttention().attend(case.q, case.k_cache, case.v_cache, case.step, case.scale, window)
    step = AttentionStep(
        query_starts=case.step.query_starts.to(device),
        context_lens=case.step.context_lens.to(device),
        block_tables=case.step.block_tables.to(device),
        max_query=case.step.max_query,
        max_context=case.step.max_context,
        slots=case.step.slots.to(device),
        positions=case.step.positions.to(device),
    )
    q, k_cache, v_cache = (tensor.to(device) for tensor in (case.q, case.k_cache, case.v_cache))
    got = cuda_attention(device, torch.bfloat16).attend(q, k_cache, v_cache, step, case.scale, window)
    torch.testing.assert_close(got.cpu().float(), want.float(), atol=0.02, rtol=0)
