"""Adapter lists without HTTP."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.cohort import BASE, Activation, cohort_key
from server.adapter_registry import AdapterListError, AdapterRegistry, last_occurrence
from tests.server.fakes import adapter_card

CARDS = [adapter_card(0), adapter_card(1), adapter_card(2)]
IDS = [card.id for card in CARDS]


@pytest.fixture
def registry() -> AdapterRegistry:
    """Three adapters, the second at 0.5."""
    return AdapterRegistry(CARDS, [0, 0.5, 0])


def test_absent_and_empty_lists_are_the_current_scales(registry: AdapterRegistry) -> None:
    current = cohort_key([(IDS[1], 0.5)])
    assert registry.resolve(None, None) == registry.resolve([], None) == registry.current_key == current


def test_a_list_is_complete(registry: AdapterRegistry) -> None:
    key = registry.resolve([{"id": 2, "scale": 1}, {"id": 0, "scale": -0.0}], None)
    assert key == cohort_key([(IDS[2], 1.0)])
    assert registry.resolve([{"id": 0}], None) == BASE


def test_a_name_is_scale_one_alone(registry: AdapterRegistry) -> None:
    assert registry.resolve(None, "adapter2") == cohort_key([(IDS[2], 1.0)])


def test_a_list_wins_over_a_name(registry: AdapterRegistry) -> None:
    assert registry.resolve([{"id": 0, "scale": 2}], "adapter2") == cohort_key([(IDS[0], 2.0)])


def test_new_scales_are_for_later_requests(registry: AdapterRegistry) -> None:
    before = registry.resolve(None, None)
    registry.set_scales([{"id": 0, "scale": 3}])
    assert before == cohort_key([(IDS[1], 0.5)])
    assert registry.resolve(None, None) == cohort_key([(IDS[0], 3.0)])
    assert registry.scales == (3.0, 0.0, 0.0)


def test_a_list_that_is_refused_in_its_middle_changes_nothing(registry: AdapterRegistry) -> None:
    with pytest.raises(AdapterListError):
        registry.set_scales([{"id": 0, "scale": 3}, {"id": 9, "scale": 1}])
    assert registry.scales == (0.0, 0.5, 0.0)


def test_a_key_can_be_sent_back_as_a_list(registry: AdapterRegistry) -> None:
    lora = [{"id": 0, "scale": 0.3}, {"id": 1, "scale": 0.0}, {"id": 2, "scale": -1.1}]
    key = registry.resolve(lora, None)
    assert registry.scales_of(key) == lora
    assert registry.resolve(registry.scales_of(key), None) == key


def test_names_are_known_by_identity(registry: AdapterRegistry) -> None:
    assert [registry.name_of(adapter) for adapter in IDS] == ["adapter0", "adapter1", "adapter2"]
    assert registry.names_adapter("adapter1")
    assert not registry.names_adapter("fake")
    assert not registry.names_adapter(None)


# Activated adapters.

LATE = [replace(CARDS[0], invocation_tokens=(5, 5, 6)), replace(CARDS[1], invocation_tokens=(7,)), CARDS[2]]
ALL = cohort_key([(IDS[0], 1.0), (IDS[1], -0.5), (IDS[2], 2.0)])


def test_adapters_act_from_the_last_invocation_on() -> None:
    late = AdapterRegistry(LATE, [0, 0, 0])
    prompt = (7, 5, 5, 6, 1, 5, 5, 5, 6, 2, 7, 5, 5)
    assert late.activate(ALL, prompt) == (ALL, (Activation(6, IDS[0]), Activation(10, IDS[1])))


def test_an_adapter_that_is_not_invoked_is_not_in_the_list() -> None:
    late = AdapterRegistry(LATE, [0, 0, 0])
    assert late.activate(ALL, (5, 6, 7)) == (cohort_key([(IDS[1], -0.5), (IDS[2], 2.0)]), (Activation(2, IDS[1]),))
    assert late.activate(cohort_key([(IDS[0], 1.0)]), (5, 5)) == (BASE, ())


def test_an_adapter_that_the_list_does_not_name_is_not_invoked() -> None:
    late = AdapterRegistry(LATE, [0, 0, 0])
    assert late.activate(cohort_key([(IDS[2], 1.0)]), (5, 5, 6, 7)) == (cohort_key([(IDS[2], 1.0)]), ())
    assert late.activate(BASE, (5, 5, 6, 7)) == (BASE, ())


few_tokens = st.integers(0, 2)


@settings(deadline=None)
@given(st.lists(few_tokens, max_size=12).map(tuple), st.lists(few_tokens, min_size=1, max_size=4).map(tuple))
def test_the_last_occurrence_is_the_last_of_all(tokens: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    places = [start for start in range(len(tokens)) if tokens[start : start + len(wanted)] == wanted]
    assert last_occurrence(tokens, wanted) == (places[-1] if places else None)
