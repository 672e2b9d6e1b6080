"""How much a server takes on."""

import pytest

from scheduler.batch import BLOCK_SIZE
from server.capacity import CapacityError, free_memory_bytes, num_physical_cores, plan_limits
from server.settings import Settings

GB = 10**9
BLOCK_BYTES = 1000


def settings(**changes: int) -> Settings:
    """Settings with four slots."""
    return Settings.model_validate({"model": "x", "parallel": 4} | changes)


def test_a_context_size_is_shared_among_the_slots() -> None:
    limits = plan_limits(settings(ctx_size=2048), 8192, BLOCK_BYTES, GB)
    assert (limits.num_slots, limits.max_context, limits.num_blocks) == (4, 512, 4 * 32)


def test_a_share_that_is_no_multiple_of_a_block_has_its_last_block() -> None:
    limits = plan_limits(settings(ctx_size=400), 8192, BLOCK_BYTES, GB)
    assert (limits.max_context, limits.num_blocks) == (100, 4 * 7)


def test_the_trained_context_bounds_a_slot() -> None:
    limits = plan_limits(settings(ctx_size=2**20), 512, BLOCK_BYTES, GB)
    assert (limits.max_context, limits.num_blocks) == (512, 4 * 32)


def test_a_unified_context_is_each_slots_and_all_slots_pool() -> None:
    limits = plan_limits(settings(ctx_size=2048, kv_unified=True), 8192, BLOCK_BYTES, GB)
    assert (limits.max_context, limits.num_blocks) == (2048, 128)
    limits = plan_limits(settings(ctx_size=2**20, kv_unified=True), 512, BLOCK_BYTES, GB)
    assert (limits.max_context, limits.num_blocks) == (512, 4 * 32)


def test_without_a_size_every_request_has_the_trained_context() -> None:
    limits = plan_limits(settings(), 8192, BLOCK_BYTES, GB)
    assert (limits.max_context, limits.num_blocks) == (8192, 4 * 512)


def test_without_a_size_the_pool_takes_a_quarter_of_the_free_memory() -> None:
    limits = plan_limits(settings(), 8192, BLOCK_BYTES, 4 * 600 * BLOCK_BYTES)
    assert (limits.max_context, limits.num_blocks) == (8192, 600)


def test_a_pool_smaller_than_a_context_bounds_it() -> None:
    limits = plan_limits(settings(), 8192, BLOCK_BYTES, 4 * 100 * BLOCK_BYTES)
    assert (limits.max_context, limits.num_blocks) == (100 * BLOCK_SIZE, 100)


def test_a_budget_goes_before_the_share_of_the_memory() -> None:
    limits = plan_limits(settings(kv_cache_bytes=50 * BLOCK_BYTES), 8192, BLOCK_BYTES, GB)
    assert (limits.max_context, limits.num_blocks) == (50 * BLOCK_SIZE, 50)


@pytest.mark.parametrize(
    ("changes", "free_bytes", "part"),
    [
        ({"ctx_size": 4}, GB, "--ctx-size 4"),
        ({"ctx_size": 2048}, 100, "--ctx-size 2048"),
        ({"kv_cache_bytes": 10}, GB, "--kv-cache-bytes"),
        ({}, 10, "--kv-cache-bytes"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, int], free_bytes: int, part: str) -> None:
    with pytest.raises(CapacityError, match=part):
        plan_limits(settings(**changes), 8192, BLOCK_BYTES, free_bytes)


def test_a_step_has_room_for_every_slot() -> None:
    assert plan_limits(settings(batch_size=2), 64, BLOCK_BYTES, GB).max_step_tokens == 4
    assert plan_limits(settings(batch_size=256), 64, BLOCK_BYTES, GB).max_step_tokens == 256


def test_the_smaller_batch_bounds_a_step() -> None:
    assert plan_limits(settings(batch_size=256, ubatch_size=32), 64, BLOCK_BYTES, GB).max_step_tokens == 32
    assert plan_limits(settings(batch_size=32, ubatch_size=256), 64, BLOCK_BYTES, GB).max_step_tokens == 32


def test_the_machine_has_memory_and_cores() -> None:
    assert free_memory_bytes() > 0
    assert num_physical_cores() >= 1
