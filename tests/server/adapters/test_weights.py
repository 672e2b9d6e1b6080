"""The weight of an adapter list."""

import pytest

from scheduler.cohort import BASE, AdapterId, cohort_key
from server.adapters.weights import check_names, read_weights, weigh_lists

PIRATE, EMOJI, PLAIN = (AdapterId(number, f"digest{number}") for number in range(3))
NAMES = {PIRATE: "pirate", EMOJI: "emoji", PLAIN: "plain"}


def test_a_list_has_the_largest_weight_of_its_adapters() -> None:
    weight_of = weigh_lists(read_weights("pirate=3,emoji=0.5,base=2"), NAMES.__getitem__)
    assert weight_of(BASE) == 2
    assert weight_of(cohort_key([(EMOJI, 1.0)])) == 0.5
    assert weight_of(cohort_key([(PLAIN, 1.0)])) == 1
    assert weight_of(cohort_key([(EMOJI, 1.0), (PLAIN, 0.1)])) == 1
    assert weight_of(cohort_key([(EMOJI, 1.0), (PIRATE, 0.1)])) == 3


def test_everything_weighs_1_where_nothing_is_said() -> None:
    weight_of = weigh_lists((), NAMES.__getitem__)
    assert weight_of(BASE) == weight_of(cohort_key([(EMOJI, 1.0), (PIRATE, 0.1)])) == 1


def test_an_adapter_that_is_loaded_again_keeps_its_weight() -> None:
    names: dict[AdapterId, str] = {}
    weight_of = weigh_lists(read_weights("late=4"), names.__getitem__)
    for load_id in (3, 4):
        names[AdapterId(load_id, "digest")] = "late"
        assert weight_of(cohort_key([(AdapterId(load_id, "digest"), 1.0)])) == 4


def test_a_name_that_is_unknown_is_an_error() -> None:
    names = list(NAMES.values())
    check_names(read_weights("base=2,emoji=2"), names, can_come_later=False)
    with pytest.raises(ValueError, match="--adapter-weight names 'pirat'; there are base, pirate, emoji, plain"):
        check_names(read_weights("pirat=2"), names, can_come_later=False)


def test_a_name_that_may_come_later_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    check_names(read_weights("base=2,late=2"), list(NAMES.values()), can_come_later=True)
    assert [record.getMessage() for record in caplog.records] == [
        "--adapter-weight names 'late'; there are base, pirate, emoji, plain, until now"
    ]


def test_a_name_that_comes_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="--adapter-weight names one twice: emoji, emoji"):
        weigh_lists(read_weights("emoji=2,emoji=2"), NAMES.__getitem__)
