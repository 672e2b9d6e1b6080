"""What the kernel of all layers works on: sizes, rows between its phases, and how threads share the items of a phase.

All memory is at addresses, or in arrays that own nothing: numba counts the references to an array that owns its memory,
and two threads that count the same ones all the time take longer for that than for a tile of weights.

T tokens in the step, S rows of logits, D hidden, F MLP, H query heads, K KV heads, h head size, V vocabulary.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.cpu.addresses import array_at
from model.cpu.block_rows import quantise_block
from model.cpu.block_tiles import BlockRows, TileScratch, scratch_bytes, tile_scratch
from model.cpu.jit import inlined
from model.cpu.rank_products import RankRows
from model.cpu.simd import Array
from model.cpu.team import fetch_add, wait_until

LINE = 64
"""Bytes of a cache line, and of a row's block."""
BLOCK = 32
ROWS_AT_ONCE = 128
"""Rows that go through a tile of weights before the next one: their codes stay in the second-level cache."""
FLOATS = np.empty(0, np.float32)
INTEGERS = np.empty(0, np.int64)
_SPREAD = 8
"""Integers from counter to counter: a cache line each."""


class Dims(NamedTuple):
    """Sizes and constants of the model."""

    D: int
    F: int
    H: int
    K: int
    h: int
    eps: np.float32
    attention_scale: np.float32
    is_gelu: bool


class Buffers(NamedTuple):
    """What a step passes from phase to phase: addresses of float32, and of blocks; whole sixteens of rows."""

    residual: int
    """(T, D)."""
    y: int
    """(T, D): what is to be added to it."""
    qkv: int
    """(T, (H + 2K) · h)."""
    q: int
    """(T, H, h)."""
    attended: int
    """(T, H · h)."""
    inner: BlockRows
    """(T, D) or (T, H · h): what the products before and after attention read."""
    gated: BlockRows
    """(T, F): what `down` reads."""
    ranks: RankRows
    """Three times (T, ranks), one after the other: A x of up to three modules."""
    final: int
    """(T, D), its first S rows in use: what the head reads, before it is quantised."""
    logits: int
    """(S, V)."""


class Step(NamedTuple):
    """Where the tokens of the step stand: `AttentionStep`, and the rotary tables (T, h/2) of both kinds of layers."""

    query_starts: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    slots: NDArray[np.int64]
    cos: Array
    sin: Array
    local_cos: Array
    local_sin: Array
    final_rows: NDArray[np.int64]
    """The tokens whose states are wanted after the last norm: first the S that have logits, then others."""
    num_logit_rows: int
    tile_queries: int
    max_context: int
    num_blocks: int
    """Of the caches."""


class Own(NamedTuple):
    """One thread's memory, addresses of float32 but for the first."""

    tile: TileScratch
    out: int
    """Four tiles of `ROWS_AT_ONCE` rows."""
    more: int
    """One such tile: ranks, or what they give."""
    row: int
    """A row of D."""
    number: int
    """Of the thread."""
    num_threads: int


@inlined
def new_counters(num_phases: int, num_threads: int) -> NDArray[np.int64]:
    """Return counters (phases + 1, …), all 0: by phase what each thread's share has had taken, and how many items are
    done; in the last row, how many threads there are."""
    return np.zeros((num_phases + 1, (num_threads + 1) * _SPREAD), np.int64)


@inlined
def claim(counters: NDArray[np.int64], phase: int, num_items: int, own: Own) -> int:
    """Return an item of a phase that no thread has taken yet, -1 when there is none left.

    A thread takes items that lie side by side, so that it reads weights in order; then what others have left.
    """
    for i in range(own.num_threads):
        share = (own.number + i) % own.num_threads
        begin, end = share * num_items // own.num_threads, (share + 1) * num_items // own.num_threads
        item = begin + fetch_add(counters[phase, share * _SPREAD :], 1)
        if item < end:
            return item
    return -1


@inlined
def finish(counters: NDArray[np.int64], phase: int, own: Own) -> None:
    """Say that an item is done."""
    fetch_add(counters[phase, own.num_threads * _SPREAD :], 1)


@inlined
def wait_for_all(counters: NDArray[np.int64], phase: int, num_items: int, own: Own) -> None:
    """Return when all items of a phase are done."""
    wait_until(counters[phase, own.num_threads * _SPREAD :], num_items)


@inlined
def floats_at(address: int, count: int) -> Array:
    """Return the float32 at an address."""
    return array_at(address, (count,), FLOATS)


@inlined
def quantise_row(source: int, rows: BlockRows, row: int) -> None:
    """Quantise float32 at an address to a row of blocks."""
    first = row * rows.num_blocks
    for b in range(rows.num_blocks):
        at = first + b
        quantise_block(source + b * BLOCK * 4, rows.codes + at * LINE, rows.scales + at * 4, rows.sums + at * 4)


@inlined
def own_bytes(buffers: Buffers, D: int) -> int:
    """Return the bytes that a thread needs, and a line more."""
    num_blocks = max(buffers.inner.num_blocks, buffers.gated.num_blocks)
    return scratch_bytes(num_blocks) + 4 * (5 * ROWS_AT_ONCE * 16 + D) + LINE


@inlined
def divide_memory(address: int, buffers: Buffers, has_amx: bool, number: int, num_threads: int) -> Own:
    """Divide up `own_bytes` from a cache line on."""
    out = address + scratch_bytes(max(buffers.inner.num_blocks, buffers.gated.num_blocks))
    more = out + 4 * ROWS_AT_ONCE * LINE
    return Own(tile_scratch(address, has_amx), out, more, more + ROWS_AT_ONCE * LINE, number, num_threads)
