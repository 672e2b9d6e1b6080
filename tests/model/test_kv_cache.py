"""The pages of the KV cache: layout, size, contents before the first write."""

import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.backend import reference_backend
from model.checkpoint.config import ModelConfig
from model.kv_cache import KVCache
from scheduler.batch import BLOCK_SIZE

CONFIG = ModelConfig(
    family="llama",
    vocab_size=100,
    hidden_size=64,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=128,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    max_position=512,
    tied_embeddings=False,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    sliding_window=None,
)


STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def test_holds_pages_of_keys_and_values_for_each_layer() -> None:
    kv = KVCache(CONFIG, 5, reference_backend(torch.bfloat16))
    assert kv.num_blocks == 5
    assert len(kv.keys) == len(kv.values) == 3
    for pages in (*kv.keys, *kv.values):
        assert pages.shape == (5, BLOCK_SIZE, 2, 32)
        assert pages.dtype == torch.bfloat16
        assert not pages.any()
    assert len({pages.data_ptr() for pages in (*kv.keys, *kv.values)}) == 6


def test_knows_its_size() -> None:
    kv = KVCache(CONFIG, 5, reference_backend(torch.bfloat16))
    assert kv.num_bytes == sum(pages.nbytes for pages in (*kv.keys, *kv.values))
    assert KVCache.bytes_per_block(CONFIG, torch.float32) == 2 * kv.num_bytes // 5
    assert KVCache.bytes_per_block(replace(CONFIG, num_layers=6), torch.bfloat16) == 2 * kv.num_bytes // 5


@pytest.mark.skipif(not STATM.exists(), reason="the system does not tell what is resident")
def test_pages_take_memory_when_they_are_written_and_no_sooner() -> None:
    before = resident_bytes()
    kv = KVCache(CONFIG, 10_000, reference_backend(torch.float32))
    assert kv.num_bytes > 200e6
    assert resident_bytes() - before < kv.num_bytes / 10
    kv.keys[1][17] = 1.0
    assert not kv.keys[1][18].any()
    assert all(pages.data_ptr() % 64 == 0 for pages in (*kv.keys, *kv.values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_read_of_blocks_can_be_written_to_others(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = (KVCache(CONFIG, num_blocks, reference_backend(dtype)) for num_blocks in (5, 4))
    for part in (*first.keys, *first.values):
        part.copy_(torch.randn(part.shape, generator=generator).to(dtype))
    content = first.read([4, 0, 2])
    assert len(content) == 3 * KVCache.bytes_per_block(CONFIG, dtype)
    second.write([1, 3, 0], content)
    assert second.read([1, 3, 0]) == content
    for pages in ("keys", "values"):
        for ours, theirs in zip(getattr(first, pages), getattr(second, pages), strict=True):
            assert torch.equal(ours[[4, 0, 2]], theirs[[1, 3, 0]])
            assert torch.count_nonzero(theirs[2]) == 0
