"""What fits in memory and who goes first, without loads and without time."""

from collections.abc import Sequence

import pytest

from scheduler.cohort import AdapterId
from server.adapters.catalog import AdapterEntry
from server.adapters.memory import AdapterMemory, Budget, Place, PlaceState
from server.adapters.resident import Lease, ResidentAdapter
from tests.server.residency_game import entry

A, B, C, D = (entry(number, name) for number, name in enumerate("ABCD"))
PINNED = entry(9, "P", is_pinned=True)


def memory_of(budget: Budget, residents: Sequence[AdapterEntry], num_bytes: int = 100) -> AdapterMemory:
    """Return a memory that holds these, the first used longest ago."""
    memory = AdapterMemory(budget)
    for one in (A, B, C, D, PINNED):
        memory.note_size(one, num_bytes, is_estimate=True)
    for one in residents:
        place = memory.place_for(one)
        memory.begin_load(place)
        memory.arrive(place, ResidentAdapter(AdapterId(0, one.name), one.name, one.path, num_bytes))
    return memory


def lease(memory: AdapterMemory, one: AdapterEntry) -> Lease:
    held = Lease({}, lambda lease: None)
    memory.places[one].leases.add(held)
    return held


def named(places: Sequence[Place] | None) -> list[str] | None:
    return None if places is None else [place.entry.name for place in places]


@pytest.mark.parametrize(
    ("budget", "sizes", "fits"),
    [
        (Budget(0, 0), [1] * 100, True),
        (Budget(2, 0), [1, 1], True),
        (Budget(2, 0), [1, 1, 1], False),
        (Budget(0, 10), [5, 5], True),
        (Budget(0, 10), [5, 6], False),
        (Budget(3, 10), [11], False),
    ],
)
def test_budget_bounds_number_and_bytes(budget: Budget, sizes: list[int], fits: bool) -> None:
    assert budget.admits(sizes) is fits


def test_least_recently_used_leave_first_and_no_more_than_must() -> None:
    memory = memory_of(Budget(3, 0), [A, B, C])
    memory.use(memory.places[A])
    assert named(memory.evictions([D])) == ["B"]
    assert named(memory.evictions([A])) == []


def test_what_a_list_needs_does_not_leave_for_it() -> None:
    memory = memory_of(Budget(2, 0), [A, B])
    assert named(memory.evictions([A, C])) == ["B"]


def test_leased_promised_loading_and_pinned_adapters_do_not_leave() -> None:
    memory = memory_of(Budget(4, 0), [A, B, PINNED])
    lease(memory, A)
    memory.places[B].num_promises = 1
    memory.begin_load(memory.place_for(C))
    assert memory.evictions([D]) is None


def test_victims_are_the_least_recently_used_of_those_in_use_and_stay_chosen() -> None:
    memory = memory_of(Budget(2, 0), [A, B])
    for one in (A, B):
        lease(memory, one)
    assert memory.victims([C], frozenset()) == {A}
    memory.use(memory.places[A])
    assert memory.victims([C], {A}) == {A}, "the choice lasts, or nobody would ever be free"
    memory.places[B].leases.clear()
    assert memory.victims([C], {A}) == {B}, "it is free already"


def test_load_begins_only_when_what_leaves_has_left() -> None:
    memory = memory_of(Budget(1, 0), [A])
    leaving = memory.places[A]
    memory.begin_leaving(leaving)
    place = memory.place_for(B)
    assert not memory.can_begin(place)
    memory.leave(leaving)
    assert memory.can_begin(place)
    assert leaving.gone.is_set()


def test_true_size_replaces_the_estimate_and_stays_known() -> None:
    memory = memory_of(Budget(0, 250), [A, B])
    place = memory.place_for(C)
    memory.note_size(C, 10, is_estimate=True)
    assert place.num_bytes == 100, "the first estimate stands"
    memory.begin_load(place)
    memory.arrive(place, ResidentAdapter(AdapterId(0, "C"), "C", "", num_bytes=200))
    assert memory.is_over
    memory.begin_leaving(place)
    memory.note_size(C, 10, is_estimate=True)
    assert memory.place_for(C).num_bytes == 200
    memory.forget_size(C)
    memory.note_size(C, 10, is_estimate=True)
    assert memory.refusal([C]) is None


def test_refusal_names_adapters_and_limit() -> None:
    memory = memory_of(Budget(2, 0), [PINNED])
    assert memory.refusal([A]) is None
    assert str(memory.refusal([A, B])) == (
        "the 2 adapters 'A', 'B' together cannot be in memory beside 1 that stay in memory, the limit is 2 "
        "(--max-loras)"
    )
    assert memory.refusal([A, PINNED]) is None
    memory = memory_of(Budget(0, 150), [], num_bytes=100)
    assert str(memory.refusal([A, B])) == (
        "the 2 adapters 'A', 'B' together cannot be in memory: 200 bytes, the limit is 150 (--lora-memory-bytes)"
    )


def test_refusal_of_a_long_list_is_short() -> None:
    memory = AdapterMemory(Budget(5, 0))
    many = [entry(number) for number in range(500)]
    for one in many:
        memory.note_size(one, 1, is_estimate=True)
    assert str(memory.refusal(many)).startswith("the 500 adapters 'adapter0', ")
    assert "and 490 more" in str(memory.refusal(many))


def test_places_of_an_adapter_are_the_one_it_has_and_those_it_leaves() -> None:
    memory = memory_of(Budget(0, 0), [A])
    old = memory.places[A]
    memory.begin_leaving(old)
    assert old.state is PlaceState.LEAVING
    new = memory.place_for(A)
    assert memory.places_of(A) == [new, old]
    memory.give_up(new)
    assert memory.places_of(A) == [old]
    assert new.gone.is_set()
