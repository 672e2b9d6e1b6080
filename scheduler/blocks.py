"""Who owns a KV block: reference counts, the free list, and the order in which cached blocks are given up.

A block is *held* (referenced by running requests, by several where a prefix is shared), *idle* (referenced by none,
still in the prefix cache, given up least recently used first) or *free*. Every block is exactly one of the three (I3).
"""

from collections import OrderedDict
from collections.abc import Sequence

from scheduler.prefix_cache import PrefixCache


class BlockPool:
    """`num_blocks` blocks, named 0 … num_blocks - 1. `cache` is told before an idle block is reused."""

    def __init__(self, num_blocks: int, cache: PrefixCache) -> None:
        self.num_blocks = num_blocks
        self._cache = cache
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could give out now, idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        """Unreferenced blocks kept for a prefix hit."""
        return len(self._idle)

    @property
    def num_held(self) -> int:
        """Blocks referenced by at least one request."""
        return self.num_blocks - self.num_available

    def is_idle(self, block_id: int) -> bool:
        """Whether a block is unreferenced and cached."""
        return block_id in self._idle

    def num_references(self, block_id: int) -> int:
        """How many requests hold a block."""
        return self._references[block_id]

    def allocate(self, count: int) -> list[int] | None:
        """Give out `count` blocks with one reference each, free ones first, or None (and nothing) where too few are
        left."""
        if count > self.num_available:
            return None
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if self._free:
            block_id = self._free.pop()
        else:
            block_id, _ = self._idle.popitem(last=False)
            self._cache.forget(block_id)
        self._references[block_id] = 1
        return block_id

    def share(self, block_id: int) -> None:
        """Add a reference to a held or idle block, after a prefix hit."""
        assert self._references[block_id] or block_id in self._idle, f"block {block_id} is free and cannot be shared"
        self._idle.pop(block_id, None)
        self._references[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop one reference to each block of a request. The end of a prefix becomes idle before its start, and goes
        first."""
        for block_id in reversed(block_ids):
            assert self._references[block_id] > 0, f"block {block_id} is released more often than it was held"
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                if block_id in self._cache:
                    self._idle[block_id] = None
                else:
                    self._free.append(block_id)

    def drop(self, block_id: int) -> None:
        """Let nobody find a block any more; one that nobody holds is free then."""
        self._cache.forget(block_id)
        if self._idle.pop(block_id, 0) is None:
            self._free.append(block_id)

    def validate(self) -> None:
        """Check conservation: each block is held, idle or free, and just one of them (I3)."""
        held = {block_id for block_id, count in enumerate(self._references) if count}
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice in the free list"
        assert len(held) + len(free) + len(self._idle) == self.num_blocks
        assert not held & free
        assert not held & self._idle.keys()
        assert not free & self._idle.keys()
        assert all(block_id in self._cache for block_id in self._idle)
        assert not any(block_id in self._cache for block_id in free)
