"""Drive a decoder over a paged cache, step by step, for tests that compare logits."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from model.kv_cache import KVCache
from model.language_model import LanguageModel
from model.lora import LoraStack
from model.outputs import Wanted
from model.runner import ModelRunner, step_tensors
from scheduler.batch import BLOCK_SIZE, Batch, Row, Sample, SamplingParams
from scheduler.cohort import CohortKey

JUNK = 3.0
"""What the cache holds before it is written: a read by mistake shall show."""


def scattered_tables(lengths: Sequence[int], seed: int = 0) -> tuple[int, list[tuple[int, ...]]]:
    """Return the size of a cache twice as large as needed, and for each length a table of blocks anywhere in it."""
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    blocks = torch.randperm(2 * sum(counts), generator=torch.Generator().manual_seed(seed)).tolist()
    ends = torch.tensor(counts).cumsum(0).tolist()
    return len(blocks), [tuple(blocks[end - count : end]) for count, end in zip(counts, ends, strict=True)]


def junk_cache(decoder: LanguageModel, num_blocks: int, dtype: torch.dtype | None = None) -> KVCache:
    """Make a cache full of `JUNK`, of the backend's dtype or another."""
    kv = KVCache(decoder.config, num_blocks, replace(decoder.backend, dtype=dtype or decoder.backend.dtype))
    for pages in (*kv.keys, *kv.values):
        pages.fill_(JUNK)
    return kv


@torch.inference_mode()
def logits_of(
    decoder: LanguageModel,
    prompts: Sequence[Sequence[int]],
    schedule: Iterable[Sequence[int]],
    *,
    lora: LoraStack | None = None,
    seed: int = 0,
    cache_dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Compute prompts together and return the logits (tokens, V) of each.

    Each entry of `schedule` is a step: how many of its next tokens each prompt computes in it, 0 to sit it out.
    """
    num_blocks, tables = scattered_tables([len(prompt) for prompt in prompts], seed)
    kv = junk_cache(decoder, num_blocks, cache_dtype)
    computed = [0] * len(prompts)
    logits: list[list[Tensor]] = [[] for _ in prompts]
    for counts in schedule:
        present = [i for i, count in enumerate(counts) if count]
        rows = []
        for i in present:
            start, end = computed[i], computed[i] + counts[i]
            rows.append(Row(i, tuple(prompts[i][start:end]), start, tables[i], sampling=None))
            computed[i] = end
        token_ids, step, _ = step_tensors(tuple(rows), decoder.backend.device)
        out = decoder.forward(token_ids, step, Wanted(torch.arange(len(token_ids))), kv, lora).logits  # (T, V)
        begin = 0
        for i in present:
            logits[i].append(out[begin : begin + counts[i]].clone())
            begin += counts[i]
    return [torch.cat(parts) for parts in logits]


def whole(
    decoder: LanguageModel,
    prompt: Sequence[int],
    *,
    lora: LoraStack | None = None,
    cache_dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute one prompt alone in one step and return its logits (tokens, V)."""
    [logits] = logits_of(decoder, [prompt], [[len(prompt)]], lora=lora, cache_dtype=cache_dtype)
    return logits


def generate(
    runner: ModelRunner,
    prompts: Sequence[Sequence[int]],
    tables: Sequence[tuple[int, ...]],
    num_new: int,
    *,
    key: CohortKey = (),
    chunk: int = 100,
) -> list[list[int]]:
    """Run prompts side by side in chunks, then decode greedily; return the new tokens of each."""
    greedy = SamplingParams(temperature=0.0)
    outputs: list[list[int]] = [[] for _ in prompts]
    computed = [0] * len(prompts)
    while any(len(output) < num_new for output in outputs):
        rows = []
        for i, prompt in enumerate(prompts):
            if len(outputs[i]) == num_new:
                continue
            tokens = [*prompt, *outputs[i]]
            end = min(computed[i] + chunk, len(tokens))
            sampling = greedy if end == len(tokens) else None
            rows.append(Row(i, tuple(tokens[computed[i] : end]), computed[i], tables[i], sampling))
            computed[i] = end
        for sample in runner.execute(Batch(0, key, tuple(rows))).samples:
            assert isinstance(sample, Sample), sample
            outputs[sample.request_id].append(sample.token_id)
    return outputs


def assert_writes_its_own_slots(decoder: LanguageModel, tokens: Sequence[int]) -> None:
    """A prompt's keys and values go to the slots of its tokens, and nothing goes elsewhere."""
    num_blocks, [table] = scattered_tables([len(tokens)])
    kv = junk_cache(decoder, num_blocks)
    token_ids, step, wanted = step_tensors((Row(0, tuple(tokens), 0, table, sampling=None),), torch.device("cpu"))
    decoder.forward(token_ids, step, wanted, kv, None)
    own = torch.zeros(num_blocks * BLOCK_SIZE, dtype=torch.bool)
    own[[table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(len(tokens))]] = True
    for pages in (*kv.keys, *kv.values):
        written = (pages.flatten(0, 1) != JUNK).flatten(1).any(1)
        assert torch.equal(written, own)
