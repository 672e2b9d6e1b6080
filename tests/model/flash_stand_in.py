"""Stand-ins for the flash kernels: what their documentation says of the arguments, in plain loops over torch tensors.

They read only what the real kernels read (a row's length from the running sums, or from seqused_k), and check what
those check. They share no code with `model.attention`.
"""

import torch
from torch import Tensor


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """Stand in for vllm-flash-attn 2.6.2's function of this name, with a block table."""
    assert dropout_p == 0.0
    assert softcap == 0.0
    assert alibi_slopes is None
    assert not return_attn_probs
    assert block_table is not None
    lengths = cu_seqlens_k.diff()
    _check(q, k, v, cu_seqlens_q, block_table, max_seqlen_q, max_seqlen_k, lengths)
    assert cu_seqlens_k.dtype == torch.int32
    assert cu_seqlens_k[0] == 0
    assert len(cu_seqlens_k) == len(cu_seqlens_q)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    left, right = window_size
    return _attend(q, k, v, cu_seqlens_q, lengths, block_table, scale, (left, 0 if causal else right))


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Stand in for torch 2.13's `torch.nn.attention.varlen.varlen_attn`, with a block table."""
    assert return_aux is None
    assert num_splits == 1, "anything else lets a row's bits depend on its neighbours"
    assert enable_gqa or query.shape[1] == key.shape[2], "Try setting enable_gqa=True for GQA."
    assert block_table is not None
    assert seqused_k is not None, "block_table requires seqused_k"
    assert seqused_k.dtype == torch.int32
    _check(query, key, value, cu_seq_q, block_table, max_q, max_k, seqused_k)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return _attend(query, key, value, cu_seq_q, seqused_k, block_table, scale, window_size)


def _check(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, block_table: Tensor, max_q: int, max_k: int, lengths: Tensor
) -> None:
    assert k.shape == v.shape
    assert k.shape[1] % 16 == 0, "Paged KV cache block size must be divisible by 16"
    assert q.shape[1] % k.shape[2] == 0
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert starts.dtype == block_table.dtype == torch.int32
    assert starts[0] == 0
    assert starts[-1] == len(q)
    assert block_table.shape[0] == len(starts) - 1 == len(lengths)
    assert starts.diff().max() <= max_q
    assert lengths.max() <= max_k


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    lengths: Tensor,
    block_table: Tensor,
    scale: float,
    window: tuple[int, int],
) -> Tensor:
    page_size, group = k.shape[1], q.shape[1] // k.shape[2]
    out = torch.empty_like(q)
    for s in range(len(starts) - 1):
        begin, end, length = int(starts[s]), int(starts[s + 1]), int(lengths[s])
        for t in range(begin, end):
            own = length - (end - t)  # aligned at the bottom right
            first = 0 if window[0] < 0 else max(0, own - window[0])
            last = length - 1 if window[1] < 0 else min(length - 1, own + window[1])
            pages = [(int(block_table[s, p // page_size]), p % page_size) for p in range(first, last + 1)]
            for head in range(q.shape[1]):
                keys = torch.stack([k[page, at, head // group].float() for page, at in pages])
                values = torch.stack([v[page, at, head // group].float() for page, at in pages])
                weights = (keys @ q[t, head].float() * scale).softmax(0)
                out[t, head] = (weights @ values).to(q.dtype)
    return out
