"""Which KV blocks can be read again: a tree of full blocks, rooted at the adapter list they were computed under.

A node stands for 16 tokens after the tokens of its parent. They were computed under the list of the root, unless
another one took over on the way, which is then a part of the content. Its dictionary key holds the parent's
identity and the content itself, so that a hit is equality, not equality of hashes (I5). Node identities are never
reused: the children of a forgotten node become unreachable, and leave in their turn. Who owns a block and when it is
forgotten: `blocks.py`."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from scheduler.cohort import CacheSeed

BlockContent: TypeAlias = tuple[int | CacheSeed, ...]
"""The tokens of a block; where another adapter list takes over, its seed stands before the first token computed under
it."""


@dataclass(frozen=True, slots=True)
class PrefixNode:
    """One full block in the tree. `block_id` is the block that holds its KV."""

    node_id: int
    block_id: int


class PrefixCache:
    """The tree. It holds no references: `forget` must be called before a block is written again."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int | CacheSeed, BlockContent], PrefixNode] = {}
        self._places: dict[int, tuple[int | CacheSeed, BlockContent]] = {}
        self._ids = itertools.count()

    def __contains__(self, block_id: int) -> bool:
        """Whether the block may be found by a later request."""
        return block_id in self._places

    def __len__(self) -> int:
        return len(self._places)

    def match(self, seed: CacheSeed, blocks: Iterable[BlockContent]) -> list[PrefixNode]:
        """Return the nodes of the longest known prefix of `blocks` (full blocks, in order) that begins under `seed`."""
        return list(self._walk(seed, blocks))

    def _walk(self, seed: CacheSeed, blocks: Iterable[BlockContent]) -> Iterator[PrefixNode]:
        parent: int | CacheSeed = seed
        for content in blocks:
            node = self._nodes.get((parent, content))
            if node is None:
                return
            yield node
            parent = node.node_id

    def register(self, seed: CacheSeed, parent: PrefixNode | None, content: BlockContent, block_id: int) -> PrefixNode:
        """Make a computed full block findable after `parent` (None: at the start).

        Where that content is known already, the known node is returned and `block_id` stays private to its owner.
        """
        place = (seed if parent is None else parent.node_id, content)
        node = self._nodes.get(place)
        if node is None:
            node = self._nodes[place] = PrefixNode(next(self._ids), block_id)
            self._places[block_id] = place
        return node

    def forget(self, block_id: int) -> None:
        """Take a block out, because it is about to be written. Blocks that are not in the tree are ignored."""
        place = self._places.pop(block_id, None)
        if place is not None:
            del self._nodes[place]

    def validate(self) -> None:
        """Check that both directions of the mapping agree."""
        assert len(self._nodes) == len(self._places)
        for block_id, place in self._places.items():
            assert self._nodes[place].block_id == block_id
