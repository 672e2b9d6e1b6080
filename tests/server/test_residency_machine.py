"""Property test of residency: any interleaving of requests, loads, failures, drops, disconnects and unloads.

`Game.check` runs after every step: references are exactly those of the leases, what is leased is in memory, the budget
holds, an adapter is loaded once at a time, nobody waits for what is there, and the oldest request waits for nothing
that came later. In the end everybody leaves, and nobody may be left waiting.
"""

import itertools

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from server.adapters.catalog import AdapterEntry
from server.adapters.resident import AdapterListTooLong, AdapterUnloaded
from tests.server.residency_game import Game, entry

NUM_ADAPTERS = 5


class ResidencyMachine(RuleBasedStateMachine):
    """Everything that clients, files and operators may do."""

    def __init__(self) -> None:
        super().__init__()
        self.game = Game()
        self.numbers = itertools.count()
        self.adapters: list[AdapterEntry] = []
        """What a catalog would list now."""

    @initialize(
        max_resident=st.integers(0, 4),
        max_bytes=st.sampled_from([0, 0, 200, 350]),
        has_pinned=st.booleans(),
    )
    def start(self, max_resident: int, max_bytes: int, has_pinned: bool) -> None:
        self.game.loop.close()
        self.game = Game(max_resident, max_bytes)
        self.adapters = [
            entry(next(self.numbers), f"a{index}", is_pinned=has_pinned and index == 0) for index in range(NUM_ADAPTERS)
        ]

    def teardown(self) -> None:
        with self.game:
            pass

    def chosen(self, indices: list[int]) -> list[AdapterEntry]:
        return [self.adapters[index] for index in indices]

    @rule(indices=st.lists(st.integers(0, NUM_ADAPTERS - 1), max_size=3))
    def ask(self, indices: list[int]) -> None:
        self.game.ask(*self.chosen(indices))

    @rule(index=st.integers(0, NUM_ADAPTERS - 1))
    def ask_for_one(self, index: int) -> None:
        self.game.ask(self.adapters[index])

    @rule(indices=st.lists(st.integers(0, NUM_ADAPTERS - 1), max_size=2))
    def try_at_once(self, indices: list[int]) -> None:
        lease = self.game.residency.try_acquire(self.chosen(indices))
        if lease is not None:
            self.game.leases.append(lease)
        self.game.turn()

    @rule(index=st.integers(0, NUM_ADAPTERS - 1), estimate=st.sampled_from([50, 100, 150]), real=st.integers(1, 4))
    def change_the_file(self, index: int, estimate: int, real: int) -> None:
        one = self.adapters[index]
        self.game.loader.sizes[one] = real * 60
        if one not in self.game.asked_for:
            self.game.loader.estimates[one] = estimate

    @precondition(lambda self: self.game.loader.loading)
    @rule(pick=st.integers(0, 9))
    def finish_a_load(self, pick: int) -> None:
        self.game.finish(list(self.game.loader.loading)[pick % len(self.game.loader.loading)])

    @precondition(lambda self: self.game.loader.loading)
    @rule(pick=st.integers(0, 9))
    def fail_a_load(self, pick: int) -> None:
        self.game.fail(list(self.game.loader.loading)[pick % len(self.game.loader.loading)])

    @precondition(lambda self: self.game.loader.dropping)
    @rule(pick=st.integers(0, 9))
    def finish_a_drop(self, pick: int) -> None:
        self.game.finish_drop(list(self.game.loader.dropping)[pick % len(self.game.loader.dropping)])

    @precondition(lambda self: self.game.leases)
    @rule(pick=st.integers(0, 9), twice=st.booleans())
    def end_a_request(self, pick: int, twice: bool) -> None:
        lease = self.game.leases[pick % len(self.game.leases)]
        self.game.release(lease)
        if twice:
            self.game.release(lease)

    @precondition(lambda self: self.game.waiting)
    @rule(pick=st.integers(0, 9))
    def disconnect(self, pick: int) -> None:
        self.game.cancel(self.game.waiting[pick % len(self.game.waiting)])

    @precondition(lambda self: self.game.waiting and self.game.loader.loading)
    @rule(pick=st.integers(0, 9))
    def disconnect_as_a_load_ends(self, pick: int) -> None:
        one = next(iter(self.game.loader.loading))
        self.game.waiting[pick % len(self.game.waiting)].task.cancel()
        self.game.finish(one)

    @rule(index=st.integers(0, NUM_ADAPTERS - 1), by_force=st.booleans())
    def unload(self, index: int, by_force: bool) -> None:
        one = self.adapters[index]
        self.game.unload(one, by_force=by_force)
        self.adapters[index] = entry(next(self.numbers), one.name, is_pinned=one.is_pinned)

    @rule(index=st.integers(0, NUM_ADAPTERS - 1))
    def replace(self, index: int) -> None:
        one = self.adapters[index]
        self.adapters[index] = entry(one.id, one.name, is_pinned=one.is_pinned)
        self.game.retire(one)

    @rule(index=st.integers(0, NUM_ADAPTERS - 1))
    def refusals_are_of_the_known_kinds(self, index: int) -> None:
        for error in self.game.errors:
            assert isinstance(error, AdapterListTooLong | AdapterUnloaded) or str(error).endswith("is broken")


def test_any_interleaving_keeps_references_budget_and_promises() -> None:
    run_state_machine_as_test(
        ResidencyMachine,
        settings=settings(
            max_examples=300,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],  # shrinking takes minutes
        ),
    )
