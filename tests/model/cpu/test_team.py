"""Kernels on torch's OpenMP team: every thread works, and all of them are waited for."""

import numpy as np
import pytest

from model.cpu.jit import compiled
from model.cpu.simd import Array
from model.cpu.team import Counter, fetch_add, run_in_team


@compiled
def _count(taken: Counter, visits: Array) -> None:
    item = fetch_add(taken, 1)
    while item < visits.size:
        visits[item] += 1
        item = fetch_add(taken, 1)


@compiled
def _count_in_team(taken: Counter, visits: Array, num_threads: int) -> None:
    run_in_team(_count, (taken, visits), np.int32(num_threads))


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_the_threads_share_the_items_without_loss_or_repetition(num_threads: int) -> None:
    taken, visits = np.zeros(1, np.int64), np.zeros(100_000, np.float32)
    _count_in_team(taken, visits, num_threads)
    assert np.all(visits == 1)
    assert taken[0] == visits.size + num_threads  # each thread learns once that nothing is left
