"""A model whose KV is labels: it says at once when a step reads KV that is not the row's own.

Every position of every block remembers the adapter list, the position and the tokens it was written for. A row is
computed by writing its tokens where its block table says, then reading its whole context back: each position must have
been written under the list that the request has there, at that position, after the request's own tokens. A block that
was overwritten, shared wrongly, registered too early or never computed fails there. The sampled token is a hash of what
was read and of nothing else, so that it changes with everything that may legitimately influence it."""

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from scheduler.batch import BLOCK_SIZE, Batch, Pooled, Pooling, Row, RowLate, Sample, Scores, StepOutput
from scheduler.cohort import CacheSeed, cache_seed
from scheduler.request import Request

VOCABULARY_SIZE = 6


class Cell(NamedTuple):
    """What the KV at one position of one block was computed from."""

    seed: CacheSeed
    position: int
    chain: int
    """Hash of the tokens up to and including this position."""


class FakeModel:
    """Computes batches of the requests it was told of."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], Cell] = {}
        self._contexts: dict[int, list[Cell]] = {}
        """For each request the cell at every position of its context: what it must read as."""
        self._scores: dict[int, tuple[Sample, ...]] = {}
        self._requests: dict[int, Request] = {}
        self._num_dropped: dict[int, int] = {}

    def expect(self, request: Request) -> None:
        """Take note of a request before its first step."""
        self._requests[request.request_id] = request
        self._num_dropped[request.request_id] = 0
        self._begin(request, list(enumerate(request.prompt)))
        chains = [cell.chain for cell in self._contexts[request.request_id]]
        self._scores[request.request_id] = scored(request.request_id, request.prompt[1:], chains[:-1])

    def _begin(self, request: Request, tokens: Sequence[tuple[int, int]]) -> None:
        """Let a request's context be `tokens`: of each its number among all that it has had, and its id."""
        starts = {adapter: start for start, adapter in request.activations}
        context: list[Cell] = []
        self._contexts[request.request_id] = context
        for number, token_id in tokens:
            acting = [pair for pair in request.key if starts.get(pair[0], 0) <= number]
            context.append(_extend(context, cache_seed(tuple(acting)), token_id))

    def _shift(self, row: Row) -> None:
        """Forget of a request what it has given up since its last row, where it has."""
        if row.num_dropped != self._num_dropped[row.request_id]:
            self._num_dropped[row.request_id] = row.num_dropped
            request = self._requests[row.request_id]
            tokens = list(enumerate((*request.prompt, *request.output)))
            self._begin(request, tokens[: request.num_kept] + tokens[request.num_kept + row.num_dropped :])

    def read(self, block_ids: Sequence[int]) -> list[list[Cell]]:
        """Return what full blocks hold."""
        return [[self._cells[block_id, offset] for offset in range(BLOCK_SIZE)] for block_id in block_ids]

    def write(self, block_ids: Sequence[int], contents: Sequence[list[Cell]]) -> None:
        """Write what `read` has returned."""
        for block_id, cells in zip(block_ids, contents, strict=True):
            self._cells.update({(block_id, offset): cell for offset, cell in enumerate(cells)})

    def execute(self, batch: Batch) -> StepOutput:
        """Write all rows, then read all, as a layer of a real model does."""
        seed = cache_seed(batch.key)
        for row in batch.rows:
            self._shift(row)
            self._write(row, seed)
        for row in batch.rows:
            self._check_context(row, seed)
        samples = tuple(self._sample(row, seed) for row in batch.rows if row.sampling is not None)
        pooled = tuple(self._pool(row) for row in batch.rows if row.pooling is not None)
        return StepOutput(samples, pooled, tuple(self._score(row) for row in batch.rows if row.scoring is not None))

    def _cell_at(self, row: Row, position: int) -> Cell | None:
        return self._cells.get((row.block_table[position // BLOCK_SIZE], position % BLOCK_SIZE))

    def _write(self, row: Row, seed: CacheSeed) -> None:
        before = self._cell_at(row, row.start - 1) if row.start else None
        chain = before.chain if before else 0
        for position, token_id in enumerate(row.token_ids, row.start):
            chain = _link(chain, token_id)
            place = (row.block_table[position // BLOCK_SIZE], position % BLOCK_SIZE)
            self._cells[place] = Cell(seed, position, chain)

    def _check_context(self, row: Row, seed: CacheSeed) -> None:
        context = self._contexts[row.request_id]
        seeds = {cell.seed for cell in context[row.start : row.end]}
        assert seeds == {seed}, f"request {row.request_id} computed under another list"
        for position in range(row.end):
            expected = context[position]
            assert self._cell_at(row, position) == expected, f"request {row.request_id} reads foreign KV at {position}"
        is_end = row.end == len(context)
        wants_token = self._requests[row.request_id].max_new_tokens > 0
        assert (row.sampling is not None) == (is_end and wants_token), "samples just where the context ends"

    def _pool(self, row: Row) -> Pooled:
        cells = [self._cell_at(row, position) for position in range(row.start, row.end)]
        chains = [cell.chain for cell in cells if cell is not None]
        if row.pooling is Pooling.LAST:
            return Pooled(row.request_id, pooled_chains(chains[-1:]))
        return Pooled(row.request_id, row.pooled + pooled_chains(chains))

    def embedding(self, request: Request) -> bytes:
        """What a request for an embedding is to end with."""
        chains = [cell.chain for cell in self._contexts[request.request_id]]
        return pooled_chains(chains[-1:] if request.pooling is Pooling.LAST else chains)

    def _score(self, row: Row) -> Scores:
        assert row.scoring is not None
        assert len(row.scoring.token_ids) <= len(row.token_ids)
        cells = [self._cell_at(row, position) for position in range(row.start, row.end)]
        chains = [cell.chain for cell in cells if cell is not None]
        tokens = scored(row.request_id, row.scoring.token_ids, chains[: len(row.scoring.token_ids)])
        return Scores(row.request_id, row.start, tokens)

    def scores(self, request: Request) -> tuple[Sample, ...]:
        """What the tokens of a request's prompt are to be scored, all but the first."""
        return self._scores[request.request_id]

    def _sample(self, row: Row, seed: CacheSeed) -> Sample | RowLate:
        assert row.sampling is not None
        last = self._cell_at(row, row.end - 1)
        assert last is not None
        influences = (seed, last.chain, row.draw, row.sampling.seed, row.history, row.sampler_state)
        mixed = crc32(repr(influences).encode())
        token_id = mixed % VOCABULARY_SIZE
        context = self._contexts[row.request_id]
        context.append(_extend(context, seed, token_id))
        return Sample(row.request_id, token_id, sampler_state=(float(mixed),))


def pooled_chains(chains: list[int]) -> bytes:
    """The labels of positions, as an embedding that tells which they were, and in which order."""
    return b"".join(b"%d," % chain for chain in chains)


def scored(request_id: int, token_ids: Sequence[int], chains: Sequence[int]) -> tuple[Sample, ...]:
    """Tokens, each with the label of the position before it."""
    return tuple(Sample(request_id, *pair) for pair in zip(token_ids, map(float, chains), strict=True))


def _extend(context: list[Cell], seed: CacheSeed, token_id: int) -> Cell:
    return Cell(seed, len(context), _link(context[-1].chain if context else 0, token_id))


def _link(chain: int, token_id: int) -> int:
    return crc32(b"%d,%d" % (chain, token_id), 1)
