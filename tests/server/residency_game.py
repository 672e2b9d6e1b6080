"""A residency under a test's control: a loader whose loads and drops end when told to, requests as tasks, an event loop
that runs only when asked, and a check of everything that must hold whenever it stands still.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from model.adapters.tensors import AdapterError
from scheduler.cohort import AdapterId
from server.adapters.catalog import AdapterEntry, AdapterSource
from server.adapters.residency import Residency
from server.adapters.resident import (
    AdapterDropped,
    AdapterLoaded,
    AdapterLoadFailed,
    Lease,
    ResidencyEvent,
    ResidentAdapter,
)

_NUM_TURNS = 12
"""Turns of the event loop in which everything that is ready has run; a chain of wake-ups takes half of them."""


def entry(number: int, name: str = "", *, is_pinned: bool = False) -> AdapterEntry:
    """Return an adapter's entry."""
    name = name or f"adapter{number}"
    return AdapterEntry(number, name, f"{name}.gguf", is_pinned, AdapterSource.FOLDER)


class HeldLoader:
    """Loads and drops that end when the test says so, and a record of what is in memory."""

    def __init__(self) -> None:
        self.sizes: dict[AdapterEntry, int] = {}
        """Real ones; 100 where absent."""
        self.estimates: dict[AdapterEntry, int] = {}
        """100 where absent."""
        self.loading: dict[AdapterEntry, asyncio.Future[None]] = {}
        self.dropping: dict[ResidentAdapter, asyncio.Future[None]] = {}
        self.in_memory: set[ResidentAdapter] = set()
        """Those that leave included."""
        self.load_ids: list[int] = []

    def estimate_bytes(self, entry: AdapterEntry) -> int:
        return self.estimates.get(entry, 100)

    async def load(self, entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        assert entry not in self.loading, f"two loads of {entry.name} at once"
        self.load_ids.append(load_id)
        self.loading[entry] = asyncio.get_running_loop().create_future()
        try:
            await self.loading[entry]
        finally:
            del self.loading[entry]
        resident = ResidentAdapter(
            AdapterId(load_id, entry.name), entry.name, entry.path, num_bytes=self.sizes.get(entry, 100)
        )
        self.in_memory.add(resident)
        return resident

    async def drop(self, resident: ResidentAdapter) -> None:
        assert resident not in self.dropping, "dropped twice"
        self.dropping[resident] = asyncio.get_running_loop().create_future()
        await self.dropping[resident]
        del self.dropping[resident]
        self.in_memory.remove(resident)

    def finish(self, entry: AdapterEntry) -> None:
        """Let a load succeed."""
        self.loading[entry].set_result(None)

    def fail(self, entry: AdapterEntry) -> None:
        """Let a load fail."""
        self.loading[entry].set_exception(AdapterError(f"{entry.name} is broken"))

    def finish_drop(self, resident: ResidentAdapter) -> None:
        """Let a drop end."""
        self.dropping[resident].set_result(None)


@dataclass(eq=False)
class Asked:
    """A request for a list, and what came of it."""

    entries: tuple[AdapterEntry, ...]
    task: "asyncio.Task[Lease]"
    may_wait_for: frozenset[Lease] | None = None
    """The leases there were when it was the oldest first, while nothing moved."""


@dataclass
class Game:
    """One residency and all who deal with it."""

    max_resident: int = 0
    max_bytes: int = 0
    events: list[ResidencyEvent] = field(default_factory=list)
    on_event: Callable[[ResidencyEvent], None] = lambda event: None

    def __post_init__(self) -> None:
        self.loader = HeldLoader()
        self.residency = Residency(
            self.loader,
            self.max_resident,
            self.max_bytes,
            load_ids=itertools.count(),
            observe=self._observe,
        )
        self.loop = asyncio.new_event_loop()
        self.waiting: list[Asked] = []
        self.leases: list[Lease] = []
        self.errors: list[BaseException] = []
        self.unloads: list[asyncio.Task[None]] = []
        self.asked_for: set[AdapterEntry] = set()
        """Their files' sizes are known to the residency."""
        self.known_sizes: dict[AdapterEntry, int] = {}
        self.is_overrun = False
        """Whether a load turned out larger than its estimate, and what leaves for that has not left yet."""

    def _observe(self, event: ResidencyEvent) -> None:
        self.events.append(event)
        self.on_event(event)

    def __enter__(self) -> "Game":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.end_all()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self._run_ready()
            self.loop.close()

    # What may be done.

    def ask(self, *entries: AdapterEntry) -> Asked:
        """A request comes."""
        asked = Asked(tuple(dict.fromkeys(entries)), self.start(self.residency.acquire(entries)))
        self.waiting.append(asked)
        self.asked_for.update(entries)
        self.turn()
        return asked

    def lease(self, *entries: AdapterEntry) -> Lease:
        """A request comes and is served at once, after its loads."""
        asked = self.ask(*entries)
        while not asked.task.done():
            for one in tuple(self.loader.loading):
                self.finish(one)
            for resident in tuple(self.loader.dropping):
                self.finish_drop(resident)
        return asked.task.result()

    def cancel(self, asked: Asked) -> None:
        """A client goes away."""
        asked.task.cancel()
        self.turn()

    def release(self, lease: Lease) -> None:
        """A request ends."""
        self.leases = [other for other in self.leases if other is not lease]
        self.loop.call_soon(lease.release)
        self.turn()

    def finish(self, one: AdapterEntry) -> None:
        """A load succeeds."""
        size = self.loader.sizes.get(one, 100)
        if size > self.known_sizes.get(one, self.loader.estimate_bytes(one)):
            self.is_overrun = True
            for asked in self.waiting:
                asked.may_wait_for = None  # who was promised memory in good faith keeps it
        self.known_sizes[one] = size
        self.loader.finish(one)
        self.turn()

    def fail(self, one: AdapterEntry) -> None:
        """A load fails."""
        self.loader.fail(one)
        self.turn()

    def finish_drop(self, resident: ResidentAdapter) -> None:
        """A drop ends."""
        self.loader.finish_drop(resident)
        self.turn()

    def unload(self, one: AdapterEntry, *, by_force: bool = False) -> "asyncio.Task[None]":
        """The operator takes an adapter away."""
        task = self.start(self.residency.unload(one, self._end if by_force else None))
        self.unloads.append(task)
        self.turn()
        return task

    def _end(self, lease: Lease) -> None:
        assert lease.is_revoked
        self.leases = [other for other in self.leases if other is not lease]
        lease.release()

    def retire(self, one: AdapterEntry) -> None:
        """The operator puts another adapter in the place of one."""
        self.loop.call_soon(self.residency.retire, one)
        self.turn()

    def end_all(self) -> None:
        """Everybody leaves, and every move ends: then nobody waits, and nothing is left but idle adapters."""
        while self.leases or self.loader.loading or self.loader.dropping:
            for lease in tuple(self.leases):
                self.release(lease)
            for one in tuple(self.loader.loading):
                self.finish(one)
            for resident in tuple(self.loader.dropping):
                self.finish_drop(resident)
        assert not self.waiting, f"{len(self.waiting)} requests wait for ever"
        assert all(task.done() for task in self.unloads), "an unload never ends"
        assert self.residency.num_references == self.residency.num_waiting == 0

    # What must hold.

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return self.loop.create_task(work)

    def turn(self) -> None:
        """Let everything that is ready run, note what came of it, and check."""
        self._run_ready()
        for asked in [asked for asked in self.waiting if asked.task.done()]:
            self.waiting.remove(asked)
            if asked.task.cancelled():
                continue
            error = asked.task.exception()
            if error is None:
                self.leases.append(asked.task.result())
            else:
                self.errors.append(error)
        self.check()

    def _run_ready(self) -> None:
        for _ in range(_NUM_TURNS):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def check(self) -> None:
        """Whatever happened: references are those of the leases, memory stays within the budget, and nobody waits
        without a reason."""
        loader, residency = self.loader, self.residency
        assert residency.num_references == sum(len(lease.residents) for lease in self.leases)
        leased = {resident for lease in self.leases for resident in lease.residents.values()}
        assert leased <= loader.in_memory - loader.dropping.keys(), "an adapter in use has left"
        assert set(residency.residents) == loader.in_memory - loader.dropping.keys()
        assert residency.num_waiting == len(self.waiting)
        assert len(set(loader.load_ids)) == len(loader.load_ids)
        self._check_budget()
        self._check_events()
        for asked in self.waiting:
            is_resident = all(residency.resident(one) is not None for one in asked.entries)
            assert not is_resident or residency._is_gated(asked.entries), "it waits for what is there"
        self._check_progress()

    def _check_budget(self) -> None:
        loader = self.loader
        num_adapters = len(loader.in_memory) + len(loader.loading)
        assert not self.max_resident or num_adapters <= self.max_resident
        loading = [self.known_sizes.get(one, loader.estimate_bytes(one)) for one in loader.loading]
        staying = [resident.num_bytes for resident in loader.in_memory - loader.dropping.keys()]
        leaving = [resident.num_bytes for resident in loader.dropping]
        if self.max_bytes:
            assert sum(loading) + sum(staying) <= self.max_bytes
            assert self.is_overrun or sum(loading) + sum(staying) + sum(leaving) <= self.max_bytes
        self.is_overrun &= bool(leaving)

    def _check_events(self) -> None:
        kinds = [type(event) for event in self.events]
        num_loaded, num_dropped = kinds.count(AdapterLoaded), kinds.count(AdapterDropped)
        assert num_loaded - num_dropped == len(self.loader.in_memory)
        assert num_loaded + kinds.count(AdapterLoadFailed) == len(self.loader.load_ids) - len(self.loader.loading)

    def _check_progress(self) -> None:
        """While nothing moves the oldest request waits for leases that there were when it became the oldest, and for no
        later ones."""
        if self.waiting and not self.loader.loading and not self.loader.dropping:
            oldest = self.waiting[0]
            if oldest.may_wait_for is None:
                oldest.may_wait_for = frozenset(self.leases)
            assert not oldest.may_wait_for.isdisjoint(self.leases), "it waits for those who came later"
