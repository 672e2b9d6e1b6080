"""The rows of a matrix of tokens that an adapter changes, while they are gathered from its parts.

V the base model's vocabulary, D hidden, R rank, n changed tokens.
"""

import torch
from torch import Tensor

from model.adapters.adapter import TokenRows

_ROWS_AT_ONCE = 8192
_COARSEST_FIRST = (torch.bfloat16, torch.float16, torch.float32)


class ChangedRows:
    """Rows by token: the adapter's minus the base model's, which has rows of zeros beyond its vocabulary."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        self.vocab_size = vocab_size
        self._ids = torch.zeros(0, dtype=torch.int64)  # (n,) ascending
        self._rows = torch.zeros(0, hidden_size)  # (n, D)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def end(self) -> int:
        """One more than the highest token, and V at least."""
        return max(self.vocab_size, int(self._ids[-1]) + 1 if len(self._ids) else 0)

    def first_missing(self, end: int) -> int | None:
        """Return the first token beyond the base model's, and before `end`, that has no row; None where all have."""
        added = self._ids[self._ids >= self.vocab_size]
        is_gap = added != torch.arange(self.vocab_size, self.vocab_size + len(added))
        first = self.vocab_size + int(is_gap.nonzero()[0]) if bool(is_gap.any()) else self.vocab_size + len(added)
        return first if first < end else None

    def replace_all(self, whole: Tensor, base: Tensor) -> None:
        """Put `whole` (V or more, D) in the place of `base` (V, D).

        A row that differs no more than the coarser of the two types can tell is the same: it was not trained.
        """
        V = self.vocab_size
        coarse = min(whole.dtype, base.dtype, key=_COARSEST_FIRST.index)
        ids, rows = [], []
        for first in range(0, V, _ROWS_AT_ONCE):
            ours, theirs = base[first : min(first + _ROWS_AT_ONCE, V)], whole[first : min(first + _ROWS_AT_ONCE, V)]
            [changed] = (ours.to(coarse) != theirs.to(coarse)).any(dim=1).nonzero(as_tuple=True)
            ids.append(changed + first)
            rows.append(theirs[changed].float() - ours[changed].float())
        self._ids = torch.cat([*ids, torch.arange(V, len(whole))])
        self._rows = torch.cat([*rows, whole[V:].float()])

    def replace(self, ids: Tensor, rows: Tensor, base: Tensor) -> None:
        """Put `rows` (n, D) in the place of the rows of tokens `ids` (n,), which are all different."""
        is_known = ids < self.vocab_size
        changes = rows.to(torch.float32, copy=True)
        changes[is_known] = changes[is_known] - base[ids[is_known]].float()
        is_kept = ~torch.isin(self._ids, ids)
        unsorted = torch.cat([self._ids[is_kept], ids])
        order = unsorted.argsort()
        self._ids, self._rows = unsorted[order], torch.cat([self._rows[is_kept], changes])[order]

    def add_low_rank(self, a: Tensor, b: Tensor, factor: float) -> None:
        """Add factor · B A[i] to the row of token V + i, where there is one, for a (m, R) and b (D, R)."""
        places = self._ids - self.vocab_size
        is_added = (places >= 0) & (places < len(a))
        self._rows[is_added] += factor * (a[places[is_added]].float() @ b.float().T)

    def finish(self) -> TokenRows | None:
        """Return the rows; None where there are none."""
        return TokenRows(self._ids, self._rows) if len(self._ids) else None
