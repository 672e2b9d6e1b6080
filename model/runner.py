"""One step: a batch of plain integers to tensors, through the decoder, to sampled tokens, pooled
states and scores. Decides nothing.

Runs on one thread at a time. Knows no requests beyond the rows of the batch, and no time.

S rows, T tokens in the step, V vocabulary of the batch's adapter list.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from model.adapters.adapter import Adapter, LoraDelta
from model.attention import AttentionStep
from model.kv_cache import KVCache
from model.language_model import LanguageModel
from model.lora import LoraStack, stack_adapters
from model.lora_cache import LoraCache
from model.outputs import Wanted
from model.pooling import add_states, wanted_tokens
from model.sampling.sampler import sample
from model.sampling.scoring import joined, parts_of, score_rows, tokens_with_logits
from scheduler.batch import BLOCK_SIZE, Batch, Pooled, Row, SamplerChain, SamplingParams, StepOutput
from scheduler.cohort import AdapterId


class ModelRunner:
    """The executor of the step loop: one decoder, its KV cache, and the adapters that batches may name."""

    def __init__(self, decoder: LanguageModel, kv: KVCache, lora_cache: LoraCache) -> None:
        self._decoder = decoder
        self._kv = kv
        self._lora_cache = lora_cache

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepOutput:
        """Compute a batch: write the KV of its tokens, sample one token for each row that has `sampling`, pool the
        hidden states of each that has `pooling`, and score prompts where `scoring` asks for it."""
        return self._compute(batch.rows, self._lora_cache.get(batch.key))

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run a few small batches, so that kernels are loaded before the first request. Overwrites free blocks."""
        usual, unusual = SamplingParams(num_logprobs=1), SamplingParams(chain=SamplerChain(dry_multiplier=1.0))
        stack = stack_adapters([(_silent_adapter(self._decoder), 1.0)], self._decoder.adaptable, self._decoder.backend)
        num_blocks = min(4, self._kv.num_blocks)
        for num_rows, num_tokens, sampling in ((1, BLOCK_SIZE, usual), (1, 1, usual), (num_blocks, 1, unusual)):
            rows = tuple(
                Row(i, (0,) * num_tokens, start=0, block_table=(i,), sampling=sampling, history=(0,) * BLOCK_SIZE)
                for i in range(num_rows)
            )
            for lora in (None, stack):
                self._compute(rows, lora)

    def _compute(self, rows: tuple[Row, ...], lora: LoraStack | None) -> StepOutput:
        outputs = [self._compute_part(part, lora) for part in parts_of(rows)]
        if len(outputs) == 1:
            return outputs[0]
        samples = {sample.request_id: sample for output in outputs for sample in output.samples}
        return StepOutput(
            samples=tuple(samples[row.request_id] for row in rows if row.sampling is not None),
            pooled=tuple(pooled for output in outputs for pooled in output.pooled),
            scores=joined([scores for output in outputs for scores in output.scores]),
        )

    def _compute_part(self, rows: tuple[Row, ...], lora: LoraStack | None) -> StepOutput:
        token_ids, step, wanted = step_tensors(rows, self._decoder.backend.device)
        logits, states = self._decoder.forward(token_ids, step, wanted, self._kv, lora)
        logits, scores = score_rows(rows, logits)
        samples = tuple(sample(logits, [row for row in rows if row.sampling is not None]))
        return StepOutput(samples, pool_rows([row for row in rows if row.pooling is not None], states), scores)


def _silent_adapter(decoder: LanguageModel) -> Adapter:
    """Make an adapter that adds B (0 x) in a layer and in the head, whose kernels may differ."""
    shapes = {module: decoder.module_shapes[module] for module in (next(iter(decoder.module_shapes)), "lm_head")}
    deltas = {
        module: LoraDelta(torch.zeros(1, in_features), torch.ones(out_features, 1), factor=1.0)
        for module, (out_features, in_features) in shapes.items()
    }
    return Adapter(AdapterId(-1, ""), "", "", "peft", deltas, 1.0, "", "")


def pool_rows(rows: Sequence[Row], states: Tensor) -> tuple[Pooled, ...]:
    """Return what rows with `pooling` come to; `states` (n, D) are those that they want, in the order of the rows."""
    if not rows:
        return ()
    parts = np.split(states.cpu().numpy(), np.cumsum([len(wanted_tokens(row)) for row in rows])[:-1])
    pooled = []
    for row, part in zip(rows, parts, strict=True):
        assert row.pooling is not None
        pooled.append(Pooled(row.request_id, add_states(row.pooling, row.pooled, part)))
    return tuple(pooled)


def step_tensors(rows: tuple[Row, ...], device: torch.device) -> tuple[Tensor, AttentionStep, Wanted]:
    """Return the token ids (T,), where they stand, and of which something is wanted."""
    # Plain lists: a step has few numbers, and each call of numpy takes as long as a dozen of them.
    counts = [len(row.token_ids) for row in rows]  # (S,)
    starts = list(accumulate(counts, initial=0))  # (S + 1,)
    context_lens = [row.end for row in rows]  # (S,)
    max_context = max(context_lens)
    step = AttentionStep(
        query_starts=_tensor(starts, np.int32, device),
        context_lens=_tensor(context_lens, np.int32, device),
        block_tables=_tensor(_block_tables(rows, max_context), np.int32, device).view(len(rows), -1),
        max_query=max(counts),
        max_context=max_context,
        slots=_tensor([_slot(row, position) for row in rows for position in _positions(row)], np.int64, device),
        positions=_tensor([position for row in rows for position in _positions(row)], np.int64, device),
    )
    token_ids = [token_id for row in rows for token_id in row.token_ids]
    with_logits = [end - 1 for row, end in zip(rows, starts[1:], strict=True) if row.sampling is not None]
    if any(row.scoring is not None for row in rows):
        with_logits = [start + i for row, start in zip(rows, starts, strict=False) for i in tokens_with_logits(row)]
    wanted = Wanted(_tensor(with_logits, np.int64, device))
    if any(row.pooling is not None for row in rows):
        pooled = [start + i for row, start in zip(rows, starts, strict=False) for i in wanted_tokens(row)]
        wanted = wanted._replace(states=_tensor(pooled, np.int64, device))
    return _tensor(token_ids, np.int64, device), step, wanted


def _tensor(values: list[int], dtype: type[np.integer], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.array(values, dtype))
    return tensor if device.type == "cpu" else tensor.to(device)


def _positions(row: Row) -> range:
    return range(row.start, row.end)


def _slot(row: Row, position: int) -> int:
    return row.block_table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


def _block_tables(rows: tuple[Row, ...], max_context: int) -> list[int]:
    """Return the blocks that hold each row's context, S * max_blocks of them, rows filled up with 0."""
    max_blocks = -(-max_context // BLOCK_SIZE)
    tables: list[int] = []
    for row in rows:
        num_blocks = -(-row.end // BLOCK_SIZE)
        tables += row.block_table[:num_blocks]
        tables += [0] * (max_blocks - num_blocks)
    return tables
