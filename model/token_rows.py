"""What an adapter list changes in the rows of embedding and head: low-rank deltas, and rows of single tokens.

Tokens without changes cost a look-up by id; nothing has the size of the vocabulary but what an adapter brings itself.
Tokens that the base model does not have are rows of zeros there, and only rows of adapters make them. Each row is
computed in one order of operations, so it has the same bits whatever its neighbours. Knows no files and no model.

T tokens in the step, S rows of logits, R rank of the whole list, D hidden, V the base model's vocabulary; n changed
tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from model.adapters.adapter import EmbeddingDelta, TokenRows
from model.backend import Backend
from model.linear import pack_linear


class EmbeddingLowRank:
    """The low-rank deltas of a list on the embedding: Σ scale · factor · B A[token]."""

    def __init__(self, scaled: Sequence[tuple[EmbeddingDelta, float]], backend: Backend) -> None:
        """Use each A where it lies, in its own precision: it is as large as the vocabulary."""
        self._tables = [delta.a.to(backend.device) for delta, _ in scaled]  # (V, R of the adapter) each
        b = torch.cat([delta.b.float() * (scale * delta.factor) for delta, scale in scaled], dim=1)  # (D, R)
        self._b = pack_linear(b, None, replace(backend, dtype=torch.float32))
        copies = [table for table, (delta, _) in zip(self._tables, scaled, strict=True) if table is not delta.a]
        self.num_bytes = b.nbytes + sum(table.nbytes for table in copies)

    def add_to(self, rows: Tensor, token_ids: Tensor) -> None:
        """Add to rows (T, D) float32, in place, what the tokens (T,) get; those beyond the base's get nothing."""
        V = len(self._tables[0])
        known = token_ids.clamp(max=V - 1)
        a = torch.cat([table[known].float() for table in self._tables], dim=1)  # (T, R)
        a.masked_fill_((token_ids >= V).unsqueeze(1), 0)
        rows += self._b(a)


class EmbeddingRows:
    """Rows of one adapter, added to the embedding of their tokens: scale · row."""

    def __init__(self, changed: TokenRows, scale: float, backend: Backend) -> None:
        """Use the adapter's rows where they lie: they may be the whole embedding."""
        self._ids, self._rows, self._scale = changed.ids.to(backend.device), changed.rows.to(backend.device), scale
        copies = [copy for copy, own in ((self._ids, changed.ids), (self._rows, changed.rows)) if copy is not own]
        self.num_bytes = sum(copy.nbytes for copy in copies)

    def add_to(self, rows: Tensor, token_ids: Tensor) -> None:
        """Add to rows (T, D) float32, in place, what the tokens (T,) get."""
        place = torch.searchsorted(self._ids, token_ids).clamp_(max=len(self._ids) - 1)  # (T,)
        [found] = (self._ids[place] == token_ids).nonzero(as_tuple=True)
        if len(found):
            rows.index_add_(0, found, self._rows[place[found]].float(), alpha=self._scale)


class HeadRows:
    """Rows of a list in the head: what they add to the logits of their tokens, and the logits of added tokens."""

    def __init__(self, scaled: Sequence[tuple[TokenRows, float]], vocab_size: int, backend: Backend) -> None:
        """`vocab_size`: V. The rows of all adapters are summed by token, in float32."""
        ids, places = torch.cat([changed.ids for changed, _ in scaled]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
        rows = torch.zeros(len(ids), scaled[0][0].rows.shape[1])  # (n, D)
        for place, (changed, scale) in zip(places.split([len(c.ids) for c, _ in scaled]), scaled, strict=True):
            rows.index_add_(0, place, changed.rows.float(), alpha=scale)
        self._ids = ids.to(backend.device)  # (n,) ascending
        self._linear = pack_linear(rows, None, backend.in_head_dtype())
        self._num_known = int((ids < vocab_size).sum())
        self.num_bytes = ids.nbytes + rows.numel() * backend.head_ops.dtype.itemsize

    def add_to(self, logits: Tensor, x: Tensor) -> None:
        """Change logits (S, vocabulary of the list) float32 in place; x (S, D) in the head's dtype is what it reads.

        The logits of added tokens are -inf before, and stay so where no adapter has a row for them.
        """
        changes = self._linear(x).float()  # (S, n)
        known = self._num_known
        logits.index_add_(1, self._ids[:known], changes[:, :known])
        logits[:, self._ids[known:]] = changes[:, known:]
