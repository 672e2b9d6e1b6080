"""The weight of an adapter list."""

import pytest

from scheduler.cohort import BASE, AdapterId, cohort_key
from server.adapter_weights import read_weights, weigh_lists

PIRATE, EMOJI, PLAIN = (AdapterId(number, f"digest{number}") for number in range(3))
ADAPTERS = {"pirate": PIRATE, "emoji": EMOJI, "plain": PLAIN}


def test_a_list_has_the_largest_weight_of_its_adapters() -> None:
    weight_of = weigh_lists(read_weights("pirate=3,emoji=0.5,base=2"), ADAPTERS)
    assert weight_of(BASE) == 2
    assert weight_of(cohort_key([(EMOJI, 1.0)])) == 0.5
    assert weight_of(cohort_key([(PLAIN, 1.0)])) == 1
    assert weight_of(cohort_key([(EMOJI, 1.0), (PLAIN, 0.1)])) == 1
    assert weight_of(cohort_key([(EMOJI, 1.0), (PIRATE, 0.1)])) == 3


def test_everything_weighs_1_where_nothing_is_said() -> None:
    weight_of = weigh_lists((), ADAPTERS)
    assert weight_of(BASE) == weight_of(cohort_key([(EMOJI, 1.0), (PIRATE, 0.1)])) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pirat=2", "--adapter-weight names 'pirat'; there are base, pirate, emoji, plain"),
        ("emoji=2,emoji=2", "--adapter-weight names one twice: emoji, emoji"),
    ],
)
def test_a_name_that_is_unknown_or_repeated_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        weigh_lists(read_weights(text), ADAPTERS)
