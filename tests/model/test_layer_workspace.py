"""The memory of steps grows, keeps whole sixteens of rows from a cache line on, and gives none of it twice."""

import ctypes
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.checkpoint.config import ModelConfig
from model.cpu.block_tiles import BlockRows
from model.cpu.rank_products import RANK_ROW_BYTES
from model.layer_workspace import LayerWorkspace

D, F, H, K, h, V = 96, 160, 6, 2, 32, 265


def make_config(hidden_size: int = D, num_heads: int = H) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=V,
        hidden_size=hidden_size,
        num_layers=2,
        num_heads=num_heads,
        num_kv_heads=K,
        head_dim=h,
        intermediate_size=F,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        max_position=64,
        tied_embeddings=True,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_window=None,
    )


def block_regions(rows: BlockRows, num_rows: int) -> Iterator[tuple[int, int]]:
    count = num_rows * rows.num_blocks
    yield from ((rows.codes, 64 * count), (rows.scales, 4 * count), (rows.sums, 4 * count))


def regions(workspace: LayerWorkspace, T: int, S: int) -> list[tuple[int, int]]:
    """(address, bytes) of everything that a step of T tokens with S rows of logits may write."""
    buffers = workspace.buffers
    floats = {
        buffers.residual: T * D,
        buffers.y: T * D,
        buffers.qkv: T * (H + 2 * K) * h,
        buffers.q: T * H * h,
        buffers.attended: T * H * h,
        buffers.final: T * D,
        buffers.logits: S * V,
    }
    found = [(address, 4 * count) for address, count in floats.items()]
    for rows in (buffers.inner, buffers.gated):
        found += block_regions(rows, T)
    return [*found, (buffers.ranks.address, 3 * T * buffers.ranks.num_tiles * RANK_ROW_BYTES)]


def whole_sixteens(count: int) -> int:
    return -(-count // 16) * 16


sizes = st.tuples(st.integers(1, 70), st.integers(1, 20), st.integers(1, 5))


@settings(deadline=None)
@given(st.lists(sizes, max_size=6))
def test_there_is_room_for_the_largest_step_so_far(steps: list[tuple[int, int, int]]) -> None:
    workspace = LayerWorkspace(make_config())
    for i, step in enumerate(steps):
        workspace.make_room(*step)
        T, S, rank_tiles = (max(values) for values in zip(*steps[: i + 1], strict=True))
        T = whole_sixteens(T)
        assert workspace.residual.shape == (T, D)
        assert workspace.final.shape == (T, D)
        assert workspace.logits.shape == (S, V)
        assert workspace.buffers.ranks.num_tiles == rank_tiles
        ordered = sorted(regions(workspace, T, S))
        held = [(memory.ctypes.data, memory.ctypes.data + memory.nbytes) for memory in workspace._kept]
        for start, size in ordered:
            assert any(first <= start and start + size <= end for first, end in held)
        for (start, size), (following, _) in pairwise(ordered):
            assert start + size <= following


@settings(deadline=None)
@given(sizes)
def test_all_begins_on_a_cache_line(step: tuple[int, int, int]) -> None:
    workspace = LayerWorkspace(make_config())
    workspace.make_room(*step)
    starts = [start for start, _ in regions(workspace, whole_sixteens(step[0]), step[1])]
    assert [start % 64 for start in starts] == [0] * len(starts)


@pytest.mark.parametrize(("hidden_size", "num_heads", "blocks"), [(96, 6, 6), (256, 6, 8), (192, 6, 6)])
def test_inner_rows_hold_the_hidden_state_and_what_attention_gives(
    hidden_size: int, num_heads: int, blocks: int
) -> None:
    buffers = LayerWorkspace(make_config(hidden_size, num_heads)).buffers
    assert (buffers.inner.num_blocks, buffers.gated.num_blocks) == (blocks, F // 32)


def test_a_step_that_fits_moves_nothing() -> None:
    workspace = LayerWorkspace(make_config())
    workspace.make_room(33, 5, 2)
    buffers, logits = workspace.buffers, workspace.logits
    workspace.residual[:] = 7
    for step in ((48, 5, 2), (1, 1, 1), (33, 5, 1)):
        workspace.make_room(*step)
        assert workspace.buffers is buffers
        assert workspace.logits is logits
    assert (workspace.residual == 7).all()


@pytest.mark.parametrize("step", [(49, 1, 1), (1, 6, 1), (1, 1, 3)])
def test_one_size_that_grows_leaves_the_others_as_large_as_they_were(step: tuple[int, int, int]) -> None:
    workspace = LayerWorkspace(make_config())
    workspace.make_room(48, 5, 2)
    workspace.make_room(*step)
    grown = (len(workspace.residual), len(workspace.logits), workspace.buffers.ranks.num_tiles)
    assert grown == (max(48, whole_sixteens(step[0])), max(5, step[1]), max(2, step[2]))


def test_what_is_written_at_an_address_is_read_in_its_array() -> None:
    workspace = LayerWorkspace(make_config())
    workspace.make_room(20, 3, 1)
    buffers = workspace.buffers
    arrays = (
        (workspace.residual, buffers.residual),
        (workspace.final, buffers.final),
        (workspace.logits, buffers.logits),
    )
    for array, address in arrays:
        ctypes.memset(address, 1, array.nbytes)
        assert (array.view(np.uint8) == 1).all()
