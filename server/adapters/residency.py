"""Which adapters are in memory: loaded when first asked for, kept within a budget by least recent use, never taken from
under a request.

A request leases all adapters of its list at once, or waits holding none, so no two can wait for each other. Waiting
requests get memory in the order in which they came: when the adapters missing from a list fit beside all that is in
use, the list is *promised* its memory as a whole, idle adapters leave for it, and its loads begin. Requests whose
adapters are in memory do not wait for that.

No starvation. Where idle adapters do not suffice for the oldest unpromised request, the least recently used ones in use
are *gated*: they take no new leases, which queue behind it, until it has its promise. It waits for the leases that
gated adapters had then, or had been promised to others, a drop and its loads; request n of the queue for at most n
such times.

Asyncio, one event loop, no clock, no HTTP. What is decided about memory stands in memory.py.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from server.adapters.catalog import AdapterEntry
from server.adapters.memory import AdapterMemory, Budget, Place, PlaceState
from server.adapters.moves import AdapterMoves
from server.adapters.resident import AdapterLoader, AdapterUnloaded, Lease, ResidencyEvent, ResidentAdapter


class _Waiter:
    """A request that waits for its whole list."""

    def __init__(self, entries: tuple[AdapterEntry, ...]) -> None:
        self.entries = entries
        self.is_promised = False
        self.lease: Lease | None = None
        self.error: BaseException | None = None
        self.settled = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)


class Residency:
    """The adapters in memory, their leases, and the requests that wait for one."""

    def __init__(
        self,
        loader: AdapterLoader,
        max_resident: int,
        max_bytes: int,
        *,
        load_ids: Iterator[int],
        observe: Callable[[ResidencyEvent], None] = lambda event: None,
    ) -> None:
        """max_resident, max_bytes: 0 is no limit. `load_ids` gives numbers that no load of this process had."""
        self._loader = loader
        self._memory = AdapterMemory(Budget(max_resident, max_bytes))
        self._moves = AdapterMoves(loader, self._memory, load_ids, observe, ends=self)
        self._waiters: dict[_Waiter, None] = {}
        """In the order in which they came."""
        self._gated: frozenset[AdapterEntry] = frozenset()
        self._closed: set[AdapterEntry] = set()
        """Being unloaded or replaced: they take no new requests, and leave when nobody uses or awaits them."""

    # What there is.

    @property
    def residents(self) -> tuple[ResidentAdapter, ...]:
        """The adapters that steps can use now."""
        return tuple(place.resident for place in self._memory.places.values() if place.resident is not None)

    @property
    def entries(self) -> tuple[AdapterEntry, ...]:
        """The adapters that are in memory or have been promised a place there."""
        return tuple(self._memory.places)

    def resident(self, entry: AdapterEntry) -> ResidentAdapter | None:
        """Return an adapter as it is in memory now; None where it is not."""
        place = self._memory.places.get(entry)
        return None if place is None else place.resident

    @property
    def num_bytes(self) -> int:
        """Memory of the residents."""
        return sum(resident.num_bytes for resident in self.residents)

    @property
    def num_references(self) -> int:
        """Adapters that are leased, each counted once for every lease."""
        places = (*self._memory.places.values(), *self._memory.leaving)
        return sum(len(place.leases) for place in places)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for an adapter."""
        return len(self._waiters)

    @property
    def awaited(self) -> tuple[AdapterEntry, ...]:
        """The adapters of the lists that requests wait for, each once for every such request."""
        return tuple(entry for waiter in self._waiters for entry in waiter.entries)

    # Requests.

    def try_acquire(self, entries: Sequence[AdapterEntry]) -> Lease | None:
        """Return a lease of a list at once, or None where it must be waited for. Raises AdapterUnloaded."""
        wanted = tuple(dict.fromkeys(entries))
        for entry in wanted:
            if entry in self._closed:
                raise AdapterUnloaded(entry.name)
        return None if self._is_gated(wanted) or not self._are_resident(wanted) else self._lease(wanted)

    async def acquire(self, entries: Sequence[AdapterEntry]) -> Lease:
        """Return a lease of a list as soon as all of its adapters are in memory. Whoever gets it releases it.

        Raises AdapterError where one cannot be loaded, AdapterListTooLong where they do not fit together, and
        AdapterUnloaded. Cancelled, it leaves nothing behind; a load that nobody waits for any more still ends, and its
        adapter is idle then.
        """
        lease = self.try_acquire(entries)
        if lease is not None:
            return lease
        waiter = _Waiter(tuple(dict.fromkeys(entries)))
        for entry in waiter.entries:
            self._memory.note_size(entry, self._loader.estimate_bytes(entry), is_estimate=True)
        self._waiters[waiter] = None
        self._settle()
        is_told = False
        try:
            await waiter.settled
            is_told = True
        finally:
            if not is_told:
                self._withdraw(waiter)
        if waiter.error is not None:
            raise waiter.error
        assert waiter.lease is not None
        return waiter.lease

    # Operators.

    def adopt(self, entry: AdapterEntry, resident: ResidentAdapter) -> None:
        """Take over an adapter that is loaded already. Raises AdapterListTooLong where it does not fit."""
        assert entry not in self._memory.places, f"{entry.name!r} is in memory already"
        self._memory.note_size(entry, resident.num_bytes, is_estimate=False)
        refusal = self._memory.refusal([entry])
        if refusal is not None or self._memory.evictions([entry]) != []:
            raise refusal or self._memory.budget.refuse([entry.name], len(self._memory.places), resident.num_bytes)
        place = self._memory.place_for(entry)
        place.state, place.resident = PlaceState.RESIDENT, resident

    async def unload(self, entry: AdapterEntry, force_end: Callable[[Lease], None] | None = None) -> None:
        """Free an adapter when nobody uses it any more, and return then. Cancelling the caller takes nothing back.

        From now on nobody gets it; requests that wait for it get AdapterUnloaded. `force_end` is called with each lease
        that holds it, after the lease is revoked, and shall end what runs under it.
        """
        self._closed.add(entry)
        for waiter in self._waiting_for(entry):
            self._refuse(waiter, AdapterUnloaded(entry.name))
        leaving = self._memory.places_of(entry)
        if force_end is not None:
            for lease in [lease for place in leaving for lease in place.leases]:
                lease.is_revoked = True
                force_end(lease)
        self._settle()
        for place in leaving:
            await place.gone.wait()

    def retire(self, entry: AdapterEntry) -> None:
        """Let an adapter leave that another has replaced: requests that use it or wait for it are served, and then it
        is freed."""
        self._closed.add(entry)
        self._settle()

    async def close(self) -> None:
        """Wait for the loads and drops that have begun."""
        await self._moves.close()

    # What happens when anything has changed.

    def _settle(self) -> None:
        """Free what nobody wants, serve whom there is memory for, begin the loads for which there is room."""
        self._let_go()
        while self._serve():
            self._let_go()
        for place in self._memory.places.values():
            if place.state is PlaceState.PROMISED and self._memory.can_begin(place):
                self._moves.load(place)

    def _let_go(self) -> None:
        awaited = {entry for waiter in self._waiters for entry in waiter.entries}
        for entry in self._closed - awaited:
            places = self._memory.places_of(entry)
            for place in places:
                if place.is_idle:
                    self._moves.drop(place, is_eviction=False)
            if not places:
                self._closed.discard(entry)
                self._memory.forget_size(entry)

    def _serve(self) -> bool:
        """Go through the queue once. Return whether somebody was refused, so that it is worth going again."""
        before, self._gated = self._gated, frozenset()
        oldest: _Waiter | None = None
        is_refused = False
        for waiter in tuple(self._waiters):
            refusal = self._memory.refusal(waiter.entries)
            if refusal is not None:
                self._refuse(waiter, refusal)
                is_refused = True
            elif self._are_resident(waiter.entries) and not self._is_gated(waiter.entries):
                self._grant(waiter)
            elif not waiter.is_promised and oldest is None and not self._promise(waiter):
                oldest = waiter
                self._gated = self._memory.victims(waiter.entries, before)
        return is_refused

    def _are_resident(self, entries: Sequence[AdapterEntry]) -> bool:
        places = self._memory.places
        return all(entry in places and places[entry].state is PlaceState.RESIDENT for entry in entries)

    def _is_gated(self, entries: Sequence[AdapterEntry]) -> bool:
        return not self._gated.isdisjoint(entries)

    def _promise(self, waiter: _Waiter) -> bool:
        """Promise a list its memory, and let idle adapters leave for it. False where they do not suffice."""
        evictions = self._memory.evictions(waiter.entries)
        if evictions is None:
            return False
        for place in evictions:
            self._moves.drop(place, is_eviction=True)
        for entry in waiter.entries:
            self._memory.place_for(entry).num_promises += 1
        waiter.is_promised = True
        return True

    def _take_back(self, waiter: _Waiter) -> None:
        """Undo a promise: what is loaded or loading stays and is idle, what is not has no place any more."""
        if waiter.is_promised:
            waiter.is_promised = False
            for entry in waiter.entries:
                place = self._memory.places.get(entry)
                if place is not None:
                    place.num_promises -= 1
                    if place.state is PlaceState.PROMISED and not place.num_promises:
                        self._memory.give_up(place)

    def _grant(self, waiter: _Waiter) -> None:
        self._take_back(waiter)
        waiter.lease = self._lease(waiter.entries)
        del self._waiters[waiter]
        waiter.wake()

    def _refuse(self, waiter: _Waiter, error: BaseException) -> None:
        self._take_back(waiter)
        waiter.error = error
        del self._waiters[waiter]
        waiter.wake()

    def _withdraw(self, waiter: _Waiter) -> None:
        """A request has stopped waiting, perhaps in the moment in which it was served."""
        if waiter.lease is not None:
            waiter.lease.release()
        elif waiter in self._waiters:
            self._take_back(waiter)
            del self._waiters[waiter]
            self._settle()

    def _lease(self, entries: Sequence[AdapterEntry]) -> Lease:
        residents = {}
        places = [self._memory.places[entry] for entry in entries]
        for place in places:
            assert place.resident is not None
            residents[place.entry] = place.resident
        lease = Lease(residents, self._on_release)
        for place in places:
            place.leases.add(lease)
            self._memory.use(place)
        return lease

    def _on_release(self, lease: Lease) -> None:
        for entry in lease.residents:
            place = self._memory.places[entry]
            place.leases.remove(lease)
            self._memory.use(place)
        if self._waiters or self._closed:
            self._settle()

    # When a load or a drop has ended.

    def loaded(self, place: Place) -> None:
        """An adapter is in its place. Where it turned out so large that it does not fit, idle ones leave for it, or it
        leaves itself, and those who wait for it wait again, for room of its true size."""
        if self._memory.is_over:
            evictions = self._memory.evictions([place.entry])
            if evictions is None:
                for waiter in self._waiting_for(place.entry):
                    self._take_back(waiter)
                evictions = [place]
            for other in evictions:
                self._moves.drop(other, is_eviction=True)
        self._settle()

    def load_failed(self, place: Place, error: BaseException) -> None:
        """A place will stay empty."""
        for waiter in self._waiting_for(place.entry):
            self._refuse(waiter, error)
        self._settle()

    def dropped(self) -> None:
        """There is room again."""
        self._settle()

    def _waiting_for(self, entry: AdapterEntry) -> list[_Waiter]:
        return [waiter for waiter in self._waiters if entry in waiter.entries]
