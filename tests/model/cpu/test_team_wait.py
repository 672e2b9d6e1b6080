"""Threads that share a phase's items do each once, and begin the next phase when all of the last is done."""

import numpy as np
import pytest
from numpy.typing import NDArray

from model.cpu.block_tiles import TileScratch
from model.cpu.jit import compiled
from model.cpu.layer_memory import Own, claim, finish, new_counters, wait_for_all
from model.cpu.team import Counter, fetch_add, run_in_team, wait_until

Integers = NDArray[np.int64]

MAX_ITEMS = 50
MAX_THREADS = 4


@compiled
def _go_through_phases(
    counters: Integers, visits: Integers, values: Integers, num_items: int, num_threads: int
) -> None:
    """values[p + 1] of an item is one more than the values[p] of its neighbours, if they are equal."""
    number = fetch_add(counters[len(counters) - 1], 1)
    own = Own(TileScratch(0, 0, False), 0, 0, 0, number, num_threads)
    for phase in range(len(visits)):
        item = claim(counters, phase, num_items, own)
        while item >= 0:
            fetch_add(visits[phase, item:], 1)
            before, after = values[phase, item - 1], values[phase, (item + 1) % num_items]
            values[phase + 1, item] = before + 1 if before == after else -1
            finish(counters, phase, own)
            item = claim(counters, phase, num_items, own)
        wait_for_all(counters, phase, num_items, own)


@compiled
def _run_phases(visits: Integers, values: Integers, num_items: int, num_threads: int) -> Integers:
    counters = new_counters(len(visits), num_threads)
    run_in_team(_go_through_phases, (counters, visits, values, num_items, num_threads), np.int32(num_threads))
    return counters


@pytest.mark.parametrize("num_threads", range(1, MAX_THREADS + 1))
def test_each_item_is_done_once_and_seen_by_whoever_comes_after(num_threads: int) -> None:
    num_phases = 20
    for num_items in range(MAX_ITEMS + 1):
        visits = np.zeros((num_phases, num_items), np.int64)
        values = np.zeros((num_phases + 1, num_items), np.int64)
        counters = _run_phases(visits, values, num_items, num_threads)
        assert (visits == 1).all()
        assert (values == np.arange(num_phases + 1)[:, None]).all()
        assert (counters[:-1, 8 * num_threads] == num_items).all()  # done
        assert counters[-1, 0] == num_threads


@compiled
def _one_after_another(taken: Counter, turn: Counter, order: Integers, noise: Integers, num_steps: int) -> None:
    """Whoever takes an item waits for the one before it, which takes longer than looking again and again."""
    item = fetch_add(taken, 1)
    while item < order.size:
        wait_until(turn, item)
        number = item + 1
        for _ in range(num_steps):  # random numbers: no compiler finds a shorter way to the last one
            number ^= number << 13
            number ^= number >> 7
            number ^= number << 17
        noise[item] = number
        order[item] = order[item - 1] + 1 if item else 1
        fetch_add(turn, 1)
        item = fetch_add(taken, 1)


@compiled
def _run_one_after_another(
    taken: Counter, turn: Counter, order: Integers, noise: Integers, num_steps: int, num_threads: int
) -> None:
    run_in_team(_one_after_another, (taken, turn, order, noise, num_steps), np.int32(num_threads))


@pytest.mark.parametrize("num_steps", [0, 500_000])
@pytest.mark.parametrize("num_threads", range(1, MAX_THREADS + 1))
def test_who_waits_sees_what_was_done_before_however_long_it_took(num_threads: int, num_steps: int) -> None:
    taken, turn = np.zeros(1, np.int64), np.zeros(1, np.int64)
    order, noise = np.zeros(20, np.int64), np.zeros(20, np.int64)
    _run_one_after_another(taken, turn, order, noise, num_steps, num_threads)
    assert order.tolist() == list(range(1, 21))
    assert len(set(noise.tolist())) == 20
    assert turn[0] == 20
    assert taken[0] == 20 + num_threads  # each thread learns once that nothing is left


@compiled
def _add(counter: Counter, amount: int) -> int:
    return fetch_add(counter, amount)


@compiled
def _wait(counter: Counter, value: int) -> None:
    wait_until(counter, value)


def test_adding_returns_what_was_there_and_changes_the_first_element_only() -> None:
    counter = np.array([5, 7], np.int64)
    assert [_add(counter, amount) for amount in (3, 0, -10, 2**40)] == [5, 8, 8, -2]
    assert counter.tolist() == [2**40 - 2, 7]


@pytest.mark.parametrize("value", [3, 2, 0, -1])
def test_a_value_that_has_been_reached_or_passed_is_not_waited_for(value: int) -> None:
    counter = np.array([3], np.int64)
    _wait(counter, value)
    assert counter[0] == 3
