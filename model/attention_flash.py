"""Attention on CUDA, on the same block tables: the flash kernels of vllm-flash-attn, or else those inside torch.

Neither has run on a card yet. The tests hold the glue against stand-ins with the documented semantics; one marked `gpu`
compares the real kernels with the dense reference, and `cuda_attention` does so on a small step before it trusts any.
Sources: the docstrings of vllm-flash-attn 2.6.2's `flash_attn_varlen_func` and of torch 2.13's `varlen_attn`.

S rows, T tokens in the step, H query heads, K KV heads, h head size, N blocks, P tokens per block.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention import Attention, AttentionStep, DenseAttention
from scheduler.batch import BLOCK_SIZE


class FlashVarlen(Protocol):
    """The part of vllm-flash-attn 2.6.2's `flash_attn_varlen_func` that is used here.

    With a block table k and v are pages (N, P, K, h), in which row s has cu_seqlens_k[s + 1] - cu_seqlens_k[s] tokens.
    The causal mask is aligned at the bottom right. A window (left, right) is unbounded on a side where it is -1.
    """

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
        """Return the attention (T, H, h)."""
        ...


class FlashAttention:
    """vllm-flash-attn: float16 and bfloat16, h up to 256, P a multiple of 16, Ampere or newer."""

    def __init__(self, flash_varlen: FlashVarlen) -> None:
        self._flash_varlen = flash_varlen
        self._step: AttentionStep | None = None
        self._context_starts: Tensor | None = None

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: AttentionStep, scale: float, window: int | None
    ) -> Tensor:
        out = self._flash_varlen(
            q,
            k_cache,
            v_cache,
            step.query_starts,
            self._starts(step),
            step.max_query,
            step.max_context,
            softmax_scale=scale,
            causal=True,
            window_size=(_tokens_to_the_left(window), 0),
            block_table=step.block_tables,
        )  # (T, H, h)
        return out.flatten(1)

    def _starts(self, step: AttentionStep) -> Tensor:
        """Return the running sum of the context lengths (S + 1,), formed once per step and not in every layer."""
        if self._context_starts is None or step is not self._step:
            self._step = step
            self._context_starts = F.pad(step.context_lens.cumsum(0, dtype=torch.int32), (1, 0))
        return self._context_starts


class TorchVarlen(Protocol):
    """The part of `torch.nn.attention.varlen.varlen_attn` that is used here; it takes pages since torch 2.12.

    With a block table key and value are pages (N, P, K, h), in which row s has seqused_k[s] tokens. A window (-1, 0) is
    the causal mask, (w, 0) the causal mask with w tokens to the left. num_splits 1 keeps a row's sums in one order
    whatever its neighbours.
    """

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        scale: float,
        window_size: tuple[int, int],
        enable_gqa: bool,
        seqused_k: Tensor,
        block_table: Tensor,
        num_splits: int,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the attention (T, H, h), alone unless more is asked for."""
        ...


class TorchVarlenAttention:
    """The flash kernels that torch brings. Which page sizes they take depends on the kernel and the card."""

    def __init__(self, varlen: TorchVarlen) -> None:
        self._varlen = varlen

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: AttentionStep, scale: float, window: int | None
    ) -> Tensor:
        out = self._varlen(
            q,
            k_cache,
            v_cache,
            step.query_starts,
            None,
            step.max_query,
            step.max_context,
            scale=scale,
            window_size=(_tokens_to_the_left(window), 0),
            enable_gqa=q.shape[1] != k_cache.shape[2],
            seqused_k=step.context_lens,
            block_table=step.block_tables,
            num_splits=1,
        )  # (T, H, h)
        assert isinstance(out, Tensor)
        return out.flatten(1)


class AttentionUnavailable(RuntimeError):
    """No flash kernel runs here. The message says what each lacks and what would work."""


def cuda_attention(device: torch.device, dtype: torch.dtype) -> Attention:
    """Return the first flash kernel that is installed and right on this device, for float16 or bfloat16.

    Raises AttentionUnavailable.
    """
    faults = []
    for load in (_vllm_flash, _torch_varlen):
        try:
            attention = load()
            check_against_reference(attention, device, dtype)
            return attention
        except AttentionUnavailable as fault:
            faults.append(str(fault))
    raise AttentionUnavailable(f"no attention kernel for {device}: {'; '.join(faults)}")


def check_against_reference(attention: Attention, device: torch.device, dtype: torch.dtype) -> None:
    """Run a small step (one row decodes, one prefills its end) and compare. Raises AttentionUnavailable."""
    name = type(attention).__name__
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(6, 4, 64, generator=generator).to(device, dtype)  # (T, H, h)
    k_cache, v_cache = torch.randn(2, 4, BLOCK_SIZE, 2, 64, generator=generator).to(device, dtype)  # (N, P, K, h) each
    step = AttentionStep(
        query_starts=torch.tensor([0, 1, 6], dtype=torch.int32, device=device),
        context_lens=torch.tensor([9, 20], dtype=torch.int32, device=device),
        block_tables=torch.tensor([[2, 0], [3, 1]], dtype=torch.int32, device=device),
        max_query=5,
        max_context=20,
        slots=torch.zeros(6, dtype=torch.int64, device=device),  # attention reads neither these nor the positions
        positions=torch.zeros(6, dtype=torch.int64, device=device),
    )
    want = DenseAttention().attend(q, k_cache, v_cache, step, 0.125, None)
    try:
        got = attention.attend(q, k_cache, v_cache, step, 0.125, None)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]  # torch adds its whole dispatch table
        raise AttentionUnavailable(f"{name} refuses a step with pages of {BLOCK_SIZE} tokens: {reason}") from error
    difference = (got.float() - want.float()).abs().max().item()
    if not difference < 0.02:
        raise AttentionUnavailable(
            f"{name} differs from the reference by {difference:.3g} with pages of {BLOCK_SIZE} tokens"
        )


def _vllm_flash() -> Attention:
    try:
        from vllm_flash_attn import flash_attn_varlen_func
    except ImportError as error:
        wanted = "pip install 'cohort-server[cuda]' with Python 3.11 and torch 2.4"
        raise AttentionUnavailable(f"vllm-flash-attn cannot be imported ({error}): {wanted}") from error
    return FlashAttention(flash_attn_varlen_func)


def _torch_varlen() -> Attention:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise AttentionUnavailable(f"torch {torch.__version__} has no varlen_attn, 2.12 or newer has") from error
    return TorchVarlenAttention(varlen_attn)


def _tokens_to_the_left(window: int | None) -> int:
    """How far a query sees back, itself not counted; -1 where there is no bound."""
    return -1 if window is None else window - 1
