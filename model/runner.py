"""One step: a batch of plain integers to tensors, through the decoder, to sampled tokens. Decides nothing.

Runs on one thread at a time. Knows no requests beyond the rows of the batch, and no time.

S rows, T tokens in the step, V vocabulary of the batch's adapter list.
"""

from itertools import chain

import numpy as np
import torch
from torch import Tensor

from model.adapter import Adapter, LoraDelta
from model.attention import AttentionStep
from model.kv_cache import KVCache
from model.language_model import LanguageModel
from model.lora import LoraStack, stack_adapters
from model.lora_cache import LoraCache
from model.sampler import sample
from scheduler.batch import BLOCK_SIZE, Batch, Row, SamplingParams, StepOutput
from scheduler.cohort import AdapterId


class ModelRunner:
    """The executor of the step loop: one decoder, its KV cache, and the adapters that batches may name."""

    def __init__(self, decoder: LanguageModel, kv: KVCache, lora_cache: LoraCache) -> None:
        self._decoder = decoder
        self._kv = kv
        self._lora_cache = lora_cache

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepOutput:
        """Compute a batch: write the KV of its tokens, and sample one token for each row that has `sampling`."""
        return self._compute(batch.rows, self._lora_cache.get(batch.key))

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run a few small batches, so that kernels are loaded before the first request. Overwrites free blocks."""
        stack = stack_adapters([(_silent_adapter(self._decoder), 1.0)], self._decoder.adaptable, self._decoder.backend)
        for num_rows, num_tokens in ((1, BLOCK_SIZE), (1, 1), (min(4, self._kv.num_blocks), 1)):
            rows = tuple(
                Row(request_id=i, token_ids=(0,) * num_tokens, start=0, block_table=(i,), sampling=SamplingParams())
                for i in range(num_rows)
            )
            for lora in (None, stack):
                self._compute(rows, lora)

    def _compute(self, rows: tuple[Row, ...], lora: LoraStack | None) -> StepOutput:
        token_ids, step, logit_rows = step_tensors(rows, self._decoder.backend.device)
        logits = self._decoder.forward(token_ids, step, logit_rows, self._kv, lora)  # (rows with sampling, V)
        return StepOutput(tuple(sample(logits, [row for row in rows if row.sampling is not None])))


def _silent_adapter(decoder: LanguageModel) -> Adapter:
    """Make an adapter that adds B (0 x) in a layer and in the head, whose kernels may differ."""
    shapes = {module: decoder.module_shapes[module] for module in (next(iter(decoder.module_shapes)), "lm_head")}
    deltas = {
        module: LoraDelta(torch.zeros(1, in_features), torch.ones(out_features, 1), factor=1.0)
        for module, (out_features, in_features) in shapes.items()
    }
    return Adapter(AdapterId(-1, ""), "", "", "peft", deltas, 1.0, "", "")


def step_tensors(rows: tuple[Row, ...], device: torch.device) -> tuple[Tensor, AttentionStep, Tensor]:
    """Return the token ids (T,), where they stand, and the indices of the tokens whose logits are wanted."""
    counts = np.array([len(row.token_ids) for row in rows])  # (S,)
    first_positions = np.array([row.start for row in rows])  # (S,)
    ends = counts.cumsum()
    starts = ends - counts
    context_lens = first_positions + counts
    row_of_token = np.repeat(np.arange(len(rows)), counts)  # (T,)
    positions = np.arange(ends[-1]) - starts[row_of_token] + first_positions[row_of_token]  # (T,)
    block_tables = _block_tables(rows)
    slots = block_tables[row_of_token, positions // BLOCK_SIZE] * np.int64(BLOCK_SIZE) + positions % BLOCK_SIZE
    token_ids = np.fromiter(chain.from_iterable(row.token_ids for row in rows), np.int64, count=ends[-1])
    sampled = ends[[row.sampling is not None for row in rows]] - 1

    def tensor(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(values).to(device, dtype)

    step = AttentionStep(
        query_starts=tensor(np.append(starts, ends[-1]), torch.int32),
        context_lens=tensor(context_lens, torch.int32),
        block_tables=tensor(block_tables, torch.int32),
        max_query=int(counts.max()),
        max_context=int(context_lens.max()),
        slots=tensor(slots, torch.int64),
        positions=tensor(positions, torch.int64),
    )
    return tensor(token_ids, torch.int64), step, tensor(sampled, torch.int64)


def _block_tables(rows: tuple[Row, ...]) -> np.ndarray:
    """Return the blocks that hold each row's context (S, max_blocks) int32, rows filled up with 0."""
    num_blocks = [-(-row.end // BLOCK_SIZE) for row in rows]
    tables = np.zeros((len(rows), max(num_blocks)), np.int32)
    for table, row, n in zip(tables, rows, num_blocks, strict=True):
        table[:n] = row.block_table[:n]
    return tables
