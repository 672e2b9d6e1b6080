"""The KV blocks of requests: which they hold, which they find in the prefix cache, and which they leave there.

It says whether blocks are to be had; whose are taken away when there are none is for `core.py` to decide.
"""

from collections.abc import Iterable

from scheduler.batch import BLOCK_SIZE
from scheduler.blocks import BlockPool
from scheduler.cohort import cache_seed, next_switch
from scheduler.prefix_cache import BlockContent, PrefixCache, PrefixNode
from scheduler.request import Request


class KVSpace:
    """`num_blocks` blocks, shared by all requests of a scheduler."""

    def __init__(self, num_blocks: int) -> None:
        self.cache = PrefixCache()
        self.blocks = BlockPool(num_blocks, self.cache)

    def hold(self, request: Request, spare: int) -> int:
        """Hold blocks for all tokens of a request, cached ones first, so that `spare` are left; nothing is held where
        that cannot be. Returns how many blocks are missing: 0 where it holds them.

        Sets how many tokens of a request that held none need not be computed."""
        if request.blocks:
            missing = blocks_for(request.num_tokens) - len(request.blocks) + spare - self.blocks.num_available
            if missing <= 0:
                request.blocks += self._allocate(blocks_for(request.num_tokens) - len(request.blocks))
            return max(missing, 0)
        hits = self._hits(request)
        for node in hits:
            self.blocks.share(node.block_id)
        num_fresh = blocks_for(request.num_tokens) - len(hits)
        missing = num_fresh + spare - self.blocks.num_available
        if missing > 0:
            self.blocks.release([node.block_id for node in hits])
            return missing
        request.blocks = [node.block_id for node in hits] + self._allocate(num_fresh)
        request.num_computed = len(hits) * BLOCK_SIZE
        request.num_registered = len(hits)
        request.prefix = hits[-1] if hits else None
        return 0

    def _allocate(self, count: int) -> list[int]:
        fresh = self.blocks.allocate(count)
        assert fresh is not None
        return fresh

    def grow(self, request: Request) -> bool:
        """Hold one more block for a request; False where there is none."""
        fresh = self.blocks.allocate(1)
        if fresh is None:
            return False
        request.blocks += fresh
        return True

    def register(self, request: Request) -> None:
        """Make the full blocks that a request has computed findable for others."""
        num_full = request.num_computed // BLOCK_SIZE
        if num_full == request.num_registered:  # most steps of most requests
            return
        seed = cache_seed(request.key_at(0))
        for i in range(request.num_registered, num_full):
            content = block_content(request, i)
            request.prefix = self.cache.register(seed, request.prefix, content, request.blocks[i])
            request.num_registered = i + 1

    def release(self, request: Request) -> None:
        """Let go of all blocks of a request; its KV is gone, but for what the prefix cache still finds."""
        self.blocks.release(request.blocks)
        request.blocks = []
        request.prefix = None
        request.num_computed = request.num_registered = 0

    def find(self, request: Request) -> list[int]:
        """Return the blocks that hold the beginning of a request, which may have ended: full ones that are still to be
        found, in order. They hold it until the next plan at least."""
        return [node.block_id for node in self._match(request, request.num_tokens // BLOCK_SIZE)]

    def forget(self, request: Request) -> int:
        """Let nobody find the KV of a request any more, which may have ended; return of how many tokens it was. Who
        computes with it goes on doing so."""
        block_ids = self.find(request)
        for block_id in reversed(block_ids):
            self.blocks.drop(block_id)
        return len(block_ids) * BLOCK_SIZE

    def adopt(self, request: Request, start: int, stop: int) -> tuple[int, list[int]] | None:
        """Make the full blocks start … stop - 1 of a request that is none of the scheduler's findable, for somebody
        who writes their KV before the next step that is planned runs.

        Returns the first of them that was not known, and where it and those after it are to be written. None, and
        nothing is changed, where the blocks before `start` are not known any more, or there is no room."""
        nodes = self._match(request, stop)
        first = len(nodes)
        if first < start:
            return None
        for node in nodes:
            self.blocks.share(node.block_id)
        fresh = self.blocks.allocate(stop - first)
        known = [node.block_id for node in nodes]
        if fresh is None:
            self.blocks.release(known)
            return None
        parent = nodes[-1] if nodes else None
        for index, block_id in enumerate(fresh, first):
            seed, content = cache_seed(request.key_at(0)), block_content(request, index)
            parent = self.cache.register(seed, parent, content, block_id)
        self.blocks.release(known + fresh)
        return first, fresh

    def _match(self, request: Request, num_blocks: int) -> list[PrefixNode]:
        content = (block_content(request, index) for index in range(num_blocks))
        return self.cache.match(cache_seed(request.key_at(0)), content)

    def _hits(self, request: Request) -> list[PrefixNode]:
        """Cached blocks for the start of a request; its last token is always computed, for its logits are wanted."""
        if not request.can_reuse_prefix:
            return []
        return self._match(request, (request.num_tokens - 1) // BLOCK_SIZE)


def blocks_for(num_tokens: int) -> int:
    """How many blocks so many tokens take."""
    return -(-num_tokens // BLOCK_SIZE)


def num_to_grow(running: Iterable[Request], num_turns: int, max_context: int) -> int:
    """How many blocks running requests may come to need in so many turns, and at least in those of one block: else who
    is seated beside them would be preempted soon."""
    num_turns = max(num_turns, BLOCK_SIZE)
    num_blocks = 0
    for request in running:
        num_new = min(num_turns, request.max_new_tokens - len(request.output))
        num_at_most = min(request.num_tokens + num_new, max_context)
        # The last token of a request is sampled, and never computed.
        num_blocks += max(blocks_for(num_at_most - 1) - len(request.blocks), 0)
    return num_blocks


def block_content(request: Request, index: int) -> BlockContent:
    """What a full block of a request is computed from, given the blocks before it."""
    start, end = index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE
    content: BlockContent = ()
    activations = request.activations_now
    switch = next_switch(activations, max(start - 1, 0))  # what holds at position 0 is the root's
    while switch is not None and switch < end:
        content += (*request.tokens(start, switch), cache_seed(request.key_at(switch)))
        start, switch = switch, next_switch(activations, switch)
    return content + request.tokens(start, end)
