"""The sampler's passes over a whole vocabulary, as kernels: the largest logits, sums of exponentials, and the draw.

A row is computed by one thread in one order of operations, whatever its neighbours. The definitions are in sampler.py,
which also does what is given up here: a draw among more than `MAX_CANDIDATES` tokens in order of likelihood.

S rows, V vocabulary, C candidates.
"""

import math

import numpy as np
from numpy.typing import NDArray

from model.cpu.jit import compiled, inlined, kernel
from model.cpu.simd import (
    WIDTH,
    Array,
    F32x16,
    add,
    exp,
    load,
    max_lanes,
    maximum,
    multiply,
    splat,
    store,
    subtract,
    sum_lanes,
    where_less,
)
from model.cpu.team import Counter, fetch_add, run_in_team

MAX_CANDIDATES = 128
"""Most candidates that are kept in order of likelihood."""
NO_TOKEN = -1
"""The largest logit is no number, or infinite."""
UNDECIDED = -2
"""More candidates are needed than are kept."""
TEMPERATURE, TOP_K, TOP_P, MIN_P, MIN_KEEP, UNIFORM = range(6)
"""The columns of `chains`."""

_SCANNED = 4 * WIDTH
"""Logits that are compared at once with the least of those kept."""
_GROUPS_PER_CANDIDATE = 4
"""With so many groups for each, few of the candidates share one, and few others come with them."""
_FEWEST_REACHED = 16
"""For fewer candidates than these it is quicker to keep what turns out to be too small."""
_SUMMED = 1024
"""Exponentials that are added in float32 before their sum is added in float64; a multiple of WIDTH."""
_LARGEST_INVERSE = 1e30
"""Of a temperature; so that its product with 0 is 0."""


@kernel
def choose(
    logits: Array, numbers: NDArray[np.int64], chains: NDArray[np.float64], num_threads: int
) -> NDArray[np.int64]:
    """Return a token for each row of the logits (S, V) float32 that `numbers` (n,) names; `chains` (n, 6) says how.

    Instead of a token it may be NO_TOKEN or UNDECIDED."""
    chosen = np.empty(numbers.size, np.int64)
    run_in_team(_choose_rows, (logits, numbers, chains, chosen, np.zeros(1, np.int64)), np.int32(num_threads))
    return chosen


@compiled
def _choose_rows(
    logits: Array, numbers: NDArray[np.int64], chains: NDArray[np.float64], chosen: NDArray[np.int64], next_row: Counter
) -> None:
    ids, values = np.empty(MAX_CANDIDATES, np.int64), np.empty(MAX_CANDIDATES, np.float32)
    place = fetch_add(next_row, 1)
    while place < numbers.size:
        chosen[place] = _choose(logits[numbers[place]], chains[place], ids, values)
        place = fetch_add(next_row, 1)


@inlined
def _choose(x: Array, chain: NDArray[np.float64], ids: NDArray[np.int64], values: Array) -> int:
    count = _num_to_keep(chain, x.size)
    if count > MAX_CANDIDATES:
        return UNDECIDED
    has_nan = _keep_largest(x, count, ids, values)
    if has_nan or not math.isfinite(values[0]):
        return NO_TOKEN
    if chain[TEMPERATURE] <= 0:
        return int(ids[0])
    if _is_plain(chain, x.size):
        return _draw_from_all(x, values[0], chain[TEMPERATURE], chain[UNIFORM])
    return _draw(x, chain, count, ids, values)


@kernel
def most_likely(logits: Array, count: int) -> NDArray[np.int64]:
    """Return the ids of the `count` largest of the logits (V,), largest first, equal ones by id; none may be NaN.

    `count` is 1 to MAX_CANDIDATES, and at most V."""
    ids, values = np.empty(count, np.int64), np.empty(count, np.float32)
    _keep_largest(logits, count, ids, values)
    return ids


@kernel
def mass(logits: Array, largest: float) -> float:
    """Return Σ exp(logit - largest) over the logits (V,), within 1e-6 of it."""
    return _mass(logits, np.float32(largest))


@inlined
def _is_plain(chain: NDArray[np.float64], V: int) -> bool:
    """Whether no filter changes the distribution."""
    has_top_k = 0 < chain[TOP_K] < V
    return not has_top_k and chain[TOP_P] >= 1 and chain[MIN_P] <= 0


@inlined
def _num_to_keep(chain: NDArray[np.float64], V: int) -> int:
    if chain[TEMPERATURE] <= 0 or _is_plain(chain, V):
        return 1
    return int(chain[TOP_K]) if 0 < chain[TOP_K] < V else min(MAX_CANDIDATES, V)


@inlined
def _keep_largest(x: Array, count: int, ids: NDArray[np.int64], values: Array) -> bool:
    """Write the `count` largest of `x`, the largest first, equal ones by id. Returns whether any of `x` is NaN; then
    what was written means nothing."""
    bound, held, start = _reached_by(x, count, values), 0, 0
    while start < x.size:
        stop = min(start + _SCANNED, x.size)
        if stop - start < _SCANNED or _any_reaches(x, start, bound):
            for i in range(start, stop):
                if x[i] >= bound:
                    held = min(held + 1, count)
                    _insert(x[i], i, held - 1, ids, values)
                    if held == count:
                        bound = np.nextafter(values[count - 1], np.float32(np.inf))
                elif x[i] != x[i]:
                    return True
        start = stop
    return False


@inlined
def _reached_by(x: Array, count: int, values: Array) -> np.float32:
    """Return a value that at least `count` logits reach, and few more unless many are equal; NaN aside. It is the
    `count`-th largest of the maxima of disjoint groups. Writes to `values`."""
    num_groups = -(-_GROUPS_PER_CANDIDATE * count // WIDTH) * WIDTH
    if count < _FEWEST_REACHED or x.size < 4 * num_groups:
        return np.float32(-np.inf)
    peaks = np.full(num_groups, np.float32(-np.inf))
    for start in range(0, x.size - num_groups + 1, num_groups):
        for group in range(0, num_groups, WIDTH):
            store(peaks, group, maximum(load(x, start + group), load(peaks, group)))
    for i in range(num_groups):
        last = min(i, count - 1)
        if i < count or peaks[i] > values[last]:
            _insert_value(peaks[i], last, values)
    return np.float32(values[count - 1])


@inlined
def _insert_value(value: np.float32, last: int, values: Array) -> None:
    place = last
    while place > 0 and values[place - 1] < value:
        values[place] = values[place - 1]
        place -= 1
    values[place] = value


@inlined
def _any_reaches(x: Array, start: int, bound: np.float32) -> bool:
    """Whether one of _SCANNED logits is no less than `bound`."""
    first = maximum(_reaching(x, start, bound), _reaching(x, start + WIDTH, bound))
    second = maximum(_reaching(x, start + 2 * WIDTH, bound), _reaching(x, start + 3 * WIDTH, bound))
    return bool(max_lanes(maximum(first, second)) > 0)


@inlined
def _reaching(x: Array, start: int, bound: np.float32) -> F32x16:
    """Return 0 for the logits that are less than `bound`, 1 for the others, NaN among them."""
    return where_less(load(x, start), splat(bound), splat(np.float32(0)), splat(np.float32(1)))


@inlined
def _insert(value: np.float32, token_id: int, last: int, ids: NDArray[np.int64], values: Array) -> None:
    """Put a token where it belongs among the `last` kept ones, behind its equals; what stood at `last` is lost."""
    place = last
    while place > 0 and values[place - 1] < value:
        values[place], ids[place] = values[place - 1], ids[place - 1]
        place -= 1
    values[place], ids[place] = value, token_id


@inlined
def _draw(x: Array, chain: NDArray[np.float64], count: int, ids: NDArray[np.int64], values: Array) -> int:
    """Inverse CDF over the candidates that top-k, top-p and min-p leave; the first candidate is the most likely."""
    V, largest = x.size, np.float64(values[0])
    keep = num_all = count if 0 < chain[TOP_K] < V else V
    min_keep = int(chain[MIN_KEEP])
    if chain[TOP_P] < 1:
        whole = _sum_of_kept(values, count, 1.0) if num_all == count else _mass(x, values[0])
        nucleus, below = 0, 0.0
        while nucleus < count and below < chain[TOP_P] * whole:
            below += math.exp(values[nucleus] - largest)
            nucleus += 1
        if below >= chain[TOP_P] * whole:
            keep = min(keep, max(nucleus, min_keep))
    if chain[MIN_P] > 0:
        likely, bound = 0, math.log(chain[MIN_P])
        while likely < count and values[likely] - largest >= bound:
            likely += 1
        if likely < count:
            keep = min(keep, max(likely, min_keep))
    if keep > count:
        return UNDECIDED
    return int(ids[_place_in_cdf(values, max(keep, 1), chain[TEMPERATURE], chain[UNIFORM])])


@inlined
def _sum_of_kept(values: Array, count: int, temperature: float) -> float:
    total = 0.0
    for i in range(count):
        total += math.exp((values[i] - np.float64(values[0])) / temperature)
    return total


@inlined
def _place_in_cdf(values: Array, count: int, temperature: float, u: float) -> int:
    """Return the first place at which the sum of exponentials so far exceeds the part `u` < 1 of all."""
    aim = u * _sum_of_kept(values, count, temperature)
    below, place = 0.0, 0
    while place < count - 1:
        below += math.exp((values[place] - np.float64(values[0])) / temperature)
        if below > aim:
            break
        place += 1
    return place


@inlined
def _draw_from_all(x: Array, largest: np.float32, temperature: float, u: float) -> int:
    """Inverse CDF over the whole vocabulary in the order of ids: no order has to be made for it."""
    inverse = np.float32(min(1 / temperature, _LARGEST_INVERSE))
    sums = np.empty(-(-x.size // _SUMMED), np.float64)
    total = 0.0
    for i in range(sums.size):
        sums[i] = _sum_exp(x, i * _SUMMED, largest, inverse)
        total += sums[i]
    aim, part = u * total, 0
    while part < sums.size - 1 and sums[part] <= aim:
        aim -= sums[part]
        part += 1
    chosen, below = -1, 0.0
    for i in range(part * _SUMMED, min((part + 1) * _SUMMED, x.size)):
        mass_of_one = math.exp(np.float64(x[i] - largest) * inverse)
        below += mass_of_one
        if mass_of_one > 0:
            chosen = i
        if below > aim:
            break
    return chosen


@inlined
def _mass(x: Array, largest: np.float32) -> float:
    total = 0.0
    for start in range(0, x.size, _SUMMED):
        total += _sum_exp(x, start, largest, np.float32(1))
    return total


@inlined
def _sum_exp(x: Array, start: int, largest: np.float32, factor: np.float32) -> float:
    """Return Σ exp(factor · (logit - largest)) over _SUMMED logits from `start` on, fewer where the row ends."""
    stop = min(start + _SUMMED, x.size)
    whole = start + (stop - start) // WIDTH * WIDTH
    lanes = splat(np.float32(0))
    for i in range(start, whole, WIDTH):
        lanes = add(lanes, exp(multiply(subtract(load(x, i), splat(largest)), splat(factor))))
    total = np.float64(sum_lanes(lanes))
    for i in range(whole, stop):
        total += math.exp(np.float64((x[i] - largest) * factor))
    return total
