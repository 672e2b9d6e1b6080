import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cohort import BASE, CohortKey, cache_seed
from scheduler.prefix_cache import PrefixCache, PrefixNode
from tests.scheduler.builders import LIST_A, LIST_B, LIST_C

SEED = cache_seed(BASE)
ONES, TWOS, THREES = (1,) * 16, (2,) * 16, (3,) * 16


def make_chain(cache: PrefixCache, *blocks: tuple[tuple[int, ...], int]) -> list[PrefixNode]:
    nodes: list[PrefixNode] = []
    for tokens, block_id in blocks:
        nodes.append(cache.register(SEED, nodes[-1] if nodes else None, tokens, block_id))
    cache.validate()
    return nodes


def matched(cache: PrefixCache, *blocks: tuple[int, ...]) -> list[int]:
    return [node.block_id for node in cache.match(SEED, blocks)]


def test_empty_cache_matches_nothing() -> None:
    assert matched(PrefixCache(), ONES) == []


def test_longest_known_prefix_is_matched() -> None:
    cache = PrefixCache()
    make_chain(cache, (ONES, 5), (TWOS, 6))
    assert matched(cache, ONES, TWOS, THREES) == [5, 6]


def test_match_stops_at_the_first_unknown_block() -> None:
    cache = PrefixCache()
    make_chain(cache, (ONES, 5), (TWOS, 6), (THREES, 7))
    assert matched(cache, ONES, THREES, TWOS) == [5]


def test_same_tokens_after_another_prefix_are_not_matched() -> None:
    cache = PrefixCache()
    make_chain(cache, (ONES, 5), (TWOS, 6))
    assert matched(cache, TWOS) == []


def test_one_prefix_may_go_on_in_several_ways() -> None:
    cache = PrefixCache()
    (start, _) = make_chain(cache, (ONES, 5), (TWOS, 6))
    cache.register(SEED, start, THREES, 7)
    assert matched(cache, ONES, TWOS) == [5, 6]
    assert matched(cache, ONES, THREES) == [5, 7]


@pytest.mark.parametrize("other", [LIST_A, LIST_B])
def test_blocks_of_one_list_are_never_found_under_another(other: CohortKey) -> None:
    cache = PrefixCache()
    make_chain(cache, (ONES, 5))
    assert cache.match(cache_seed(other), [ONES]) == []


def test_blocks_are_found_under_a_list_of_the_same_contents() -> None:
    cache = PrefixCache()
    node = cache.register(cache_seed(LIST_A), None, ONES, 5)
    assert cache.match(cache_seed(LIST_C), [ONES]) == [node]


def test_known_tokens_keep_their_first_block() -> None:
    cache = PrefixCache()
    first = cache.register(SEED, None, ONES, 5)
    assert cache.register(SEED, None, ONES, 9) == first
    assert 9 not in cache
    cache.validate()


def test_forgotten_block_is_not_matched() -> None:
    cache = PrefixCache()
    make_chain(cache, (ONES, 5))
    cache.forget(5)
    assert matched(cache, ONES) == []
    assert 5 not in cache
    assert len(cache) == 0


def test_forgetting_an_unknown_block_changes_nothing() -> None:
    cache = PrefixCache()
    make_chain(cache, (ONES, 5))
    cache.forget(8)
    assert len(cache) == 1


def test_children_of_a_forgotten_block_are_not_matched() -> None:
    cache = PrefixCache()
    make_chain(cache, (ONES, 5), (TWOS, 6))
    cache.forget(5)
    assert matched(cache, ONES, TWOS) == []


def test_children_of_a_forgotten_block_stay_lost_when_its_tokens_come_back() -> None:
    cache = PrefixCache()
    make_chain(cache, (ONES, 5), (TWOS, 6))
    cache.forget(5)
    cache.register(SEED, None, ONES, 5)
    assert matched(cache, ONES, TWOS) == [5]


def test_validate_notices_a_node_without_a_place() -> None:
    cache = PrefixCache()
    make_chain(cache, (ONES, 5))
    del cache._places[5]
    with pytest.raises(AssertionError):
        cache.validate()


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), max_size=8), st.lists(st.integers(0, 1)))
def test_match_equals_the_longest_common_prefix_of_all_chains(chains: list[list[int]], wanted: list[int]) -> None:
    cache = PrefixCache()
    block_id = 0
    for chain in chains:
        parent = None
        for token in chain:
            parent = cache.register(SEED, parent, (token,) * 16, block_id)
            block_id += 1
    cache.validate()
    known = {tuple(chain[:length]) for chain in chains for length in range(1, len(chain) + 1)}
    longest = max((length for length in range(1, len(wanted) + 1) if tuple(wanted[:length]) in known), default=0)
    assert len(cache.match(SEED, [(token,) * 16 for token in wanted])) == longest
