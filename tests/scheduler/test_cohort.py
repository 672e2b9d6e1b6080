import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cohort import BASE, Activation, AdapterId, cache_seed, can_share_batch, cohort_key, list_seed
from tests.scheduler.builders import LIST_A, LIST_B, LIST_C, PIRATE, PIRATE_AGAIN, SHOUT

scale_lists = st.lists(
    st.tuples(st.sampled_from([PIRATE, SHOUT, PIRATE_AGAIN]), st.floats(-1e30, 1e30)), unique_by=lambda pair: pair[0]
)


def test_key_is_sorted_by_load_id() -> None:
    assert cohort_key([(SHOUT, 2.0), (PIRATE, 1.0)]) == ((PIRATE, 1.0), (SHOUT, 2.0))


@pytest.mark.parametrize("zero", [0.0, -0.0, 0, 1e-50])
def test_scale_zero_is_dropped(zero: float) -> None:
    assert cohort_key([(PIRATE, zero)]) == BASE


def test_negative_scale_stays() -> None:
    assert cohort_key([(PIRATE, -0.5)]) == ((PIRATE, -0.5),)


def test_scales_equal_in_float32_are_one_list() -> None:
    assert can_share_batch(cohort_key([(PIRATE, 0.1)]), cohort_key([(PIRATE, 0.1 + 1e-12)]))


def test_scales_that_differ_in_float32_are_two_lists() -> None:
    next_up = 1.0 + 2.0**-23
    assert not can_share_batch(cohort_key([(PIRATE, 1.0)]), cohort_key([(PIRATE, next_up)]))


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, 1e39])
def test_scale_that_is_not_finite_in_float32_is_refused_by_value(scale: float) -> None:
    with pytest.raises(ValueError, match=str(scale).replace("+", r"\+")):
        cohort_key([(PIRATE, scale)])


def test_adapter_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice: \\[1, 1\\]"):
        cohort_key([(PIRATE, 1.0), (PIRATE, 2.0)])


def test_adapter_named_twice_is_refused_even_at_scale_zero() -> None:
    with pytest.raises(ValueError, match="twice"):
        cohort_key([(PIRATE, 1.0), (PIRATE, 0.0)])


def test_different_lists_never_share_a_batch() -> None:
    keys = [BASE, LIST_A, LIST_B, LIST_C]
    assert [[can_share_batch(a, b) for b in keys] for a in keys] == [[a is b for b in keys] for a in keys]


@given(scale_lists, st.randoms(use_true_random=False))
def test_key_does_not_depend_on_the_order_of_the_pairs(scales: list[tuple[AdapterId, float]], shuffler: Random) -> None:
    shuffled = list(scales)
    shuffler.shuffle(shuffled)
    assert can_share_batch(cohort_key(scales), cohort_key(shuffled))


@given(scale_lists)
def test_key_of_a_key_is_itself(scales: list[tuple[AdapterId, float]]) -> None:
    key = cohort_key(scales)
    assert cohort_key(key) == key


def test_cache_seed_names_contents_not_load_ids() -> None:
    assert cache_seed(LIST_A) == cache_seed(LIST_C)


def test_cache_seed_differs_by_scale() -> None:
    assert cache_seed(cohort_key([(PIRATE, 1.0)])) != cache_seed(cohort_key([(PIRATE, 0.5)]))


def test_cache_seed_keeps_the_order_of_the_adapters() -> None:
    assert cache_seed(cohort_key([(PIRATE, 1.0), (SHOUT, 1.0)])) != cache_seed(
        cohort_key([(SHOUT, 1.0), (PIRATE_AGAIN, 1.0)])
    )


def test_base_has_the_empty_seed() -> None:
    assert cache_seed(BASE) == ()


def test_list_seed_of_a_list_that_acts_throughout_is_its_cache_seed() -> None:
    assert list_seed(LIST_A, ()) == ((0, cache_seed(LIST_A)),) == list_seed(LIST_C, (Activation(0, LIST_C[0][0]),))
    assert list_seed(BASE, ()) == ((0, ()),)


def test_list_seed_tells_where_the_list_changes() -> None:
    late = [Activation(5, PIRATE)]
    key = cohort_key([(PIRATE, 1.0), (SHOUT, 0.5)])
    only_shout = cohort_key([(SHOUT, 0.5)])
    assert list_seed(key, tuple(late)) == ((0, cache_seed(only_shout)), (5, cache_seed(key)))
    both = (*late, Activation(2, SHOUT))
    assert list_seed(key, both) == ((0, ()), (2, cache_seed(only_shout)), (5, cache_seed(key)))
