"""Residency as operators see it: unload, replace, adopt, close."""

import itertools
from collections.abc import Callable

import pytest

from scheduler.cohort import AdapterId
from server.adapters.catalog import AdapterEntry
from server.adapters.residency import Residency
from server.adapters.resident import (
    AdapterDropped,
    AdapterListTooLong,
    AdapterLoaded,
    AdapterUnloaded,
    ResidentAdapter,
)
from tests.server.residency_game import Game, HeldLoader, entry

A, B, C, D = (entry(number, name) for number, name in enumerate("ABCD"))
PINNED = entry(9, "pinned", is_pinned=True)


def test_unloaded_adapter_is_freed_when_its_requests_have_ended() -> None:
    with Game() as game:
        lease = game.lease(A)
        unload = game.unload(A)
        with pytest.raises(AdapterUnloaded, match="'A' has been unloaded"):
            game.ask(A).task.result()
        assert not unload.done()
        game.release(lease)
        assert not unload.done()
        game.finish_drop(next(iter(game.loader.dropping)))
        assert unload.done()
        assert [type(event) for event in game.events] == [AdapterLoaded, AdapterDropped]


def test_unload_by_force_revokes_the_leases_and_ends_what_runs_under_them() -> None:
    with Game() as game:
        leases = [game.lease(A), game.lease(A, B), game.lease(B)]
        unload = game.unload(A, by_force=True)
        assert [lease.is_revoked for lease in leases] == [True, True, False]
        assert [lease.is_released for lease in leases] == [True, True, False]
        game.finish_drop(next(iter(game.loader.dropping)))
        assert unload.done()


def test_requests_that_wait_for_an_unloaded_adapter_are_told() -> None:
    with Game(max_resident=2) as game:
        game.lease(A)
        waiting = [game.ask(B), game.ask(C, D), game.ask(B, A)]
        game.unload(B)
        for one in (waiting[0], waiting[2]):
            with pytest.raises(AdapterUnloaded):
                one.task.result()
        assert not waiting[1].task.done()


def test_adapter_that_is_unloaded_while_it_loads_is_freed_as_soon_as_it_is_there() -> None:
    with Game() as game:
        game.ask(A)
        unload = game.unload(A)
        game.finish(A)
        game.finish_drop(next(iter(game.loader.dropping)))
        assert unload.done()
        assert not game.loader.in_memory


@pytest.mark.parametrize("one", [A, PINNED])
def test_unload_of_an_idle_adapter_waits_for_its_memory_only(one: AdapterEntry) -> None:
    with Game() as game:
        game.release(game.lease(one))
        unload = game.unload(one)
        assert not unload.done()
        game.finish_drop(next(iter(game.loader.dropping)))
        assert unload.done()


def test_unload_of_what_is_being_evicted_waits_for_its_memory_too() -> None:
    with Game(max_resident=1) as game:
        game.release(game.lease(A))
        game.ask(B)
        unload = game.unload(A)
        assert not unload.done()
        game.finish_drop(next(iter(game.loader.dropping)))
        assert unload.done()


def test_unload_of_what_is_not_in_memory_is_done_at_once() -> None:
    with Game() as game:
        assert game.unload(A).done()


def test_unload_whose_caller_has_gone_goes_on() -> None:
    with Game() as game:
        lease = game.lease(A)
        game.unload(A).cancel()
        game.release(lease)
        assert [resident.name for resident in game.loader.dropping] == ["A"]


def test_replaced_adapter_serves_who_has_it_and_who_waits_for_it_and_leaves_then() -> None:
    with Game(max_resident=2) as game:
        other = entry(0, "A")
        old = game.lease(A)
        game.lease(B)
        game.ask(C)  # A is gated now
        waiting = game.ask(A)
        game.retire(A)
        with pytest.raises(AdapterUnloaded):
            game.residency.try_acquire([A])
        game.release(old)
        game.finish_drop(next(iter(game.loader.dropping)))
        game.finish(C)
        game.release(game.leases[-1])
        game.finish_drop(next(iter(game.loader.dropping)))
        game.finish(A)
        assert waiting.task.result().residents[A].name == "A"
        game.release(waiting.task.result())
        assert [resident.name for resident in game.loader.dropping] == ["A"]
        game.finish_drop(next(iter(game.loader.dropping)))
        assert game.lease(other).residents[other].id.load_id == 4


def test_adopted_adapters_are_resident_from_the_start_and_bounded_like_others() -> None:
    with Game(max_resident=1, max_bytes=150) as game:
        resident = ResidentAdapter(AdapterId(7, "x"), "A", "A.gguf", num_bytes=100)
        game.residency.adopt(A, resident)
        game.loader.in_memory.add(resident)
        game.events.append(AdapterLoaded(resident))
        game.loader.load_ids.append(-1)
        assert game.lease(A).residents[A] is resident
        assert game.residency.num_bytes == 100
        with pytest.raises(AdapterListTooLong, match="--max-loras"):
            game.residency.adopt(PINNED, ResidentAdapter(AdapterId(8, "y"), "p", "p.gguf", num_bytes=10))


@pytest.mark.parametrize(("max_resident", "max_bytes"), [(0, 150), (1, 0)])
def test_adopting_more_than_fits_names_what_does_not(max_resident: int, max_bytes: int) -> None:
    residency = Residency(HeldLoader(), max_resident, max_bytes, load_ids=itertools.count())
    pinned = [entry(number, f"p{number}", is_pinned=True) for number in range(2)]
    make: Callable[[int], ResidentAdapter] = lambda i: ResidentAdapter(AdapterId(i, str(i)), f"p{i}", "", num_bytes=100)  # noqa: E731
    residency.adopt(pinned[0], make(0))
    with pytest.raises(AdapterListTooLong, match="'p1'"):
        residency.adopt(pinned[1], make(1))


def test_close_waits_for_what_has_begun() -> None:
    with Game() as game:
        game.ask(A)
        closing = game.start(game.residency.close())
        game.turn()
        assert not closing.done()
        game.finish(A)
        assert closing.done()
