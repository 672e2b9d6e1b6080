import pytest

from scheduler.blocks import BlockPool
from scheduler.cohort import BASE, cache_seed
from scheduler.prefix_cache import PrefixCache, PrefixNode

SEED = cache_seed(BASE)


def make_pool(num_blocks: int = 4) -> tuple[BlockPool, PrefixCache]:
    cache = PrefixCache()
    return BlockPool(num_blocks, cache), cache


def register(cache: PrefixCache, *block_ids: int) -> list[PrefixNode]:
    """Make blocks findable as one chain."""
    nodes: list[PrefixNode] = []
    for block_id in block_ids:
        nodes.append(cache.register(SEED, nodes[-1] if nodes else None, (block_id,) * 16, block_id))
    return nodes


def allocate(pool: BlockPool, count: int) -> list[int]:
    block_ids = pool.allocate(count)
    assert block_ids is not None
    pool.validate()
    return block_ids


def test_new_pool_has_all_blocks_to_give() -> None:
    pool, _ = make_pool(4)
    assert (pool.num_available, pool.num_held, pool.num_idle) == (4, 0, 0)


def test_allocated_blocks_are_distinct_and_referenced_once() -> None:
    pool, _ = make_pool(4)
    block_ids = allocate(pool, 4)
    assert sorted(block_ids) == [0, 1, 2, 3]
    assert [pool.num_references(block_id) for block_id in block_ids] == [1, 1, 1, 1]


def test_too_large_an_allocation_gives_nothing_and_takes_nothing() -> None:
    pool, _ = make_pool(4)
    allocate(pool, 2)
    assert pool.allocate(3) is None
    assert pool.num_available == 2


def test_nothing_can_be_allocated_from_a_full_pool() -> None:
    pool, _ = make_pool(1)
    allocate(pool, 1)
    assert pool.allocate(0) == []
    assert pool.allocate(1) is None


def test_released_block_is_free_again() -> None:
    pool, _ = make_pool(1)
    pool.release(allocate(pool, 1))
    pool.validate()
    assert pool.num_available == 1
    assert pool.num_idle == 0


def test_released_block_that_is_cached_becomes_idle() -> None:
    pool, cache = make_pool()
    block_ids = allocate(pool, 1)
    register(cache, *block_ids)
    pool.release(block_ids)
    pool.validate()
    assert pool.is_idle(block_ids[0])
    assert (pool.num_idle, pool.num_held, pool.num_available) == (1, 0, 4)


def test_shared_block_is_held_until_its_last_release() -> None:
    pool, _ = make_pool()
    (block_id,) = allocate(pool, 1)
    pool.share(block_id)
    pool.release([block_id])
    assert pool.num_held == 1
    pool.release([block_id])
    pool.validate()
    assert pool.num_held == 0


def test_shared_idle_block_is_held() -> None:
    pool, cache = make_pool()
    (block_id,) = allocate(pool, 1)
    register(cache, block_id)
    pool.release([block_id])
    pool.share(block_id)
    pool.validate()
    assert not pool.is_idle(block_id)
    assert pool.num_references(block_id) == 1


def test_free_block_cannot_be_shared() -> None:
    pool, _ = make_pool()
    with pytest.raises(AssertionError, match="block 2 is free"):
        pool.share(2)


def test_block_cannot_be_released_twice() -> None:
    pool, _ = make_pool()
    (block_id,) = allocate(pool, 1)
    pool.release([block_id])
    with pytest.raises(AssertionError, match="more often than it was held"):
        pool.release([block_id])


def test_free_blocks_are_given_out_before_idle_ones() -> None:
    pool, cache = make_pool(2)
    cached, other = allocate(pool, 2)
    register(cache, cached)
    pool.release([cached, other])
    assert allocate(pool, 1) == [other]
    assert cached in cache


def test_idle_block_is_forgotten_by_the_cache_when_it_is_given_out() -> None:
    pool, cache = make_pool(1)
    (block_id,) = allocate(pool, 1)
    register(cache, block_id)
    pool.release([block_id])
    assert allocate(pool, 1) == [block_id]
    assert block_id not in cache
    assert cache.match(SEED, [(block_id,) * 16]) == []


def test_least_recently_released_chain_is_given_up_first() -> None:
    pool, cache = make_pool(2)
    first, second = allocate(pool, 2)
    register(cache, first)
    register(cache, second)
    pool.release([second])
    pool.release([first])
    assert allocate(pool, 1) == [second]


def test_use_makes_an_idle_block_recent() -> None:
    pool, cache = make_pool(2)
    first, second = allocate(pool, 2)
    register(cache, first)
    register(cache, second)
    pool.release([first])
    pool.release([second])
    pool.share(first)
    pool.release([first])
    assert allocate(pool, 1) == [second]


def test_end_of_a_prefix_is_given_up_before_its_start() -> None:
    pool, cache = make_pool(3)
    block_ids = allocate(pool, 3)
    register(cache, *block_ids)
    pool.release(block_ids)
    assert [allocate(pool, 1)[0] for _ in range(3)] == block_ids[::-1]


def test_validate_notices_a_lost_block() -> None:
    pool, _ = make_pool()
    pool._free.pop()
    with pytest.raises(AssertionError):
        pool.validate()


def test_validate_notices_an_idle_block_nobody_can_find() -> None:
    pool, cache = make_pool()
    (block_id,) = allocate(pool, 1)
    register(cache, block_id)
    pool.release([block_id])
    cache.forget(block_id)
    with pytest.raises(AssertionError):
        pool.validate()


def test_validate_notices_a_free_block_that_can_be_found() -> None:
    pool, cache = make_pool()
    register(cache, 0)
    with pytest.raises(AssertionError):
        pool.validate()
