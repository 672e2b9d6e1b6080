"""Residency, one promise at a time. Any interleaving of them: test_residency_machine.py."""

import asyncio

import pytest

from model.adapters.tensors import AdapterError
from server.adapters.resident import (
    AdapterDropped,
    AdapterListTooLong,
    AdapterLoaded,
    AdapterLoadFailed,
    ResidencyEvent,
)
from tests.server.residency_game import Game, entry

A, B, C, D = (entry(number, name) for number, name in enumerate("ABCD"))
PINNED = entry(9, "pinned", is_pinned=True)


def resident_names(game: Game) -> set[str]:
    return {resident.name for resident in game.residency.residents}


def test_adapter_is_loaded_when_first_asked_for_and_leased_at_once_from_then_on() -> None:
    with Game() as game:
        asked = game.ask(A)
        assert not asked.task.done()
        game.finish(A)
        first = asked.task.result()
        second = game.residency.try_acquire([A])
        assert second is not None
        game.leases.append(second)
        assert first.residents[A] is second.residents[A]
        assert game.loader.load_ids == [0]


def test_list_of_nothing_is_leased_at_once() -> None:
    with Game(max_resident=1) as game:
        lease = game.residency.try_acquire([])
        assert lease is not None
        assert dict(lease.residents) == {}
        lease.release()


def test_an_adapter_that_a_list_names_twice_is_leased_once() -> None:
    with Game(max_resident=1) as game:
        game.lease(A, A)
        assert game.residency.num_references == 1


def test_one_load_serves_all_who_ask() -> None:
    with Game() as game:
        asked = [game.ask(A) for _ in range(5)]
        game.finish(A)
        assert all(one.task.done() for one in asked)
        assert game.loader.load_ids == [0]
        assert game.residency.num_references == 5


def test_failed_load_reaches_all_who_wait_and_leaves_nothing_behind() -> None:
    with Game(max_resident=2) as game:
        asked = [game.ask(A), game.ask(A, B), game.ask(B)]
        game.finish(B)
        game.fail(A)
        for one in asked[:2]:
            with pytest.raises(AdapterError, match="A is broken"):
                one.task.result()
        assert asked[2].task.result().residents[B].name == "B"
        assert resident_names(game) == {"B"}
        assert [type(event) for event in game.events] == [AdapterLoaded, AdapterLoadFailed]


def test_request_after_a_failed_load_tries_again() -> None:
    with Game() as game:
        game.ask(A)
        game.fail(A)
        again = game.ask(A)
        game.finish(A)
        assert again.task.result().residents[A].id.load_id == 1


def test_any_error_of_the_loader_reaches_who_waits() -> None:
    with Game() as game:
        asked = game.ask(A)
        game.loader.loading[A].set_exception(MemoryError("no memory"))
        game.turn()
        with pytest.raises(MemoryError):
            asked.task.result()


def test_least_recently_used_idle_adapter_makes_room_and_its_memory_is_free_before_the_load_begins() -> None:
    with Game(max_resident=2) as game:
        for one in (A, B, A):
            game.release(game.lease(one))
        asked = game.ask(C)
        assert resident_names(game) == {"A"}
        assert not game.loader.loading
        [leaving] = game.loader.dropping
        game.finish_drop(leaving)
        game.finish(C)
        assert asked.task.result().residents[C].name == "C"
        assert [event.resident.name for event in game.events if isinstance(event, AdapterDropped)] == ["B"]


def test_adapter_in_use_is_never_evicted() -> None:
    with Game(max_resident=1) as game:
        lease = game.lease(A)
        asked = game.ask(B)
        assert not asked.task.done()
        assert resident_names(game) == {"A"}
        game.release(lease)
        assert resident_names(game) == set()


def test_lists_are_leased_whole_so_that_two_cannot_wait_for_each_other() -> None:
    with Game(max_resident=2) as game:
        lease = game.lease(A)
        first, second = game.ask(B, C), game.ask(C, D)
        assert game.residency.num_references == 1, "a waiting list holds something"
        game.release(lease)
        game.finish_drop(next(iter(game.loader.dropping)))
        assert set(game.loader.loading) == {B, C}
        game.finish(B)
        assert not first.task.done()
        game.finish(C)
        assert set(first.task.result().residents) == {B, C}
        game.release(first.task.result())
        game.finish_drop(next(iter(game.loader.dropping)))
        game.finish(D)
        assert set(second.task.result().residents) == {C, D}


def test_request_for_what_is_in_memory_does_not_wait_behind_one_that_loads() -> None:
    with Game() as game:
        game.release(game.lease(A))
        game.ask(B)
        assert game.ask(A).task.done()


def test_request_for_what_is_in_memory_does_not_wait_behind_one_without_room() -> None:
    with Game(max_resident=2) as game:
        game.lease(A)
        game.lease(B)
        game.ask(C)
        assert game.ask(B).task.done()


def test_gated_adapter_takes_no_new_requests_until_the_oldest_has_its_room() -> None:
    with Game(max_resident=2) as game:
        old, _ = game.lease(A), game.lease(B)
        oldest = game.ask(C)
        behind = game.ask(A)
        assert game.residency.try_acquire([A]) is None
        assert not behind.task.done()
        game.release(old)
        game.finish_drop(next(iter(game.loader.dropping)))
        game.finish(C)
        assert oldest.task.done()
        game.release(oldest.task.result())
        game.finish_drop(next(iter(game.loader.dropping)))
        game.finish(A)
        assert behind.task.done()


def test_stream_of_new_leases_starves_nobody() -> None:
    with Game(max_resident=2) as game:
        leases = {A: game.lease(A), B: game.lease(B)}
        asked = game.ask(C)
        num_served = 0
        while not asked.task.done():
            num_served += 1
            assert num_served < 5
            for one, lease in tuple(leases.items()):  # each ends only when the next of its kind has begun
                successor = game.residency.try_acquire([one])
                if successor is not None:
                    game.leases.append(successor)
                    leases[one] = successor
                game.release(lease)
            for resident in tuple(game.loader.dropping):
                game.finish_drop(resident)
            for one in tuple(game.loader.loading):
                game.finish(one)


def test_gate_opens_when_the_one_it_was_for_leaves() -> None:
    with Game(max_resident=1) as game:
        game.lease(A)
        oldest, behind = game.ask(B), game.ask(A)
        assert not behind.task.done()
        game.cancel(oldest)
        assert behind.task.done()


def test_another_adapter_that_becomes_free_first_opens_the_gate() -> None:
    with Game(max_resident=2) as game:
        game.lease(A)
        other = game.lease(B)
        game.ask(C)
        assert game.residency.try_acquire([A]) is None
        game.release(other)
        assert resident_names(game) == {"A"}
        assert game.ask(A).task.done()


def test_later_requests_take_no_room_from_the_oldest() -> None:
    with Game(max_resident=3) as game:
        leases = [game.lease(one) for one in (A, B)]
        game.ask(C, D)
        game.ask(D)
        assert not game.loader.loading, "the free place is for the list that came first"
        game.release(leases[0])
        for resident in tuple(game.loader.dropping):
            game.finish_drop(resident)
        assert set(game.loader.loading) == {C, D}


@pytest.mark.parametrize("when", ["loading", "loaded", "without room"])
def test_request_that_leaves_while_it_waits_leaves_nothing_behind(when: str) -> None:
    with Game(max_resident=1) as game:
        if when == "without room":
            lease = game.lease(B)
        asked = game.ask(A)
        if when == "loaded":
            game.loader.finish(A)  # the client goes in the moment in which it would be served
            game.known_sizes[A] = 100
        game.cancel(asked)
        if when == "loading":
            game.finish(A)
        assert game.residency.num_waiting == 0
        if when == "without room":
            assert resident_names(game) == {"B"}
            game.release(lease)
            assert not game.loader.dropping
        else:
            assert resident_names(game) == {"A"}
            assert game.ask(B).task.done() is False
            assert [resident.name for resident in game.loader.dropping] == ["A"], "it is idle, and makes room"


def test_request_cancelled_after_it_was_served_gives_its_lease_back() -> None:
    with Game() as game:
        game.release(game.lease(A))

        async def ask_and_be_cancelled() -> None:
            task = asyncio.create_task(game.residency.acquire([B]))
            await asyncio.wait([task], timeout=0)

            def cancel_in_time(event: ResidencyEvent) -> None:
                # The request is served right after this event; its task runs after the cancellation.
                asyncio.get_running_loop().call_soon(task.cancel)

            game.on_event = cancel_in_time
            game.loader.finish(B)
            with pytest.raises(asyncio.CancelledError):
                await task

        game.loop.run_until_complete(ask_and_be_cancelled())
        game.turn()
        assert game.residency.num_references == 0
        assert resident_names(game) == {"A", "B"}


def test_promise_that_nobody_waits_for_is_no_load() -> None:
    with Game(max_resident=1) as game:
        game.release(game.lease(A))
        asked = game.ask(B)
        game.cancel(asked)
        game.finish_drop(next(iter(game.loader.dropping)))
        assert not game.loader.loading
        assert game.loader.load_ids == [0]


def test_released_twice_counts_once() -> None:
    with Game() as game:
        first, second = game.lease(A), game.lease(A)
        game.release(first)
        game.release(first)
        assert game.residency.num_references == 1
        game.release(second)
        assert game.residency.num_references == 0


def test_list_of_more_adapters_than_fit_is_refused_by_name() -> None:
    with Game(max_resident=2) as game:
        asked = game.ask(A, B, C)
        with pytest.raises(AdapterListTooLong, match=r"3 adapters 'A', 'B', 'C' .* 2 \(--max-loras\)"):
            asked.task.result()
        assert not game.loader.load_ids


def test_list_that_does_not_fit_beside_pinned_ones_is_refused() -> None:
    with Game(max_resident=2) as game:
        game.release(game.lease(PINNED))
        with pytest.raises(AdapterListTooLong, match="beside 1 that stay in memory"):
            game.ask(A, B).task.result()
        game.lease(A, PINNED)


def test_pinned_adapter_stays_though_it_is_idle_and_old() -> None:
    with Game(max_resident=2) as game:
        game.release(game.lease(PINNED))
        for one in (A, B, C):
            game.release(game.lease(one))
        assert resident_names(game) == {"pinned", "C"}


def test_list_that_a_pinned_adapter_has_made_impossible_is_refused_and_does_not_wait_for_ever() -> None:
    with Game(max_resident=2) as game:
        lease = game.lease(A)
        game.ask(PINNED)
        waiting = game.ask(B, C)
        assert game.ask(A).task.done()
        with pytest.raises(AdapterListTooLong):
            waiting.task.result()
        game.release(lease)


def test_bytes_bound_memory_by_what_files_promise_before_they_are_loaded() -> None:
    with Game(max_bytes=250) as game:
        game.release(game.lease(A))
        game.release(game.lease(B))
        game.ask(C)
        assert not game.loader.loading, "a third of 100 bytes would not fit"
        assert resident_names(game) == {"B"}


def test_adapter_larger_than_the_budget_is_refused_by_name_before_it_is_read() -> None:
    with Game(max_bytes=250) as game:
        game.loader.estimates[A] = 300
        with pytest.raises(
            AdapterListTooLong, match=r"adapter 'A' .*: 300 bytes, the limit is 250 \(--lora-memory-bytes\)"
        ):
            game.ask(A).task.result()
        assert not game.loader.load_ids


def test_adapter_that_turns_out_larger_than_the_budget_is_refused_and_freed() -> None:
    with Game(max_bytes=250) as game:
        game.loader.sizes[A] = 300
        asked = game.ask(A)
        game.finish(A)
        with pytest.raises(AdapterListTooLong, match="'A' cannot be in memory: 300 bytes"):
            asked.task.result()
        game.finish_drop(next(iter(game.loader.dropping)))
        assert not game.loader.in_memory
        with pytest.raises(AdapterListTooLong):
            game.ask(A).task.result()
        assert game.loader.load_ids == [0], "its size was known the second time"


def test_adapter_that_turns_out_larger_waits_again_for_room_of_its_size() -> None:
    with Game(max_bytes=250) as game:
        game.loader.sizes[B] = 200
        lease = game.lease(A)
        asked = game.ask(B)
        game.finish(B)
        assert not asked.task.done()
        assert resident_names(game) == {"A"}
        game.finish_drop(next(iter(game.loader.dropping)))
        game.release(lease)
        game.finish_drop(next(iter(game.loader.dropping)))
        game.finish(B)
        assert asked.task.result().residents[B].num_bytes == 200


def test_replaced_adapter_leaves_when_the_last_who_waited_for_it_is_refused() -> None:
    with Game(max_bytes=250) as game:
        game.loader.sizes[B] = 200
        game.release(game.lease(A))
        asked = game.ask(A, B)
        game.retire(A)
        assert resident_names(game) == {"A"}
        game.finish(B)
        with pytest.raises(AdapterListTooLong):
            asked.task.result()
        assert {resident.name for resident in game.loader.dropping} == {"A", "B"}


def test_promised_adapter_is_not_gated_for_one_that_came_later() -> None:
    with Game(max_resident=1) as game:
        first, second = game.ask(A), game.ask(B)
        game.finish(A)
        assert first.task.done()
        assert not second.task.done()


def test_idle_adapters_leave_for_one_that_turns_out_larger() -> None:
    with Game(max_bytes=250) as game:
        game.loader.sizes[B] = 200
        game.release(game.lease(A))
        asked = game.ask(B)
        game.finish(B)
        assert asked.task.done()
        assert [resident.name for resident in game.loader.dropping] == ["A"]
