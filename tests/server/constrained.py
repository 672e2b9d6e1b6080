"""A stand-in for the model whose tokens the real sampler chooses, from logits that are a function of the row alone."""

import hashlib

import numpy as np
import torch

from model.sampling.sampler import sample
from scheduler.batch import Batch, Row, StepOutput
from tests.server.fakes import VOCAB_SIZE


class SamplingExecutor:
    """Computes random logits. They favour letters and digits, and ends now and then."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._contexts: dict[int, dict[int, int]] = {}
        """Of each request the token at each position, but for those that were cached."""

    def execute(self, batch: Batch) -> StepOutput:
        """Return what the sampler chooses."""
        self.batches.append(batch)
        for row in batch.rows:
            self._contexts.setdefault(row.request_id, {}).update(enumerate(row.token_ids, row.start))
        rows = [row for row in batch.rows if row.sampling is not None]
        if not rows:
            return StepOutput(())
        return StepOutput(tuple(sample(torch.stack([self._logits(row) for row in rows]), rows)))

    def _logits(self, row: Row) -> torch.Tensor:
        known = self._contexts[row.request_id]
        context = tuple(known[position] for position in sorted(known) if position < row.end)
        seed = hashlib.sha256(repr(context).encode()).digest()
        return torch.from_numpy(np.random.default_rng(list(seed)).normal(0, 4, VOCAB_SIZE).astype(np.float32))
